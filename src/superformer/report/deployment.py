"""What becomes of what was found: latency predicted and measured, networks retrained, compared and timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from superformer.report.inputs import Inputs, Row, cost_text, counted, number, percent, seconds
from superformer.report.markup import (
    Chart,
    Markup,
    Section,
    axis,
    bars,
    grid,
    pairs,
    paragraph,
    place,
    plot,
    series,
    several,
    table,
    tag,
)
from superformer.settings import amount

WAYS = {"inherited": ("inherited", 4), "finetuned": ("fine-tuned", 0), "scratch": ("from scratch", 1)}
FEW = 8
"""Rows of a table that are shown at once."""
RUNTIMES = {"eager": 0, "compiled": 2, "onnx": 1}


def latency(inputs: Inputs) -> Section | None:
    """Of the front's best networks: what the table predicted, against what was measured."""
    rows = [r for r in inputs.front.get("front", []) if number(r.get("latency")) and number(r.get("measured"))]
    if not rows:
        return None
    off = np.asarray([r["latency"] / r["measured"] - 1 for r in rows])
    limit = inputs.limits.get("latency", (0.0, np.inf))[1]
    label = f"Predicted against measured latency of {len(rows)} networks; predictions are off by {100 * np.median(np.abs(off)):.0f} % (median)."
    near = float(np.mean(np.abs(off) <= 0.1))
    chart = plot(
        label, axis("predicted latency", "seconds"), axis("measured latency, median", "seconds"),
        [series("networks of the front", [r["latency"] for r in rows], [r["measured"] for r in rows], "dots", 1)],
        diagonal=True, band=0.1, limit=None if np.isinf(limit) else limit,
    )  # fmt: skip
    options = inputs.front.get("options", {})
    how = f"{options.get('runtime', 'eager')}, {counted(int(options.get('threads', 1)), 'thread')}, batch {options.get('batch', 1)}"
    spread = f"from {100 * off.min():+.0f} to {100 * off.max():+.0f} %".replace("-", "\u2212")
    told = (
        f"Search uses latencies predicted from networks that were measured; {counted(len(rows), 'network')} of the front, the most "
        f"accurate first, {'was' if len(rows) == 1 else 'were'} then measured for real ({how}). {percent(near, 0)} of them lie within 10 % "
        f"of the prediction; the prediction is off by {100 * np.median(np.abs(off)):.1f} % (median), {spread}."
    )
    fits = [_fit(raw) for raw in inputs.fits if isinstance(raw.get("fit"), Mapping)]
    return Section(
        "latency",
        "Latency, predicted and measured",
        several(paragraph(told), place("latency", "Above the line: slower than predicted"), *fits),
        {"latency": chart},
    )


def _fit(raw: Mapping[str, Any]) -> Markup:
    fit = raw["fit"]
    how = f"{raw.get('runtime')}, {counted(int(raw.get('threads', 1)), 'thread')}, batch {raw.get('batch')}, on {raw.get('machine')}"
    told = (
        f"The table of predictions ({how}) was fitted to {fit.get('networks')} networks; on {fit.get('held_out')} others it was off by "
        f"{percent(fit.get('median_error'), 1)} (median) with a rank correlation of {number(fit.get('rank')) or 0:.2f}."
    )
    return paragraph(told, class_="note")


def _error(row: Row) -> float | None:
    accuracy = number(row.get("accuracy"))
    return None if accuracy is None else 100 * (1 - accuracy)


def _named(row: Row) -> str:
    """Its name, and its key; of a file, the file's name."""
    name, key = str(row.get("name")), row.get("key")
    name = PurePath(name).stem if name.endswith(".json") else name
    return f"{name} ({key})" if key and name != key else name


