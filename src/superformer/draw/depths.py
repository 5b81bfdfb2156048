"""Errors by the number of blocks, as a picture (S3, figure 3): for each stage the error distribution functions of its
networks with so many blocks, and at the right the top-tier error of each number of blocks, a line for each stage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from superformer.draw.svg import Drawing, element, opening, text

ID = "sf-depths"
WIDE, TALL, LEFT, GAP, TOP, EDGE, LEGEND = 190, 150, 40, 34, 64, 24, 62
"""A plot; room for its heights; between plots; for the heads; around the picture; for the names of stages."""
COLOURS = ("b0", "b1", "b2", "b3")
FILLS = {"h": "ink", "i": "ink", "d": "dim"}
LINES: dict[str, tuple[str, float | None]] = {
    "rule-line": ("edge", 1.0), **{f"l{k}": (colour, 1.8) for k, colour in enumerate(COLOURS)},
}  # fmt: skip
DASHES = ("", "5 3", "2 2")


def draw(rows: Sequence[Mapping[str, Any]], name: str = "") -> Drawing:
    """The rows of `superformer.analysis.distributions.depths`."""
    stages = sorted({int(row["stage"]) for row in rows})
    errors = [e for row in rows for e in row["errors"]]
    width = 2 * EDGE + (len(stages) + 1) * (LEFT + WIDE) + len(stages) * GAP + LEGEND
    height = EDGE + TOP + TALL + 46 + EDGE
    title = f"Errors by the number of blocks: {name}".removesuffix(": ")
    out = [*opening(ID, width, height, title, FILLS, LINES), text(EDGE, EDGE + 12, title, 15, "h")]
    for k, stage in enumerate(stages):
        plot = _Plot(EDGE + LEFT + k * (WIDE + LEFT + GAP), (min(errors), max(errors)), (0.0, 100.0))
        own = sorted((row for row in rows if row["stage"] == stage), key=lambda row: int(row["blocks"]))
        out += plot.frame(f"stage {stage + 1}", "error (%)", "networks with at most this error (%)" if not k else "")
        for n, row in enumerate(own):
            ordered = sorted(row["errors"])
            path, share = f"M{plot.x(ordered[0]):.1f} {plot.y(0):.1f}", 100 / len(ordered)
            for rank, error in enumerate(ordered, 1):
                path += f"H{plot.x(error):.1f}V{plot.y(share * rank):.1f}"
            out.append(_line(path + f"H{plot.right}", n))
            y = plot.bottom - 10 - 13 * (len(own) - 1 - n)
            out.append(_line(f"M{plot.right - 74} {y - 3.5:.1f}h18", n))
            out.append(text(plot.right - 52, y, f"{row['blocks']} block{'s' * (row['blocks'] != 1)}", 9.5))
    best = [float(row["top_tier"]) for row in rows]
    counts = sorted({int(row["blocks"]) for row in rows})
    spare = 0.08 * (max(best) - min(best)) or 0.5
    plot = _Plot(
        EDGE + LEFT + len(stages) * (WIDE + LEFT + GAP),
        (counts[0] - 0.3, counts[-1] + 0.3),
        (min(best) - spare, max(best) + spare),
    )
    out += plot.frame("top-tier error", "blocks of the stage", "error (%)", counts)
    for k, stage in enumerate(stages):
        points = sorted((int(row["blocks"]), float(row["top_tier"])) for row in rows if row["stage"] == stage)
        out.append(_line("M" + "L".join(f"{plot.x(n):.1f} {plot.y(e):.1f}" for n, e in points), k))
        for n, e in points:
            dot = element("circle", cx=plot.x(n), cy=plot.y(e), r=3.5, class_=COLOURS[k % 4])
            out.append(dot.replace("/>", f">{element('title', f'stage {stage + 1}, {n}: {e:.2f} %')}</circle>"))
        y = EDGE + TOP + 10 + 15 * k
        out += [_line(f"M{plot.right + 10} {y - 3.5:.1f}h14", k), text(plot.right + 28, y, f"stage {stage + 1}", 9.5)]
    return Drawing("\n".join([*out, "</svg>", ""]))


class _Plot:
    """A frame with axes: ``x`` and ``y`` are where values lie."""

    def __init__(self, left: float, across: tuple[float, float], up: tuple[float, float]):
        self.left, self.right, self.top, self.bottom = left, left + WIDE, EDGE + TOP, EDGE + TOP + TALL
        self.across, self.up = across, up

    def x(self, value: float) -> float:
        low, high = self.across
        return self.left + WIDE * (value - low) / (high - low or 1)

    def y(self, value: float) -> float:
        low, high = self.up
        return self.bottom - TALL * (value - low) / (high - low or 1)

    def frame(self, title: str, below: str, beside: str, ticks: Sequence[float] = ()) -> list[str]:
        out = [text(self.left, self.top - 24, title, 12, "h")]
        if beside:
            out.append(text(self.left - LEFT + 8, self.top - 9, beside, 9.5))
        for value in _ticks(*self.up):
            out.append(element("path", d=f"M{self.left} {self.y(value):.1f}H{self.right}", class_="rule-line"))
            out.append(text(self.left - 6, self.y(value) + 3.5, f"{value:g}", 9.5, "d", "end"))
        for value in ticks or _ticks(*self.across):
            out.append(element("path", d=f"M{self.x(value):.1f} {self.bottom}v4", class_="rule-line"))
            out.append(text(self.x(value), self.bottom + 16, f"{value:g}", 9.5, "d", "middle"))
        out.append(element("path", d=f"M{self.left} {self.bottom}H{self.right}", class_="rule-line"))
        return [*out, text((self.left + self.right) / 2, self.bottom + 34, below, 9.5, "d", "middle")]


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers between two others."""
    size = 10.0 ** math.floor(math.log10(max(high - low, 1e-9)))
    step = next(s * size for s in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0) if (high - low) / (s * size) < 5)
    return [round(k * step, 10) for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _line(path: str, number: int) -> str:
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    more = {"stroke_dasharray": dash} if dash else {}
    return element("path", d=path, class_=f"l{number % len(COLOURS)}", **more)
