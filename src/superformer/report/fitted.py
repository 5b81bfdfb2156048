"""A pretrained network that was fitted: the original beside the faster ones, and what of it went first."""

from __future__ import annotations

import re
from itertools import accumulate

from superformer.errors import amount
from superformer.report import markup
from superformer.report.inputs import Inputs, Row, chance, cost_text, number, percent, seconds
from superformer.report.markup import Section, axis, bars, chart_section, paragraph, place, plot, series, tag
from superformer.report.search import tile

FIRST_UNITS = 8
"""Of each group that are named."""


def headline(inputs: Inputs) -> Section | None:
    """The winner beside the original."""
    first, found = inputs.fit.get("original"), inputs.fit.get("found", [])
    winner = next((r for r in found if r["key"] == inputs.fit.get("winner")), None)
    if first is None or winner is None:
        return None
    pictures = number(inputs.fit.get("pictures")) or 0
    name = str(inputs.fit.get("cost"))
    lead = paragraph(
        "The most accurate network within the limit is ", tag("code", winner["key"]), f", {_faster(winner, first)} "
        f"times as fast as the original; {seconds(winner['latency'])} for a picture.", class_="lead",
    )  # fmt: skip
    tiles = [
        tile(percent(r["accuracy"]), f"test accuracy, {which}", f"{chance(r['accuracy'], pictures)} points".strip())
        for which, r in (("found", winner), ("original", first))
    ]
    limit = f", limit {cost_text(name, number(inputs.fit.get('limit')))}"
    for cost, title in (("latency", "latency"), ("macs", "MACs"), ("params", "parameters")):
        note = f"{cost_text(cost, first[cost])} before{limit if cost == name else ''}"
        tiles.append(tile(cost_text(cost, winner[cost]), title, note))
    return Section("found", "What was found", markup.several(lead, tag("div", *tiles, class_="tiles")))


def _faster(row: Row, first: Row) -> str:
    return f"{first['latency'] / row['latency']:.2f}"


def networks(inputs: Inputs) -> Section | None:
    """Test accuracy against time or MACs, the original among them."""
    name = str(inputs.fit.get("cost"))
    first, found = inputs.fit.get("original"), inputs.fit.get("found", [])
    if first is None or not found:
        return None
    pictures, winner = number(inputs.fit.get("pictures")) or 0, str(inputs.fit.get("winner"))
    label = f"Test accuracy against {name} of the original and of {len(found)} networks that were found"
    lines = [
        series(title, [r[name] for r in some], [100 * r["accuracy"] for r in some], style, colour)
        for title, some, style, colour in (("found", found, "both", 0), ("original", [first], "dots", 1))
    ]
    limit = number(inputs.fit.get("limit"))
    x = axis("latency, one picture" if name == "latency" else "MACs", "seconds" if name == "latency" else "amount", 0)
    chart = plot(label, x, axis("test accuracy", "percent"), lines, limit=limit)
    columns = ["network", "test accuracy", "latency", "MACs", "parameters", "times as fast"]
    table = markup.table(
        columns, [_cells(r, first, pictures, winner) for r in (first, *found)], "Fitted networks", words=1
    )
    told = (
        "A pretrained network was tuned on the pictures (the original). A supernet around it, which begins with what "
    )
    told += "matters most of it, gave smaller ones; each was then trained by itself, with the original as its teacher. "
    by = ", measured when it was chosen" if name == "latency" else ""
    told += (
        f"The winner has at most {cost_text(name, limit)} ({name}{by}). Times are those of one picture with one thread "
    )
    told += f"({inputs.fit.get('runtime', 'eager')}), measured in turn."
    if pictures:
        told += f" Behind each accuracy: one standard error, on {int(pictures):,} test pictures."
    return chart_section("fitted", "Fitted to your pictures", told, "The original and faster networks", chart, table)


def _cells(row: Row, first: Row, pictures: float, winner: str) -> list[str]:
    name = "original" if row is first else "winner" if row["key"] == winner else "found"
    return [
        f"{name} ({row['key']})",
        f"{percent(row['accuracy'])}{chance(row['accuracy'], pictures)}",
        seconds(row["latency"]),
        amount(float(row["macs"])),
        amount(float(row["params"])),
        _faster(row, first),
    ]


def _group(name: str) -> str:
    """``stages.0.blocks.3.mlp.mlp`` as people say it."""
    at = re.match(r"stages\.(\d+)\.blocks\.(\d+)\.", name)
    where = f"stage {int(at[1]) + 1}, block {int(at[2]) + 1}: " if at else ""
    last = name.rpartition(".")[2]
    return where + {"attn": "heads", "mlp": "hidden units", "width": "channels of tokens"}.get(last, last)


def _units(inputs: Inputs) -> markup.Markup:
    """Of each group of heads, hidden units and channels: how much of its effect the first of them have."""
    rows = []
    for name, effects in inputs.orders.get("importance", {}).items():
        known = sorted(map(float, effects), reverse=True)
        sums, whole = list(accumulate(known)), sum(known) or 1.0
        first = [percent(sums[max(len(known) * part // 4, 1) - 1] / whole, 0) for part in (1, 2, 3)]
        units = inputs.orders["units"].get(name, ())
        rows.append([_group(name), len(known), *first, ", ".join(str(u + 1) for u in units[:FIRST_UNITS])])
    columns = ["group", "units", "first quarter", "first half", "first three quarters", "the first"]
    caption = "Shares of the effect on the loss that the first units of a group have, in the order in which they stay"
    listed = markup.table(columns, rows, caption)
    return markup.details(f"Heads, hidden units and channels ({len(rows)} groups)", listed)


def order(inputs: Inputs) -> Section | None:
    """How far predictions move without blocks, in the order in which these go."""
    stages = list(zip(inputs.orders.get("blocks", []), inputs.orders.get("moved", []), strict=False))
    rows = [
        {
            "name": f"block {p + 1}",
            "group": f"stage {i + 1}" if len(stages) > 1 else None,
            "value": value,
            "colour": i % 4,
        }
        for i, (blocks, moved) in enumerate(stages)
        for p, value in reversed(list(zip(blocks[len(blocks) - len(moved) :], moved, strict=True)))
    ]
    if not rows:
        return None
    chart = bars("How far predictions had moved when each block had gone", axis("KL divergence", "number", 0), rows)
    told = (
        "Blocks in the order in which they go, the first to go on top: how far the predictions of the tuned original "
    )
    told += "had moved without it and those above it, on training pictures. "
    told += "Heads, hidden units and channels were ordered, too, by their effect on the loss (orders.json has all)."
    return Section(
        "order",
        "What went first",
        markup.several(paragraph(told), place("order", "Blocks by importance"), _units(inputs)),
        {"order": chart},
    )