def retrained(inputs: Inputs) -> Section | None:
    """Inherited, fine-tuned and trained from scratch (S3, figure 5)."""
    rows = inputs.retrained
    if not rows:
        return None
    ways = [WAYS.get(str(r.get("weights")), (str(r.get("weights")), 3)) for r in rows]
    several_names = len({_named(r) for r in rows}) > 1
    shown = [
        {"name": way, "group": _named(r) if several_names else None, "value": _error(r), "colour": colour}
        for r, (way, colour) in zip(rows, ways, strict=True)
        if _error(r) is not None
    ]
    label = "Test error: " + "; ".join(
        f"{_named(r)} {way} {_error(r) or 0:.2f} %" for r, (way, _) in zip(rows, ways, strict=True)
    )
    lines = []
    for r, (way, _) in zip(rows, ways, strict=True):
        time = seconds(r.get("seconds")) if number(r.get("seconds")) else "\u2013"
        lines.append([_named(r), way, *_costs(r), _plain(r.get("img_size")), _plain(r.get("epochs")), time])
    columns = ["network", "weights", "test accuracy", "MACs", "parameters", "pixels", "epochs", "time"]
    told = "On the test pictures: with the weights of the supernet, fine-tuned from them, or trained from scratch (S3, figure 5)."
    body = several(
        paragraph(told),
        place("retrained", "Test error: shorter is better"),
        table(columns, lines, "Retraining, on the test pictures", words=2),
    )
    return Section(
        "retrained",
        "Inherited against retrained",
        body,
        {"retrained": bars(label, axis("test error", "percent", 0), shown)},
    )


def _costs(row: Row) -> list[str]:
    return [percent(row.get("accuracy")), cost_text("macs", row.get("macs")), cost_text("params", row.get("params"))]


def _plain(value: object) -> str:
    return "\u2013" if (own := number(value)) is None else f"{own:g}"


def comparison(inputs: Inputs) -> Section | None:
    """The found network against a hand-made and a random one."""
    rows = [r for r in inputs.comparison if _error(r) is not None]
    if not rows:
        return None
    shown = [
        {"name": str(r.get("name")), "value": _error(r), "colour": 1 if str(r.get("name")).startswith("found") else 4}
        for r in rows
    ]
    label = "Test error: " + ", ".join(f"{r.get('name')} {_error(r):.2f} %" for r in rows)
    timed = any(number(r.get("latency")) is not None for r in rows)
    noted = any(r.get("note") for r in rows)
    columns = [
        "network",
        *(["what it is"] if noted else []),
        "test accuracy",
        "MACs",
        "parameters",
        *(["latency"] if timed else []),
    ]
    lines = [
        [
            _named(r),
            *([r.get("note", "")] if noted else []),
            *_costs(r),
            *([seconds(r.get("latency"))] if timed else []),
        ]
        for r in rows
    ]
    body = several(
        paragraph("On the test pictures, which neither training nor search has seen."),
        place("comparison", "Test error: shorter is better"),
        table(columns, lines, "Comparison, on the test pictures", words=2 if noted else 1),
    )
    return Section(
        "comparison", "Against baselines", body, {"comparison": bars(label, axis("test error", "percent", 0), shown)}
    )


