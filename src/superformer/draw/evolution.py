"""How a space evolved, as a picture (S3, figs. 2 and 3): a row for each dimension, a column for each space.

A cell has the choices of that dimension as dots: from left to right by their place in the list, up by the E-T error of
the sub-space with that choice, and the line of eq. 7 through them. Below are the choices themselves; the next column
has what became of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from superformer.draw.svg import Drawing, cut, element, opening, text
from superformer.search.space_evolution import equation_7

ID = "sf-evolution"
LEFT, WIDE, HEAD, TALL, PLOT, TOP, EDGE = 132, 208, 96, 110, 46, 24, 24
"""Room for names; a column; the heads of columns; a row; the plot in it, and how far down; around the picture."""
FILLS = {"h": "ink", "i": "ink", "d": "dim", "up": "b1", "down": "b2", "dot": "b0"}
LINES: dict[str, tuple[str, float | None]] = {"rule-line": ("edge", 1.0), "fit": ("b1", 1.5)}


def draw(spaces: Sequence[Mapping[str, Any]], name: str = "") -> Drawing:
    """The trace of an evolution: the list ``spaces`` of ``evolution.json``."""
    labels = list(dict.fromkeys(t["label"] for s in spaces for t in s["trends"]))
    width, height = 2 * EDGE + LEFT + WIDE * len(spaces), EDGE + HEAD + TALL * len(labels) + EDGE
    title = f"How the space {name} evolved".replace("  ", " ")
    out = [
        *opening(ID, width, height, title, FILLS, LINES),
        text(EDGE, EDGE + 12, cut(title, LEFT + WIDE * len(spaces), 15), 15, "h"),
        text(EDGE, EDGE + 50, "E-T error", 12, "i"),
        text(EDGE, EDGE + 66, "expected", 11),
        text(EDGE, EDGE + 80, "best found", 11),
    ]
    for t, space in enumerate(spaces):
        x = EDGE + LEFT + WIDE * t
        out += [text(x, EDGE + 34, f"space {t}", 12, "h"), text(x, EDGE + 50, f"{space['et_error']:.2f} %", 12, "h")]
        out += [text(x, EDGE + y, f"{space[key]:.2f} %", 11) for y, key in ((66, "expected"), (80, "best"))]
        found = {trend["label"]: trend for trend in space["trends"]}
        for row, label in enumerate(labels):
            if label in found:
                out += _cell(x, EDGE + HEAD + TALL * row, found[label], last=t == len(spaces) - 1)
    for row, label in enumerate(labels):
        y = EDGE + HEAD + TALL * row
        out.append(element("path", d=f"M{EDGE} {y}H{width - EDGE}", class_="rule-line"))
        out.append(text(EDGE, y + TALL / 2, cut(label, LEFT - 8, 12), 12, "i"))
    return Drawing("\n".join([*out, "</svg>", ""]))


def _cell(x: float, y: float, trend: Mapping[str, Any], last: bool) -> list[str]:
    """A dimension in one space: its choices, their errors, the fitted line, and where the list goes."""
    values, errors = trend["dimension"]["values"], trend["errors"]
    low, high = min(errors), max(errors)
    scale, middle = PLOT / max(high - low, 0.5), (low + high) / 2  # half a percent fills the plot: less is noise
    step = (WIDE - 56) / max(len(values) - 1, 1)
    xs = [x + 20 + step * k for k in range(len(values))] if len(values) > 1 else [x + 20 + step / 2]
    ys = [y + TOP + PLOT / 2 - scale * (e - middle) for e in errors]
    slope, intercept = equation_7(values, errors)
    ends = [y + TOP + PLOT / 2 - scale * (intercept + slope * v - middle) for v in (values[0], values[-1])]
    out = [element("path", d=f"M{xs[0]:.1f} {ends[0]:.1f}L{xs[-1]:.1f} {ends[1]:.1f}", class_="fit")]
    for at, up, value, error in zip(xs, ys, values, errors, strict=True):
        dot = element("circle", cx=at, cy=up, r=4.0, class_="dot")
        out.append(dot.replace("/>", f">{element('title', f'{value:g}: {error:.2f} %')}</circle>"))
        out.append(text(at, up - 7, f"{error:.1f}", 8.5, "d", "middle"))
        out.append(text(at, y + TOP + PLOT + 18, f"{value:g}", 11, "h", "middle"))
    says, after = f"{trend['slope']:+.2f} % a step", trend["after"]
    if not last and after == values:
        says += ": stays"
    elif not last:
        larger = min(after) > min(values) or max(after) > max(values)
        says += ": larger" if larger else ": smaller"
        out.append(text(x + WIDE - 12, y + TOP + PLOT + 18, "\u2192", 13, "up" if larger else "down", "middle"))
    out.append(text(x + 20 - 8, y + TOP + PLOT + 31, cut(says, WIDE - 20, 9), 9))
    return out
