"""What becomes of what was found: latency predicted and measured, networks retrained, compared and timed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from superformer.report.charts import axis, bars, plot, series
from superformer.report.inputs import Inputs, Row
from superformer.report.markup import Markup, paragraph, table, tag
from superformer.report.section import Section, place, several
from superformer.report.words import cost, counted, number, percent, seconds
from superformer.units import amount

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
    label = (
        f"Predicted against measured latency of {len(rows)} networks; predictions are off by {100 * np.median(np.abs(off)):.0f} % (median)."
    )
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
    label = "Test error: " + "; ".join(f"{_named(r)} {way} {_error(r) or 0:.2f} %" for r, (way, _) in zip(rows, ways, strict=True))
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
    return Section("retrained", "Inherited against retrained", body, {"retrained": bars(label, axis("test error", "percent", 0), shown)})


def _costs(row: Row) -> list[str]:
    return [percent(row.get("accuracy")), cost("macs", row.get("macs")), cost("params", row.get("params"))]


def _plain(value: object) -> str:
    return "\u2013" if (own := number(value)) is None else f"{own:g}"


def comparison(inputs: Inputs) -> Section | None:
    """The found network against a hand-made and a random one."""
    rows = [r for r in inputs.comparison if _error(r) is not None]
    if not rows:
        return None
    shown = [{"name": str(r.get("name")), "value": _error(r), "colour": 1 if str(r.get("name")).startswith("found") else 4} for r in rows]
    label = "Test error: " + ", ".join(f"{r.get('name')} {_error(r):.2f} %" for r in rows)
    timed = any(number(r.get("latency")) is not None for r in rows)
    noted = any(r.get("note") for r in rows)
    columns = ["network", *(["what it is"] if noted else []), "test accuracy", "MACs", "parameters", *(["latency"] if timed else [])]
    lines = [
        [_named(r), *([r.get("note", "")] if noted else []), *_costs(r), *([seconds(r.get("latency"))] if timed else [])] for r in rows
    ]
    body = several(
        paragraph("On the test pictures, which neither training nor search has seen."),
        place("comparison", "Test error: shorter is better"),
        table(columns, lines, "Comparison, on the test pictures", words=2 if noted else 1),
    )
    return Section("comparison", "Against baselines", body, {"comparison": bars(label, axis("test error", "percent", 0), shown)})


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
    failed = [f"{_named(r)} does not run with {r['runtime']}: {r['error']}." for r in inputs.bench.get("rows") or [] if "error" in r]
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
