"""What becomes of what was found: latency predicted and measured, networks retrained, compared and timed; and what
``analysis.json`` tells: how well the supernet ranks, three ways to get weights, seeds, how far blocks look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from superformer.errors import amount
from superformer.report import markup
from superformer.report.inputs import NOTHING, Inputs, Row, chance, cost_text, counted, number, percent, seconds
from superformer.report.markup import (
    Chart,
    Markup,
    Section,
    axis,
    bars,
    chart_section,
    paragraph,
    place,
    plot,
    series,
    several,
)

WAYS = {"inherited": ("inherited", 4), "finetuned": ("fine-tuned", 0), "scratch": ("from scratch", 1)}
"""Of getting weights: their names and colours."""
RUNTIMES = {"eager": 0, "compiled": 2, "onnx": 1}
"""Their colours."""
OPEN_ROWS, MOST_BARS = 8, 60
"""A table with so few rows is open at first; bars of a chart."""
COEFFICIENTS = {"pearson": "Pearson", "spearman": "Spearman", "kendall": "Kendall"}


def latency(inputs: Inputs) -> Section | None:
    """Of the front's best networks: what the table predicted, against what was measured."""
    rows = [r for r in inputs.front.get("front", []) if number(r.get("latency")) and number(r.get("measured"))]
    if not rows:
        return None
    off = np.asarray([r["latency"] / r["measured"] - 1 for r in rows])
    median, near = 100 * np.median(np.abs(off)), float(np.mean(np.abs(off) <= 0.1))
    limit = inputs.limits.get("latency", (0.0, np.inf))[1]
    label = f"Predicted against measured latency of {len(rows)} networks; predictions are off by {median:.0f} %"
    dots = series("networks of the front", [r["latency"] for r in rows], [r["measured"] for r in rows], "dots", 1)
    x, y = axis("predicted latency", "seconds"), axis("measured latency, median", "seconds")
    limited = None if np.isinf(limit) else limit
    chart = plot(f"{label} (median).", x, y, [dots], diagonal=True, band=0.1, limit=limited)
    options = inputs.front.get("options", {})
    threads = counted(int(options.get("threads", 1)), "thread")
    how = f"{options.get('runtime', 'eager')}, {threads}, batch {options.get('batch', 1)}"
    spread = f"from {100 * off.min():+.0f} to {100 * off.max():+.0f} %".replace("-", "\u2212")
    told = (
        f"Search uses latencies predicted from networks that were measured; {counted(len(rows), 'network')} of the "
        f"front, the most accurate first, {'was' if len(rows) == 1 else 'were'} then measured for real ({how}). "
        f"{percent(near, 0)} of them lie within 10 % of the prediction; the prediction is off by {median:.1f} % "
        f"(median), {spread}."
    )
    notes = [_fit_note(raw) for raw in inputs.fits if not raw.get("imported") and isinstance(raw.get("fit"), Mapping)]
    title, caption = "Latency, predicted and measured", "Above the line: slower than predicted"
    return chart_section("latency", title, told, caption, chart, *notes)


def _fit_note(raw: Row) -> Markup:
    """How good a table of predictions is."""
    fit = raw["fit"]
    threads = counted(int(raw.get("threads", 1)), "thread")
    how = f"{raw.get('runtime')}, {threads}, batch {raw.get('batch')}, on {raw.get('machine')}"
    note = f"The table of predictions ({how}) was fitted to {fit.get('networks')} networks; on "
    note += f"{fit.get('held_out')} others it was off by {percent(fit.get('median_error'), 1)} (median) "
    return paragraph(f"{note}with a rank correlation of {number(fit.get('rank')) or 0:.2f}.", class_="note")