def bench(inputs: Inputs) -> Section | None:
    """Latency and throughput that ``superformer bench`` measured."""
    rows = [r for r in inputs.bench.get("rows") or [] if isinstance(r, dict) and number(r.get("median")) is not None]
    if not rows:
        return None
    one = [r for r in rows if r.get("batch", 1) == min(number(r.get("batch")) or 1 for r in rows)]
    order = list(dict.fromkeys(map(_named, one)))
    one.sort(key=lambda r: order.index(_named(r)))
    groups = len(order) > 1
    shown = [
        {"name": str(r.get("runtime")), "group": _named(r) if groups else None, "value": r["median"], "to": r.get("p90"),
         "colour": RUNTIMES.get(str(r.get("runtime")), 3)}
        for r in one[:60]
    ]  # fmt: skip
    label = "Latency, median: " + ", ".join(f"{_named(r)} {r.get('runtime')} {seconds(r['median'])}" for r in one[:60])
    columns = ["network", "runtime", "threads", "batch", "median", "p90", "pictures / s"]
    lines = [
        [_named(r), r.get("runtime"), r.get("threads"), r.get("batch"), seconds(r["median"]), seconds(r.get("p90")),
         "\u2013" if (fast := number(r.get("throughput"))) is None else amount(fast)]
        for r in rows
    ]  # fmt: skip
    on = f"Measured on {inputs.bench['machine']}." if inputs.bench.get("machine") else None
    failed = [
        f"{_named(r)} does not run with {r['runtime']}: {r['error']}."
        for r in inputs.bench.get("rows") or []
        if "error" in r
    ]
    body = several(
        paragraph(on) if on else None,
        paragraph(" ".join(failed[:8])) if failed else None,
        place("bench", "Latency: the bar is the median, the line reaches to the slowest tenth"),
        tag(
            "details",
            tag("summary", "The same as a table"),
            table(columns, lines, "Latency and throughput", words=2),
            open=len(lines) <= FEW,
        ),
    )
    return Section("bench", "Speed here", body, {"bench": bars(label, axis("latency", "seconds", 0), shown)})


# What ``analysis.json`` tells: how well the supernet ranks, three ways to get weights, what seeds agree on, how far
# blocks look.


COEFFICIENTS = {"pearson": "Pearson", "spearman": "Spearman", "kendall": "Kendall"}


def rows_of(inputs: Inputs, part: str) -> list[Row]:
    """A list of an analysis; a part that is one object is a list of one."""
    found = inputs.analysis.get(part)
    return [row for row in (found if isinstance(found, list) else [found]) if isinstance(row, dict)]


def correlations(inputs: Inputs) -> Section | None:
    """Accuracy in the supernet against that of the networks by themselves, and against MACs (ViTAS v2, figure 5)."""
    parts = [
        ("accuracy in the supernet", "percent", 100.0, "accuracy by itself", row)
        for row in rows_of(inputs, "correlations")
    ]
    parts += [("MACs", "amount", 1.0, "accuracy in the supernet", row) for row in rows_of(inputs, "budgets")]
    if not parts:
        return None
    figures: list[Markup] = []
    charts: dict[str, Chart] = {}
    lines: list[list[object]] = []
    for k, (x, quantity, times, y, row) in enumerate(parts):
        dots = [(times * p[0], 100 * p[1]) for p in row.get("points") or [] if _pair(p)]
        if dots:
            label = f"{row.get('name')}: {len(dots)} networks, Spearman's correlation {_coefficient(row, 'spearman')}."
            drawn = series("networks", [a for a, _ in dots], [b for _, b in dots], "dots", 0)
            charts[f"correlation-{k}"] = plot(label, axis(x, quantity), axis(y, "percent"), [drawn])
            figures.append(place(f"correlation-{k}", row.get("name")))
        lines.append([row.get("name"), len(dots), *(_coefficient(row, name) for name in COEFFICIENTS)])
        for part in row.get("groups") or []:
            lines.append(
                [f"of {part.get('name')} MACs", part.get("n"), *(_coefficient(part, name) for name in COEFFICIENTS)]
            )
    told = "Whether the supernet ranks networks as they rank by themselves (ViTAS v2, figure 5). In brackets: what holds 95 % of resamples."
    listed = table(["between", "networks", *COEFFICIENTS.values()], lines, "Correlations")
    return Section(
        "correlations", "How well the supernet ranks", several(paragraph(told), grid(*figures), listed), charts
    )


def _pair(point: object) -> bool:
    return isinstance(point, Sequence) and len(point) == 2 and None not in map(number, point)


def _coefficient(row: Mapping[str, Any], name: str) -> str:
    value = number(row.get(name))
    ends = (row.get("intervals") or {}).get(name)
    said = "\u2013" if value is None else f"{value:.2f}"
    return (f"{said} ({ends[0]:.2f} to {ends[1]:.2f})" if ends else said).replace("-", "\u2212")


