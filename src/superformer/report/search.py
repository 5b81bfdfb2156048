"""What the search found: the headline, the front among everything that was evaluated, and how the search went."""

from __future__ import annotations

import json
import shlex
from itertools import groupby
from typing import Any

import numpy as np

from superformer.draw import draw
from superformer.report import markup
from superformer.report.inputs import (
    COSTS,
    MEASURED,
    Inputs,
    Points,
    Row,
    chance,
    cost_text,
    count,
    counted,
    number,
    percent,
)
from superformer.report.markup import Markup, Section, axis, details, paragraph, plot, series, several, tag
from superformer.space.arch import Arch

DRAWN = 40
"""Networks of the front that are drawn in full; others are drawn by the page."""
ROOM = 1_000_000
"""Characters for drawings."""
ROWS, OPEN_ROWS = 60, 12
"""Of the table of the front; one with so few is open at first."""
MOST_SPECKS = 2500
"""Networks that are drawn of a search's progress."""
BY_HAND = "What one would draw by hand, the largest network uniformly scaled to the same limits,"


def headline(inputs: Inputs) -> Section:
    """The answer, in a sentence and a few numbers."""
    best = inputs.best
    if best is None:
        return Section("found", "Not searched yet" if inputs.trained else "Not trained yet", _so_far(inputs))
    told = f"search split, inherited weights{_error(best['accuracy'], _searched(inputs))}"
    tiles = [tile(percent(best["accuracy"]), "accuracy", told)]
    tested = [
        r
        for r in inputs.retrained
        if r.get("of", r.get("key")) == str(best["key"]) and number(r.get("accuracy")) is not None
    ]
    if tested:  # as the run hands it over: as it was retrained last
        way = str(tested[-1].get("weights"))
        way = {"finetuned": "fine-tuned", "scratch": "from-scratch"}.get(way, way)
        seeds = [n for n in tested[-1].get("seeds") or () if number(n) is not None]
        way += f" weights, mean of {len(seeds)} seeds" if len(seeds) > 1 else " weights"
        way += _error(tested[-1]["accuracy"], tested[-1].get("pictures"))
        tiles.insert(0, tile(percent(tested[-1]["accuracy"]), "test accuracy", way))
    for name, title in inputs.costs.items():
        if name in best:
            value = best.get(MEASURED.get(name, ""), best[name])
            how = "measured " if MEASURED.get(name) in best else "predicted " if _predicted(inputs, name) else ""
            tiles.append(tile(inputs.cost_text(name, value), how + title, _limit(inputs, name, value)))
    known = counted(int(inputs.front.get("evaluated", 0)), "network")
    first = f"The best of {known} that were evaluated, in a space of {count(inputs.space.size)}, is "
    against = f"On the test pictures: {'; '.join(kinds(inputs.comparison))}." if inputs.comparison else ""
    if (by_hand := inputs.baseline) is not None:
        reached = percent(by_hand["accuracy"]) + chance(by_hand["accuracy"], _searched(inputs))
        scaled = f"{BY_HAND} reaches {reached} on the search split, with inherited weights too. "
        against = scaled + against
    lead = paragraph(first, tag("code", best["key"]), ". ", against, class_="lead")
    return Section("found", "What was found", several(lead, tag("div", *tiles, class_="tiles")))


def kinds(rows: list[Row]) -> list[str]:
    """The mean accuracy of each kind of network that was compared, with the standard error of that mean."""
    out, known = [], [r for r in rows if number(r.get("accuracy")) is not None]
    for kind in dict.fromkeys(str(r.get("kind", r.get("name"))) for r in known):
        some = [r for r in known if str(r.get("kind", r.get("name"))) == kind]
        mean, pictures = float(np.mean([r["accuracy"] for r in some])), sum(r.get("pictures") or 0 for r in some)
        several_of = f" (mean of {len(some)})" if len(some) > 1 else ""
        out.append(f"{kind} {percent(mean)}{chance(mean, pictures)}{several_of}")
    return out


def _searched(inputs: Inputs) -> object:
    """Pictures of the search split."""
    return (inputs.facts.get("pictures") or {}).get("search")


def _error(accuracy: object, pictures: object) -> str:
    """One standard error, in words."""
    found = chance(accuracy, pictures)
    return f";{found} points (one standard error)" if found else ""