def elsewhere(inputs: Inputs) -> Section | None:
    """What was measured on other devices and imported: predictions against what was measured, of networks that the fit
    did not see."""
    found = [raw for raw in inputs.fits if raw.get("imported") and isinstance(raw.get("fit"), Mapping)]
    figures, charts, notes = list[Markup](), dict[str, Chart](), list[Markup]()
    for k, raw in enumerate(found):
        what, device = str(raw.get("cost", "latency")), raw.get("device")
        unit = "seconds" if what == "latency" else f"{raw.get('unit')}"
        pairs = [p for p in raw["fit"].get("points") or [] if len(p) == 2 and None not in map(number, p)]
        label = (
            f"{what.capitalize()} of {device}, batch {raw.get('batch')}: {len(pairs)} networks that the fit did not see"
        )
        dots = series("networks that the fit did not see", [p[0] for p in pairs], [p[1] for p in pairs], "dots", 1)
        titles = [f"{kind} {what}" + ("" if what == "latency" else f", {unit}") for kind in ("predicted", "measured")]
        x, y = (axis(title, "seconds" if what == "latency" else "number") for title in titles)
        charts[f"elsewhere-{k}"] = plot(label, x, y, [dots], diagonal=True, band=0.1)
        figures.append(place(f"elsewhere-{k}", label))
        notes.append(_fit_note(raw))
    if not found:
        return None
    told = "Networks of the space were measured on other devices, and the times (or other values) imported. Searches "
    told += "with device=NAME, or a limit on such a cost, use predictions from them. What was found is not measured "
    told += "again there: do so before you rely on a limit."
    return Section("elsewhere", "Measured elsewhere", several(paragraph(told), markup.grid(*figures), *notes), charts)


def _error(row: Row) -> float | None:
    accuracy = number(row.get("accuracy"))
    return None if accuracy is None else 100 * (1 - accuracy)


def _named(row: Row) -> str:
    """Its name, and its key (at its own size); of a file, the file's name."""
    name, key = str(row.get("name")), row.get("of", row.get("key"))
    name = PurePath(name).stem if name.endswith(".json") else name
    return f"{name} ({key})" if key and name != key else name


def retrained(inputs: Inputs) -> Section | None:
    """Inherited, fine-tuned and trained from scratch (S3, figure 5)."""
    rows = inputs.retrained
    if not rows:
        return None
    several_networks = len({_named(r) for r in rows}) > 1
    shown, said, lines = [], [], []
    for r in rows:
        way, colour = WAYS.get(str(r.get("weights")), (str(r.get("weights")), 3))
        way += f", then {r.get('img_size')} pixels" if r.get("key") != r.get("of", r.get("key")) else ""
        own = [n for n in r.get("seeds") or () if number(n) is not None]
        way += f", seed {own[0]}" if len(own) == 1 and own[0] != inputs.recipe.seed else ""
        error, group = _error(r), _named(r) if several_networks else None
        if error is not None:
            shown.append({"name": way, "group": group, "value": error, "colour": colour})
        said.append(f"{_named(r)} {way} {error or 0:.2f} %")
        plain = [NOTHING if (n := number(r.get(key))) is None else f"{n:g}" for key in ("img_size", "epochs")]
        told = str(r.get("from") or NOTHING)
        lines.append([_named(r), way, told, *_costs(r), *plain, seconds(r.get("seconds") or None)])
    chart = bars("Test error: " + "; ".join(said), axis("test error", "percent", 0), shown)
    columns = ["network", "weights", "from", "test accuracy", "MACs", "parameters", "pixels", "epochs", "time"]
    told = "On the test pictures: with the weights of the supernet, fine-tuned from them, "
    told += "or trained from scratch (S3, figure 5)."
    if any(number(r.get("deviation")) is not None for r in rows):
        told += " Of several seeds: the mean, and the standard deviation; the run hands over the first seed's network."
    listed = markup.table(columns, lines, "Retraining, on the test pictures", words=3)
    caption = "Test error: shorter is better"
    return chart_section("retrained", "Inherited against retrained", told, caption, chart, listed)


def _accuracy(row: Row) -> str:
    """In percent; of several seeds, the mean and the standard deviation."""
    deviation = number(row.get("deviation"))
    if deviation is None:
        return percent(row.get("accuracy")) + chance(row.get("accuracy"), row.get("pictures"))
    return f"{percent(row.get('accuracy'))} ± {percent(deviation)} ({len(row.get('seeds') or ())} seeds)"


