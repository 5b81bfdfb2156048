"""How the supernet learned: health curves, and how far the gradients of its sub-networks conflict (NASViT, table 4)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from superformer.report.charts import axis, heat, plot, series
from superformer.report.inputs import Inputs, Row
from superformer.report.markup import paragraph
from superformer.report.section import Section, grid, place, several
from superformer.report.words import counted, number, percent

COLUMNS, ROWS = 60, 48
"""Of a heat map."""


def health(inputs: Inputs) -> Section | None:
    """The accuracy of the watched sub-networks, the loss and the learning rate, over epochs."""
    steps, checks = inputs.of("step"), inputs.of("health")
    if not steps and not checks:
        return None
    epochs, unit = _epochs(steps)
    figures, charts = [], {}
    if checks:
        names = list(dict.fromkeys(name for check in checks for name in check.get("accuracy", {})))
        names.sort(key=lambda name: name in ("smallest", "largest"))  # the last lie on top
        lines = []
        for name in names:
            have = [c for c in checks if name in c.get("accuracy", {})]
            x, y = [c["step"] * epochs for c in have], [100 * c["accuracy"][name] for c in have]
            lines.append(series(name, x, y, "both", *_look(name)))
        last = ", ".join(f"{name} {percent(value)}" for name, value in checks[-1].get("accuracy", {}).items())
        label = f"Accuracy of watched sub-networks on the search split while training; at the end: {last}."
        charts["health"] = plot(label, axis(unit), axis("accuracy, search split", "percent"), lines, together=True)
        figures.append(place("health", "Accuracy of sub-networks, always the same ones", class_="wide"))
    for name, title in (("loss", "Loss"), ("lr", "Learning rate")):
        have = [line for line in steps if number(line.get(name)) is not None]
        if have:
            x, y = [line["step"] * epochs for line in have], [line[name] for line in have]
            label = f"{title} from {y[0]:.3g} at the first to {y[-1]:.3g} at the last of {len(y)} points."
            charts[name] = plot(label, axis(unit), axis(title.lower(), low=0), [series(title.lower(), x, y)], together=True)
            figures.append(place(name, title))
    skipped = len(inputs.of("skipped"))
    speed = [v for line in steps if (v := number(line.get("images_per_second"))) is not None]
    told = f"{steps[-1]['step']:,} steps" if steps else ""
    told += f", {steps[-1]['epoch']:.4g} epochs" if steps and "epoch" in steps[-1] else ""
    told += f", {np.median(speed):,.0f} pictures a second. " if speed else ". "
    told += f"{counted(skipped, 'step')} had to be skipped." if skipped else "No step had to be skipped."
    return Section("training", "How the supernet learned", several(paragraph(told), grid(*figures)), charts)


def _epochs(steps: Sequence[Row]) -> tuple[float, str]:
    """Epochs of a step, and the unit of time; steps themselves where epochs are not told."""
    for line in reversed(steps):
        if line.get("step") and number(line.get("epoch")):
            return line["epoch"] / line["step"], "epochs"
    return 1.0, "steps"


def _look(name: str) -> tuple[int, int]:
    """Colour and dash of a watched sub-network."""
    if name in ("smallest", "largest"):
        return (0, 0) if name == "largest" else (1, 0)
    return 4, 1 + int(re.sub(r"\D", "", name) or 0) % 3


# --- conflicts ---


def conflicts(inputs: Inputs) -> Section | None:
    """Where the gradients of the largest network and of the others point apart: over steps, and layer by layer."""
    lines = [line for line in inputs.of("conflict") if number(line.get("ratio")) is not None]
    told_by = [row for row in inputs.analysis.get("conflicts") or [] if isinstance(row, dict)]
    if not lines and not told_by:
        return None
    figures, charts = [], {}
    told = "Gradients of the largest sub-network and of the others, compared layer by layer. "
    if lines:
        epochs, unit = _epochs(inputs.of("step"))
        x = [line["step"] * epochs for line in lines]
        ratio = [100 * line["ratio"] for line in lines]
        cosine = [line.get("cosine") for line in lines]
        mean = float(np.mean(ratio))
        told += f"On average {mean:.1f} % of the layers had a negative cosine (NASViT's negative cosine similarity ratio, table 4)."
        charts["conflict-ratio"] = plot(
            f"Share of layers with conflicting gradients over training; on average {mean:.1f} %.",
            axis(unit), axis("layers in conflict", "percent", 0, 10), [series("layers in conflict", x, ratio, "line", 1)], together=True,
        )  # fmt: skip
        charts["conflict-cosine"] = plot(
            "Cosine of the whole gradients over training.",
            axis(unit), axis("cosine", low=0), [series("cosine", x, cosine, "line", 0)], together=True,
        )  # fmt: skip
        figures += [place("conflict-ratio", "Layers whose gradients conflict"), place("conflict-cosine", "Cosine of the whole gradients")]
        if any(line.get("layers") for line in lines):
            charts["conflict-layers"] = _map(lines, x, unit)
            note = "Blue: the gradients agree. Orange: they point apart. A stroke: the layer did not run in these steps."
            figures.append(place("conflict-layers", "Cosine of each layer's gradients", note, "wide"))
    if told_by:
        charts["conflict-epochs"] = _table_4(told_by)
        figures.append(place("conflict-epochs", "Share of steps in which a layer's gradients conflict, epoch by epoch", class_="wide"))
    return Section("conflicts", "Gradient conflicts", several(paragraph(told), grid(*figures)), charts)


def _map(lines: Sequence[Row], x: Sequence[float], unit: str) -> dict[str, object]:
    names = sorted({name for line in lines for name in line.get("layers", {})}, key=_order)[:ROWS]
    groups = np.array_split(np.arange(len(lines)), min(COLUMNS, len(lines)))
    values = []
    for name in names:
        found = [[v for k in g if (v := number(lines[k].get("layers", {}).get(name))) is not None] for g in groups]
        values.append([float(np.mean(f)) if f else None for f in found])
    low = [(float(np.mean(known)), name) for name, row in zip(names, values, strict=True) if (known := [v for v in row if v is not None])]
    label = f"Cosine of the gradients of {len(names)} layers over training; lowest on average: {min(low)[1]} with {min(low)[0]:.2f}."
    return heat(label, unit, [x[g[0]] for g in groups], names, values, "cosine", -1)


def _table_4(rows: Sequence[Row]) -> dict[str, object]:
    names = sorted({str(row.get("layer")) for row in rows}, key=_order)[:ROWS]
    epochs = sorted({e for row in rows if (e := number(row.get("epoch"))) is not None})
    groups = np.array_split(np.arange(len(epochs)), min(COLUMNS, len(epochs)))
    known = {(str(row.get("layer")), number(row.get("epoch"))): number(row.get("ratio")) for row in rows}
    values = []
    for name in names:
        found = [[v for k in g if (v := known.get((name, epochs[k]))) is not None] for g in groups]
        values.append([float(np.mean(f)) if f else None for f in found])
    return heat(f"Share of conflicting steps of {len(names)} layers.", "epochs", [epochs[g[0]] for g in groups], names, values, "share", 0)


def _order(name: str) -> tuple[object, ...]:
    """From the picture to the classes: the stem, the stages in their order, the end; then all of them together."""
    first = 0 if name.startswith(("stem", "patch", "embed")) else 1 if name.startswith("stage") else 2
    return (
        first,
        1 if name == "head" else 2 if name == "all" else 0,
        *(("", int(part)) if part.isdigit() else (part.replace("enter", " enter"), 0) for part in name.split(".")),
    )
