"""How the supernet learned: health curves, and how far the gradients of its sub-networks conflict (NASViT, table 4);
how the space itself moved (S3, figures 2 and 3), and how the errors of its networks spread (figure 6)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from superformer.report import markup
from superformer.report.inputs import NOTHING, Inputs, Row, counted, history, number, percent
from superformer.report.markup import Chart, Markup, Section, axis, grid, paragraph, place, plot, series, several, tag
from superformer.runs import Run
from superformer.search.space_evolution import WHOLE, drawn_errors, equation_7

COLUMNS, ROWS = 60, 48
"""Of a heat map."""
ENDS = {"largest": 0, "smallest": 1}
"""Sub-networks with colours of their own; of other watched ones the lines differ."""


def health(inputs: Inputs) -> Section | None:
    """The accuracy of the watched sub-networks, the loss and the learning rate, over epochs."""
    steps, checks = inputs.of("step"), inputs.of("health")
    if not steps and not checks:
        return None
    epochs, unit = _epochs(steps)
    figures, charts = [], {}
    if checks:
        names = list(dict.fromkeys(name for check in checks for name in check.get("accuracy", {})))
        names.sort(key=lambda name: name in ENDS)  # the last lie on top
        lines = []
        for name in names:
            have = [c for c in checks if name in c.get("accuracy", {})]
            x, y = [c["step"] * epochs for c in have], [100 * c["accuracy"][name] for c in have]
            dash = 0 if name in ENDS else 1 + int(re.sub(r"\D", "", name) or 0) % 3
            lines.append(series(name, x, y, "both", ENDS.get(name, 4), dash))
        last = ", ".join(f"{name} {percent(value)}" for name, value in checks[-1].get("accuracy", {}).items())
        label = f"Accuracy of watched sub-networks on the search split while training; at the end: {last}."
        charts["health"] = plot(label, axis(unit), axis("accuracy, search split", "percent"), lines, together=True)
        figures.append(place("health", "Accuracy of sub-networks, always the same ones", class_="wide"))
    for name, title in (("loss", "Loss"), ("lr", "Learning rate")):
        have = [line for line in steps if number(line.get(name)) is not None]
        if have:
            x, y = [line["step"] * epochs for line in have], [line[name] for line in have]
            label = f"{title} from {y[0]:.3g} at the first to {y[-1]:.3g} at the last of {len(y)} points."
            line = series(title.lower(), x, y)
            charts[name] = plot(label, axis(unit), axis(title.lower(), low=0), [line], together=True)
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


def conflicts(inputs: Inputs) -> Section | None:
    """Where the gradients of the largest network and of the others point apart: over steps, and layer by layer."""
    lines = [line for line in inputs.of("conflict") if number(line.get("ratio")) is not None]
    ratios = [row for row in inputs.analysis.get("conflicts") or [] if isinstance(row, dict)]
    if not lines and not ratios:
        return None
    figures, charts = [], {}
    told = "Gradients of the largest sub-network and of the others, compared layer by layer. "
    if lines:
        epochs, unit = _epochs(inputs.of("step"))
        x, ratio = [line["step"] * epochs for line in lines], [100 * line["ratio"] for line in lines]
        cosine = [line.get("cosine") for line in lines]
        mean = float(np.mean(ratio))
        told += f"On average {mean:.1f} % of the layers had a negative cosine "
        told += "(NASViT's negative cosine similarity ratio, table 4)."
        label = f"Share of layers with conflicting gradients over training; on average {mean:.1f} %."
        shown, y = [series("layers in conflict", x, ratio, "line", 1)], axis("layers in conflict", "percent", 0, 10)
        charts["conflict-ratio"] = plot(label, axis(unit), y, shown, together=True)
        label, shown = "Cosine of the whole gradients over training.", [series("cosine", x, cosine, "line", 0)]
        charts["conflict-cosine"] = plot(label, axis(unit), axis("cosine", low=0), shown, together=True)
        figures.append(place("conflict-ratio", "Layers whose gradients conflict"))
        figures.append(place("conflict-cosine", "Cosine of the whole gradients"))
        if any(line.get("layers") for line in lines):
            charts["conflict-layers"] = _cosines(lines, x, unit)
            note = (
                "Blue: the gradients agree. Orange: they point apart. A stroke: the layer did not run in these steps."
            )
            figures.append(place("conflict-layers", "Cosine of each layer's gradients", note, "wide"))
    if ratios:
        charts["conflict-epochs"] = _ratios_by_epoch(ratios)
        caption = "Share of steps in which a layer's gradients conflict, epoch by epoch"
        figures.append(place("conflict-epochs", caption, class_="wide"))
    return Section("conflicts", "Gradient conflicts", several(paragraph(told), grid(*figures)), charts)


def _cosines(lines: Sequence[Row], x: Sequence[float], unit: str) -> Chart:
    """The cosine of each layer's gradients over training."""
    every = {name for line in lines for name in line.get("layers", {})}
    known = {name: [number(line.get("layers", {}).get(name)) for line in lines] for name in every}
    names, columns, values = _grouped(known, x)
    means = [[v for v in row if v is not None] for row in values]
    lowest, where = min((float(np.mean(own)), name) for name, own in zip(names, means, strict=True) if own)
    label = f"Cosine of the gradients of {len(names)} layers over training; lowest on average: {where} with "
    return markup.heat(f"{label}{lowest:.2f}.", unit, columns, names, values, "cosine", -1)