def _costs(row: Row) -> list[str]:
    return [_accuracy(row), cost_text("macs", row.get("macs")), cost_text("params", row.get("params"))]


def comparison(inputs: Inputs) -> Section | None:
    """The found network against a hand-made and a random one."""
    rows = [r for r in inputs.comparison if _error(r) is not None]
    if not rows:
        return None
    timed = any(number(r.get("latency")) is not None for r in rows)
    noted = any(r.get("note") for r in rows)
    columns = ["network", *["what it is"] * noted, "test accuracy", "MACs", "parameters", *["latency"] * timed]
    shown, said, lines = [], [], []
    for r in rows:
        name = str(r.get("name"))
        shown.append({"name": name, "value": _error(r), "colour": 1 if name.startswith("found") else 4})
        said.append(f"{r.get('name')} {_error(r):.2f} %")
        note, time = [r.get("note", "")] * noted, [seconds(r.get("latency"))] * timed
        lines.append([_named(r), *note, *_costs(r), *time])
    chart = bars("Test error: " + ", ".join(said), axis("test error", "percent", 0), shown)
    listed = markup.table(columns, lines, "Comparison, on the test pictures", words=2 if noted else 1)
    told = "On the test pictures, which neither training nor search has seen."
    if any(r.get("pictures") for r in rows):
        told += " Behind each accuracy: one standard error."
    caption = "Test error: shorter is better"
    return chart_section("comparison", "Against baselines", told, caption, chart, listed)


def bench(inputs: Inputs) -> Section | None:
    """Latency and throughput that ``superformer bench`` measured."""
    rows = [r for r in inputs.bench.get("rows") or [] if isinstance(r, dict) and number(r.get("median")) is not None]
    if not rows:
        return None
    smallest = min(number(r.get("batch")) or 1 for r in rows)
    one = [r for r in rows if r.get("batch", 1) == smallest]
    order = list(dict.fromkeys(map(_named, one)))
    one = sorted(one, key=lambda r: order.index(_named(r)))[:MOST_BARS]
    shown = []
    for r in one:
        name, group = str(r.get("runtime")), _named(r) if len(order) > 1 else None
        bar = {"name": name, "group": group, "value": r["median"], "to": r.get("p90")}
        shown.append(bar | {"colour": RUNTIMES.get(name, 3)})
    label = "Latency, median: " + ", ".join(f"{_named(r)} {r.get('runtime')} {seconds(r['median'])}" for r in one)
    columns = ["network", "runtime", "device", "threads", "batch", "median", "p90", "pictures / s"]
    lines = []
    for r in rows:
        fast = number(r.get("throughput"))
        times = [seconds(r["median"]), seconds(r.get("p90")), NOTHING if fast is None else amount(fast)]
        lines.append([_named(r), r.get("runtime"), r.get("device", "cpu"), r.get("threads"), r.get("batch"), *times])
    failed = [r for r in inputs.bench.get("rows") or [] if "error" in r]
    problems = [f"{_named(r)} does not run with {r['runtime']}: {r['error']}." for r in failed]
    listed = markup.table(columns, lines, "Latency and throughput", words=2)
    body = several(
        paragraph(f"Measured on {inputs.bench['machine']}.") if inputs.bench.get("machine") else None,
        paragraph(" ".join(problems[:8])) if problems else None,
        place("bench", "Latency: the bar is the median, the line reaches to the slowest tenth"),
        markup.details("The same as a table", listed, open=len(lines) <= OPEN_ROWS),
    )
    return Section("bench", "Speed here", body, {"bench": bars(label, axis("latency", "seconds", 0), shown)})