def _so_far(inputs: Inputs) -> Markup:
    """The headline of a run without a front: what its supernet reaches."""
    health = inputs.of("health")
    space = f"space of {count(inputs.space.size)} architectures"
    if not inputs.trained and not health:
        return paragraph(f"The run has a recipe and a {space}, and no trained supernet yet.", class_="lead")
    last = health[-1].get("accuracy", {}) if health else {}
    state = "The supernet is trained" if inputs.trained else "The supernet is still in training"
    ends = [(name, value) for name, value in last.items() if name in ("smallest", "largest")]
    tiles = [tile(percent(value), name, "accuracy, search split") for name, value in ends]
    lead = paragraph(f"{state}; its {space} has not been searched.", class_="lead")
    return several(lead, tag("div", *tiles, class_="tiles") if tiles else None)


def tile(value: str, name: str, note: object = None) -> Markup:
    """A number of a headline."""
    return tag("div", tag("strong", value), tag("span", name), tag("small", note) if note else None, class_="tile")


def _predicted(inputs: Inputs, name: str) -> bool:
    return name in MEASURED or name in inputs.imported


def _limit(inputs: Inputs, name: str, value: object) -> Markup | str | None:
    """What was allowed, and whether it was kept."""
    if name not in inputs.limits:
        return None
    (low, high), own = inputs.limits[name], number(value)
    if own is not None and not low <= own <= high:
        end, where = (high, "above") if own > high else (low, "below")
        return tag("span", f"{where} the limit of {inputs.cost_text(name, end)}", class_="warning")
    least, most = inputs.cost_text(name, low), inputs.cost_text(name, high)
    return f"limit {most}" if np.isfinite(high) else f"at least {least}"


def front(inputs: Inputs, points: Points) -> tuple[Section, dict[str, Any]]:
    """The section, and what the page needs to draw the front and the architectures."""
    rows = inputs.front.get("front", [])
    *others, last = [inputs.costs.get(name, name) for name in inputs.front.get("objectives", ())] or [""]
    shown = len(points.shown())
    told = f"Each dot is one of the {counted(len(points), 'architecture')} that were evaluated"
    told += f" ({shown:,} are drawn: the front, the best, and some of the others)" if shown < len(points) else ""
    told += ": accuracy on the search split, with weights inherited from the supernet. "
    if rows:
        told += f"{counted(len(rows), 'network')} make up the front of {', '.join(others)} and {last}: "
        told += "no other was at least as good in all and better in one"
        told += " (of equal accuracy the lower loss counts as better). " if "loss" in rows[0] else ". "
    if any("moved_accuracy" in record.values for record in points.records):
        told += "Of the most accurate, the best was chosen by accuracy and loss together, also on moved copies of the "
        told += "pictures. "
    how = "Point or tap to see values, click to draw the network. With the keyboard: arrow keys go "
    how += "along the front, with Shift through every network by cost" if rows else "through the networks by cost"
    how += "; Enter draws it."
    chart = tag(
        "div",
        tag("div", id="front-controls", class_="controls"),
        tag("figure", tag("div", id="front-chart", class_="canvas"), class_="chart full"),
        tag("p", how, class_="note screen"),
        tag("div", id="chosen", class_="chosen"),
    )
    title = "Accuracy and cost" if rows else "Networks evaluated so far"
    section = Section("front", title, several(paragraph(told), chart, _table(inputs, rows) if rows else None))
    limits = {name: [low or None, None if np.isinf(high) else high] for name, (low, high) in inputs.limits.items()}
    first = next((str(name) for name in inputs.front.get("objectives", ()) if name in inputs.costs), "macs")
    data = {"limits": limits, "drawings": _drawings(rows), "axis": first, "folder": shlex.quote(inputs.folder)}
    data["units"] = {name: table.unit for name, table in inputs.imported.items()}
    if (by_hand := inputs.baseline) is not None:
        told_of = {name: number(by_hand.get(name)) for name in inputs.costs if name in by_hand}
        data["baseline"] = {"key": by_hand["key"], "accuracy": 100 * by_hand["accuracy"], **told_of}
    return section, points.columns() | data