def _ratios_by_epoch(rows: Sequence[Row]) -> Chart:
    """NASViT's table 4, layer by layer."""
    epochs = sorted({e for row in rows if (e := number(row.get("epoch"))) is not None})
    ratios = {(str(row.get("layer")), number(row.get("epoch"))): number(row.get("ratio")) for row in rows}
    known = {name: [ratios.get((name, epoch)) for epoch in epochs] for name, _ in ratios}
    names, columns, values = _grouped(known, epochs)
    label = f"Share of conflicting steps of {len(names)} layers."
    return markup.heat(label, "epochs", columns, names, values, "share", 0)


def _grouped(
    known: Mapping[str, Sequence[float | None]], x: Sequence[float]
) -> tuple[list[str], list[float], list[list[float | None]]]:
    """Layers in their order, where groups of neighbours begin, and each group's mean over what is known of it."""
    names = sorted(known, key=_network_order)[:ROWS]
    groups = np.array_split(np.arange(len(x)), min(COLUMNS, len(x)))
    found = [[[v for k in group if (v := known[name][k]) is not None] for group in groups] for name in names]
    values = [[float(np.mean(own)) if own else None for own in row] for row in found]
    return names, [x[g[0]] for g in groups], values


def _network_order(name: str) -> tuple[object, ...]:
    """From the picture to the classes: the stem, the stages in their order, the end; then all of them together."""
    first = 0 if name.startswith(("stem", "patch", "embed")) else 1 if name.startswith("stage") else 2
    last = 1 if name == "head" else 2 if name == "all" else 0
    parts = name.split(".")
    return first, last, *(("", int(p)) if p.isdigit() else (p.replace("enter", " enter"), 0) for p in parts)


def evolution(inputs: Inputs) -> Section | None:
    """Every dimension's choices at every step, with the errors and the fitted slope that moved them."""
    spaces = inputs.evolution
    if not spaces:
        return None
    charts: dict[str, Chart] = {"et": _quality(spaces)}
    labels = list(dict.fromkeys(str(t["label"]) for s in spaces for t in s["trends"]))
    charts |= {f"moves-{k}": _choices(label, spaces) for k, label in enumerate(labels)}
    moving = [place(f"moves-{k}", label) for k, label in enumerate(labels)]
    told = "The space was improved before it was searched (S3, algorithm 1): of every dimension and value, the E-T "
    told += "error of the networks that have it was measured (the mean of the expected error and of that of the best), "
    told += "and each list of values moved against the slope."
    if len(spaces) <= inputs.recipe.evolve.rounds:
        told += f" It has not ended yet: {len(spaces)} of {inputs.recipe.evolve.rounds + 1} spaces were measured."
    columns = ["dimension", *(f"space {t}" for t in range(len(spaces)))]
    rows = [[label, *(_listed(_values(space, label)) or NOTHING for space in spaces)] for label in labels]
    listed = markup.details("The same as a table", markup.table(columns, rows, "The same as a table"))
    steps = [tag("h3", "Choices of every dimension, space by space"), grid(*moving, class_="small"), listed]
    for t, space in enumerate(spaces):
        steps.append(_measured(t, space, charts, last=t == inputs.recipe.evolve.rounds))
    body = several(paragraph(told), place("et", "Errors of networks of each space"), *steps)
    return Section("evolution", "How the space evolved", body, charts)


def _quality(spaces: Sequence[Row]) -> Chart:
    x = list(range(len(spaces)))
    names = {"expected": "expected (random networks)", "et_error": "E-T error", "best": "best network drawn"}
    lines = [series(name, x, [s.get(key) for s in spaces], "both", k) for k, (key, name) in enumerate(names.items())]
    ends = f"from {spaces[0]['et_error']:.2f} to " if len(spaces) > 1 else ""
    ends += f"{spaces[-1]['et_error']:.2f} %"
    label = f"E-T error of {len(spaces)} spaces: {ends}."
    return plot(label, axis("space", "whole"), axis("error", "percent", 0), lines, ticks=x, together=True)