def int8(inputs: Inputs) -> Section | None:
    """Networks before and after quantisation to 8 bits."""
    pair = ("accuracy", "median", "size")
    whole = [r for r in inputs.int8 if None not in [number(r.get(p + k)) for p in ("", "int8_") for k in pair]]
    if not whole:
        return None
    shown, lines = list[dict[str, Any]](), list[list[object]]()
    for r in whole:
        for prefix, name, colour in (("", "float", 4), ("int8_", f"int8, {r['how']}", 1)):
            own = {key: r.get(prefix + key) for key in (*pair, "p90")}
            bar = {"name": name, "group": _named(r) if len(whole) > 1 else None, "colour": colour}
            shown.append(bar | {"value": own["median"], "to": number(own["p90"])})
            agreed = percent(r.get("agreed")) if prefix else NOTHING
            costs = [seconds(own["median"]), f"{(number(own['size']) or 0) / 1e6:.3g} MB"]
            accuracy = percent(own["accuracy"]) + chance(own["accuracy"], r.get("pictures"))
            lines.append([_named(r), name, accuracy, agreed, *costs])
    label = "Latency, median: " + ", ".join(f"{line[0]} {line[1]} {line[4]}" for line in lines)
    columns = ["network", "weights", "test accuracy", "same class", "latency", "file"]
    told = f"In ONNX Runtime, on {whole[-1].get('machine')}, {counted(int(whole[-1].get('threads', 1)), 'thread')}. "
    told += "Accuracies are those of the test pictures; static scales were found on training pictures."
    listed = markup.table(columns, lines, "Before and after quantisation", words=2)
    chart = bars(label, axis("latency", "seconds", 0), shown[:MOST_BARS])
    caption = "Latency of one picture: the bar is the median, the line reaches to the slowest tenth"
    return chart_section("int8", "In 8 bits", told, caption, chart, listed)


def _analysis_rows(inputs: Inputs, part: str) -> list[Row]:
    """A list of an analysis; a part that is one object is a list of one."""
    found = inputs.analysis.get(part)
    return [row for row in (found if isinstance(found, list) else [found]) if isinstance(row, dict)]


def correlations(inputs: Inputs) -> Section | None:
    """Accuracy in the supernet against that of the networks by themselves, and against MACs (ViTAS v2, figure 5)."""
    trained, budgets = _analysis_rows(inputs, "correlations"), _analysis_rows(inputs, "budgets")
    parts = [("accuracy in the supernet", "percent", 100.0, "accuracy by itself", row) for row in trained]
    parts += [("MACs", "amount", 1.0, "accuracy in the supernet", row) for row in budgets]
    if not parts:
        return None
    figures, charts, lines = list[Markup](), dict[str, Chart](), list[list[object]]()
    for k, (x, quantity, times, y, row) in enumerate(parts):
        pairs = [p for p in row.get("points") or [] if isinstance(p, Sequence) and len(p) == 2]
        dots = [(times * p[0], 100 * p[1]) for p in pairs if None not in map(number, p)]
        if dots:
            label = f"{row.get('name')}: {len(dots)} networks, Spearman's correlation {_coefficient(row, 'spearman')}."
            drawn = series("networks", [a for a, _ in dots], [b for _, b in dots], "dots", 0)
            charts[f"correlation-{k}"] = plot(label, axis(x, quantity), axis(y, "percent"), [drawn])
            figures.append(place(f"correlation-{k}", row.get("name")))
        lines.append([row.get("name"), len(dots), *(_coefficient(row, name) for name in COEFFICIENTS)])
        for part in row.get("groups") or []:
            inside = [_coefficient(part, name) for name in COEFFICIENTS]
            lines.append([f"of {part.get('name')} MACs", part.get("n"), *inside])
    told = "Whether the supernet ranks networks as they rank by themselves (ViTAS v2, figure 5). "
    told += "In brackets: what holds 95 % of resamples."
    listed = markup.table(["between", "networks", *COEFFICIENTS.values()], lines, "Correlations")
    body = several(paragraph(told), markup.grid(*figures), listed)
    return Section("correlations", "How well the supernet ranks", body, charts)