def _table(inputs: Inputs, rows: list[Row]) -> Markup:
    names = [name for name in inputs.costs if any(name in row for row in rows)]
    real = {name: key for name, key in MEASURED.items() if any(key in row for row in rows)}
    told = (("predicted " if _predicted(inputs, n) else "") + inputs.costs[n] for n in names)
    columns = ["network", "accuracy", *told]
    columns += [f"measured {COSTS[name]}" for name in real]
    lines = []
    by_hand = [] if inputs.baseline is None else [inputs.baseline]
    for row in [*rows[:ROWS], *by_hand]:
        mark = tag("span", "best", class_="mark") if row["key"] == inputs.front.get("best") else None
        key = tag("button", row["key"], type="button", class_="key", data_key=row["key"])
        if row is inputs.baseline:
            key, mark = tag("code", row["key"]), tag("span", "by hand", class_="mark")
        costs = [inputs.cost_text(n, row.get(n)) for n in names] + [cost_text(n, row.get(k)) for n, k in real.items()]
        accuracy = percent(row["accuracy"]) + chance(row["accuracy"], _searched(inputs))
        lines.append([tag("span", key, " ", mark), accuracy, *costs])
    more = f" (the first {ROWS} of {len(rows)})" if len(rows) > ROWS else ""
    last = "; last the largest network, uniformly scaled to the limits" if by_hand else ""
    listed = markup.table(columns, lines, f"From the most accurate down{more}{last}")
    return details(f"The front as a table ({counted(len(rows), 'network')})", listed, open=len(rows) <= OPEN_ROWS)


def _drawings(rows: list[Row]) -> dict[str, str]:
    """Pictures of the front's networks, by key."""
    drawn, room = dict[str, str](), ROOM
    for row in rows[:DRAWN]:
        arch, name = Arch.from_json(json.dumps(row["arch"])), f"{percent(row['accuracy'])} accuracy"
        picture = draw(arch, name, row["macs"], row["params"])
        room -= len(picture)
        if room < 0:
            break
        drawn[row["key"]] = str(picture)
    return drawn


def progress(inputs: Inputs, points: Points) -> Section | None:
    """The best so far and the middle of every round, over evaluations."""
    tried = [k for k, record in enumerate(points.records) if record.search is not None]
    if not tried:
        return None
    accuracy = 100 * points.accuracy[tried]
    order = np.arange(1, len(tried) + 1)
    best = np.maximum.accumulate(np.where(points.inside[tried], accuracy, -np.inf))
    known = np.isfinite(best)
    rises = np.flatnonzero(np.diff(best[known], prepend=-np.inf) > 0)
    best_x = [*order[known][rises].tolist(), len(tried)] if known.any() else []
    best_y = [*best[known][rises].tolist(), best[known][-1]] if known.any() else []
    middles: list[tuple[float, float]] = []
    marks: list[dict[str, Any]] = []
    at, before = 0, None
    for (search, _), group in groupby(tried, key=lambda k: (points.records[k].search, points.records[k].round)):
        size = len(list(group))
        middles.append((at + (size + 1) / 2, float(np.median(accuracy[at : at + size]))))
        if before is not None and search != before:
            marks.append({"x": at + 0.5, "text": "next search"})
        at, before = at + size, search
    shown = np.unique(np.linspace(0, len(tried) - 1, min(len(tried), MOST_SPECKS)).round().astype(int))
    within = " within the limits" if inputs.limits else ""
    lines = [
        series("each network", order[shown].tolist(), accuracy[shown].tolist(), "specks", 4),
        series("median of a round", [x for x, _ in middles], [y for _, y in middles], "both", 0),
        series(f"best so far{within}", best_x, best_y, "step", 1),
    ]
    label = f"Accuracy over {len(tried)} evaluations in {len(middles)} rounds; "
    label += f"the best so far ends at {best_y[-1] if best_y else 0:.2f} %."
    chart = plot(label, axis("evaluations", "whole"), axis("accuracy, search split", "percent"), lines, marks=marks)
    method = f", by {inputs.front['method']}" if inputs.front.get("method") else ""
    told = f"Evaluations in their order{method}. Every network is evaluated once; what earlier searches of this "
    told += "supernet found out is used again."
    return markup.chart_section("progress", "How the search went", told, "Best so far", chart)