def _values(space: Row, label: str) -> list[float]:
    return next((list(t["dimension"]["values"]) for t in space["trends"] if t["label"] == label), [])


def _choices(label: str, spaces: Sequence[Row]) -> Chart:
    """Figure 2: the values of a dimension in each space."""
    values = [_values(space, label) for space in spaces]
    told = "; ".join(f"space {t}: {_listed(own)}" for t, own in enumerate(values))
    lines = [series(f"space {t}", [t] * len(own), own, "range", 0) for t, own in enumerate(values)]
    ticks, heights = list(range(len(spaces))), _some_ticks(sorted({v for own in values for v in own}))
    return plot(f"{label}: {told}", axis("space", "whole"), axis(""), lines, ticks=ticks, small=True, heights=heights)


def _some_ticks(values: Sequence[float], most: int = 5) -> list[float]:
    """Some of many ticks, the ends among them."""
    return [values[k] for k in np.unique(np.linspace(0, len(values) - 1, most).round().astype(int))] if values else []


def _measured(t: int, space: Row, charts: dict[str, Chart], last: bool) -> Markup:
    """Figure 3: of each dimension the E-T errors of its values and the line through them (eq. 7), all on one scale."""
    errors = [e for own in space["trends"] for e in own["errors"] if number(e) is not None]
    if not errors:
        return Markup("")
    ends = (min(errors), max(errors))
    figures = []
    for k, own in enumerate(space["trends"]):
        values, label = [float(v) for v in own["dimension"]["values"]], str(own["label"])
        slope, intercept = equation_7(values, own["errors"])
        ends_x = [values[0], values[-1]]
        fitted = series("fitted", ends_x, [intercept + slope * v for v in ends_x], "line", 1)
        lines = [fitted, series("E-T error", values, own["errors"], "dots", 0)]
        says = f"slope {own['slope']:+.2f} % a step".replace("-", "\u2212")
        goes = "stays" if list(own["after"]) == values else f"moves to {_listed(own['after'])}"
        errors_of = ", ".join(f"{e:.2f} % at {v:g}" for v, e in zip(values, own["errors"], strict=True))
        title, y = f"{label}: E-T error {errors_of}; {says}", axis("", "percent", *ends)
        charts[f"trend-{t}-{k}"] = plot(title, axis(""), y, lines, small=True, ticks=_some_ticks(values, 4))
        figures.append(place(f"trend-{t}-{k}", label, several(says, None if last else tag("span", goes))))
    title = f"Space {t}: E-T error {space['et_error']:.2f} %" + (" (the last one)" if last else "")
    note = "E-T error (%) against each dimension's values, and the fitted line; all charts of a space have one scale."
    return several(tag("h3", title), paragraph(note, class_="note"), grid(*figures, class_="small"))


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{v:g}" for v in values)


def distributions(inputs: Inputs) -> Section | None:
    """The empirical distribution function of the errors of each space's networks."""
    rows = [row for row in inputs.analysis.get("distributions") or [] if isinstance(row, dict)]
    spread = [(str(row.get("name")), row.get("errors") or []) for row in rows]
    told = "How large a share of a space's networks has an error up to so much (S3, figure 6): "
    told += "the further left and up, the better the space."
    if not spread:
        spread = _from_histories(inputs)
        told += " Counted over the networks that were drawn to measure each space as a whole."
    found = [(name, [v for e in errors if (v := number(e)) is not None]) for name, errors in spread]
    found = [(name, errors) for name, errors in found if errors]
    if not found:
        return None
    lines = []
    for k, (name, errors) in enumerate(found):
        lines.append(series(f"{name} ({len(errors):,})", *markup.distribution(errors), "step", k % 4, k // 4))
    middles = ", ".join(f"{name} {np.median(errors):.1f} %" for name, errors in found)
    y = axis("networks with at most this error", "percent", 0, 100)
    chart = plot(f"Distribution of errors; medians: {middles}.", axis("error", "percent"), y, lines)
    return markup.chart_section("distributions", "How errors spread", told, "Error distribution functions", chart)


def _from_histories(inputs: Inputs) -> list[tuple[str, list[Any]]]:
    """The networks that were drawn to measure each space as a whole."""
    if not inputs.evolution:
        return []
    before = [inputs.run.folder / "spaces" / str(t) for t in range(inputs.recipe.evolve.rounds)]
    folders = [*(folder for folder in before if folder.exists()), inputs.run.folder]
    out: list[tuple[str, list[Any]]] = []
    for t, folder in enumerate(folders):
        run = Run(folder)
        known = {r.key: r.values["accuracy"] for r in history(run) if "accuracy" in r.values}
        if run.recipe_file.exists() and known:
            errors = drawn_errors(run.space(), run.recipe(), WHOLE, inputs.num_classes, known)
            out.append((f"space {t}", errors or []))
    return out