def _coefficient(row: Mapping[str, Any], name: str) -> str:
    value = number(row.get(name))
    ends = (row.get("intervals") or {}).get(name)
    said = NOTHING if value is None else f"{value:.2f}"
    return (f"{said} ({ends[0]:.2f} to {ends[1]:.2f})" if ends else said).replace("-", "\u2212")


def weights(inputs: Inputs) -> Section | None:
    """Several networks, each with inherited, fine-tuned and new weights (S3, figure 5)."""
    rows = [row for row in _analysis_rows(inputs, "weights") if all(number(row.get(way)) is not None for way in WAYS)]
    if not rows:
        return None
    rows.sort(key=lambda row: float(row["inherited"]))
    x, lines, means = list(range(1, len(rows) + 1)), [], []
    for way, (name, colour) in WAYS.items():
        lines.append(series(name, x, [100 * row[way] for row in rows], "both", colour))
        means.append(f"{name} {percent(sum(float(row[way]) for row in rows) / len(rows))}")
    label = f"Accuracy on the search split, on average: {', '.join(means)}."
    chart = plot(label, axis("network", "whole"), axis("accuracy, search split", "percent"), lines, together=True)
    told = f"{len(rows)} random networks, each with the weights it has in the supernet, fine-tuned, "
    told += f"and from scratch (S3, figure 5). {label}"
    return chart_section("weights", "Three ways to get weights", told, "Accuracy by network", chart)


def seeds(inputs: Inputs) -> Section | None:
    """What searches with other seeds find."""
    found = next(iter(_analysis_rows(inputs, "seeds")), {})
    best, shared = found.get("best") or {}, found.get("overlap") or {}
    steps = [row for row in found.get("attainment") or [] if number(row.get("mean")) is not None]
    if not steps:
        return None
    x = [row["macs"] for row in steps]
    looks = {"least": ("worst seed", 4, 1), "most": ("best seed", 4, 2), "mean": ("mean", 1, 0)}
    lines = [series(name, x, [100 * row[key] for row in steps], "step", *look) for key, (name, *look) in looks.items()]
    label = f"Best accuracy within a budget of MACs over {found.get('seeds')} searches."
    y = axis("best accuracy, search split", "percent")
    chart = plot(label, axis("MACs, at most", "amount"), y, lines, together=True)
    far = f"{number(shared.get('distance')) or 0:.2f} (0: the same, 1: the opposite in every choice)"
    facts: list[tuple[object, object]] = [
        ("searches", found.get("seeds")),
        ("best accuracy", f"{percent(best.get('mean'))} \u00b1 {percent(best.get('std'))}"),
        ("architectures that two fronts share", percent(shared.get("jaccard"), 0)),
        ("distance to the nearest of another front", far),
    ]
    told = "The same search with several seeds: how much of what was found is chance."
    body = several(paragraph(told), markup.pairs(facts), place("seeds", "Best accuracy within a budget"))
    return Section("seeds", "Several seeds", body, {"seeds": chart})


def attention(inputs: Inputs) -> Section | None:
    """How far each block looks (S3, figure 4)."""
    rows = [row for row in _analysis_rows(inputs, "attention") if number(row.get("mean")) is not None]
    if not rows:
        return None
    names = [str(row.get("block")) for row in rows]
    kinds = {"top5": ("top 5 keys", 1), "top10": ("top 10 keys", 0), "mean": ("all keys, by their attention", 4)}
    x = list(range(len(rows)))
    lines = [series(name, x, [r.get(key) for r in rows], "both", colour) for key, (name, colour) in kinds.items()]
    each = ", ".join(f"block {name} {row['mean']:.1f}" for name, row in zip(names, rows, strict=True))
    label = f"Mean distance in pixels to the keys attended to: {each}."
    chart = plot(label, axis("block", "whole", names=names), axis("distance (pixels)", low=0), lines, together=True)
    told = f"How far the keys are that a query attends to most, in {rows[0].get('arch')} (S3, figure 4); "
    told += "2-3 is stage 2, block 3."
    return chart_section("attention", "How far blocks look", told, "Distance of attention", chart)