def weights(inputs: Inputs) -> Section | None:
    """Several networks, each with inherited, fine-tuned and new weights (S3, figure 5)."""
    ways = {"inherited": 4, "finetuned": 0, "scratch": 1}
    rows = [row for row in rows_of(inputs, "weights") if all(number(row.get(way)) is not None for way in ways)]
    if not rows:
        return None
    rows.sort(key=lambda row: float(row["inherited"]))
    names = {"inherited": "inherited", "finetuned": "fine-tuned", "scratch": "from scratch"}
    x = list(range(1, len(rows) + 1))
    lines = [series(names[way], x, [100 * row[way] for row in rows], "both", colour) for way, colour in ways.items()]
    middle = {way: sum(float(row[way]) for row in rows) / len(rows) for way in ways}
    label = (
        "Accuracy on the search split, on average: "
        + ", ".join(f"{names[way]} {percent(middle[way])}" for way in ways)
        + "."
    )
    chart = plot(label, axis("network", "whole"), axis("accuracy, search split", "percent"), lines, together=True)
    told = f"{len(rows)} random networks, each with the weights it has in the supernet, fine-tuned, and from scratch (S3, figure 5). {label}"
    return Section(
        "weights",
        "Three ways to get weights",
        several(paragraph(told), place("weights", "Accuracy by network")),
        {"weights": chart},
    )


def seeds(inputs: Inputs) -> Section | None:
    """What searches with other seeds find."""
    found = next(iter(rows_of(inputs, "seeds")), {})
    best, shared = found.get("best") or {}, found.get("overlap") or {}
    steps = [row for row in found.get("attainment") or [] if number(row.get("mean")) is not None]
    if not steps:
        return None
    x = [row["macs"] for row in steps]
    lines = [series(title, x, [100 * row[name] for row in steps], "step", colour, dash) for name, title, colour, dash in (
        ("least", "worst seed", 4, 1), ("most", "best seed", 4, 2), ("mean", "mean", 1, 0))]  # fmt: skip
    label = f"Best accuracy within a budget of MACs over {found.get('seeds')} searches."
    chart = plot(
        label, axis("MACs, at most", "amount"), axis("best accuracy, search split", "percent"), lines, together=True
    )
    facts: list[tuple[object, object]] = [
        ("searches", found.get("seeds")),
        ("best accuracy", f"{percent(best.get('mean'))} \u00b1 {percent(best.get('std'))}"),
        ("architectures that two fronts share", percent(shared.get("jaccard"), 0)),
        (
            "distance to the nearest of another front",
            f"{number(shared.get('distance')) or 0:.2f} (0: the same, 1: the opposite in every choice)",
        ),
    ]
    told = "The same search with several seeds: how much of what was found is chance."
    return Section(
        "seeds",
        "Several seeds",
        several(paragraph(told), pairs(facts), place("seeds", "Best accuracy within a budget")),
        {"seeds": chart},
    )


def attention(inputs: Inputs) -> Section | None:
    """How far each block looks (S3, figure 4)."""
    rows = [row for row in rows_of(inputs, "attention") if number(row.get("mean")) is not None]
    if not rows:
        return None
    names = [str(row.get("block")) for row in rows]
    kinds = [("top5", "top 5 keys", 1), ("top10", "top 10 keys", 0), ("mean", "all keys, by their attention", 4)]
    lines = [
        series(title, list(range(len(rows))), [row.get(name) for row in rows], "both", colour)
        for name, title, colour in kinds
    ]
    each = ", ".join(f"block {name} {row['mean']:.1f}" for name, row in zip(names, rows, strict=True))
    label = f"Mean distance in pixels to the keys attended to: {each}."
    chart = plot(label, axis("block", "whole", names=names), axis("distance (pixels)", low=0), lines, together=True)
    told = f"How far the keys are that a query attends to most, in {rows[0].get('arch')} (S3, figure 4); 2-3 is stage 2, block 3."
    return Section(
        "attention",
        "How far blocks look",
        several(paragraph(told), place("attention", "Distance of attention")),
        {"attention": chart},
    )
