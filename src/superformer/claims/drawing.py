"""The drawing of a claim: every run a dot, those of one seed joined; beside them the paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

LEFT, GAP, PLOT, BESIDE, RIGHT, TOP, BOTTOM = 190, 40, 330, 300, 24, 26, 42
WIDTH = LEFT + PLOT + GAP + BESIDE + RIGHT
ROW, PAIR = 34, 46
COLOURS = ("#2a6fbb", "#c8651b", "#3a8f4d", "#8a4fa3", "#7a7a7a", "#b03a48", "#4a9a9a", "#a08a2a")
GREY, DARK = "#e4e4e4", "#444"
UNITS = {
    "late_loss": (1.0, "loss"),
    "early_loss": (1.0, "loss"),
    "kendall": (1.0, "Kendall's tau"),
    "kendall_macs": (1.0, "Kendall's tau"),
    "kendall_in_ranges": (1.0, "Kendall's tau"),
    "conflict": (100.0, "percent of layers in conflict"),
    "ratio": (1.0, "of the mean of random networks"),
    "distance": (1.0, "pixels"),
    "weights": (100.0, "percent of the search pictures"),
    "et_error": (1.0, "percent error on the search pictures"),
    "best_error": (1.0, "percent error on the search pictures"),
    "spread": (100.0, "standard deviation, in percent of the test pictures"),
}
"""A factor and a unit to tell values in; all others are accuracies."""


def scale(measure: str) -> tuple[float, str]:
    return UNITS.get(measure, (100.0, "percent of the test pictures"))


@dataclass(frozen=True)
class Axis:
    """From values to places of a part of the drawing."""

    low: float
    high: float
    left: float
    width: float

    @staticmethod
    def around(values: Sequence[float], left: float, width: float) -> Axis:
        low, high = min(values, default=0.0), max(values, default=1.0)
        room = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
        return Axis(low - room, high + room, left, width)

    def __call__(self, value: float) -> float:
        return self.left + (value - self.low) / (self.high - self.low) * self.width

    def marks(self) -> list[float]:
        """Some round numbers."""
        rough = (self.high - self.low) / 4
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * by for by in (1, 2, 5, 10) if size * by >= rough)
        return [k * step for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]

    def drawn(self, bottom: float, title: str) -> list[str]:
        out = []
        for value in self.marks():
            out.append(_line(self(value), TOP, self(value), bottom, GREY))
            out.append(_text(self(value), bottom + 17, f"{value:.4g}", "middle"))
        return [*out, _text(self.left + self.width / 2, bottom + 35, title, "middle")]


def drawing(claim: dict[str, Any], runs: Sequence[dict[str, Any]], pairs: Sequence[dict[str, Any]]) -> str:
    """``runs``: rows with an arm, a seed and a value; ``pairs``: the paired differences of arms (`summary`)."""
    factor, unit = scale(claim["measure"])
    arms = list(claim["arms"])
    bottom = TOP + max(ROW * len(arms), PAIR * len(pairs))
    height = bottom + BOTTOM
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        f"<title>{escape(claim['title'])}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    values = {(r["arm"], r["seed"]): factor * r["value"] for r in runs}
    out += _dots(arms, values, Axis.around(list(values.values()), LEFT, PLOT), bottom, unit)
    if pairs:
        ends = [factor * d[k] for d in pairs for k in ("low", "high") if d[k] is not None]
        every = [0.0, -factor * claim["margin"], *ends, *(factor * v for d in pairs for v in d["each"])]
        out += _pairs(pairs, factor, claim["margin"], Axis.around(every, LEFT + PLOT + GAP, BESIDE), bottom)
    return "\n".join([*out, "</svg>", ""])


def _dots(arms: list[str], values: dict[tuple[str, int], float], x: Axis, bottom: float, unit: str) -> list[str]:
    """A row for each arm, its mean a bar; runs with one seed are joined."""
    out = [_text(LEFT + PLOT / 2, TOP - 10, "runs, means; a line for each seed", "middle"), *x.drawn(bottom, unit)]
    y = {arm: TOP + (bottom - TOP) * (k + 0.5) / len(arms) for k, arm in enumerate(arms)}
    for seed in sorted({seed for _, seed in values}):
        path = [(x(values[arm, seed]), y[arm]) for arm in arms if (arm, seed) in values]
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in path)
        out.append(f'<polyline points="{points}" fill="none" stroke="#b5b5b5" stroke-width="1"/>')
    for k, arm in enumerate(arms):
        colour, own = COLOURS[k % len(COLOURS)], [v for (a, _), v in values.items() if a == arm]
        out.append(_text(LEFT - 12, y[arm] + 4, arm, "end", "black"))
        out += [_dot(x(value), y[arm], colour) for value in own]
        if own:
            mean = x(sum(own) / len(own))
            out.append(_line(mean, y[arm] - 12, mean, y[arm] + 12, colour, 3))
    return out


def _pairs(pairs: Sequence[dict[str, Any]], factor: float, margin: float, x: Axis, bottom: float) -> list[str]:
    """A row for each pair: the difference of every seed, their mean, the interval; zero is a line, or the margin."""
    out = [_text(x.left + x.width / 2, TOP - 10, "better by, seed by seed; 95 % interval", "middle")]
    out += x.drawn(bottom, "difference")
    out.append(_line(x(-factor * margin), TOP, x(-factor * margin), bottom, "#999", 1.5))
    for k, pair in enumerate(pairs):
        y = TOP + (bottom - TOP) * (k + 0.62) / len(pairs)
        out.append(
            _text(x.left + x.width / 2, y - 14, f"{pair['better']} against {pair['worse']}", "middle", "black", 11)
        )
        if pair["low"] is not None:
            low, high = x(factor * pair["low"]), x(factor * pair["high"])
            out += [_line(low, y, high, y, DARK, 2), _line(low, y - 5, low, y + 5, DARK, 2)]
            out.append(_line(high, y - 5, high, y + 5, DARK, 2))
        out += [_dot(x(factor * value), y, DARK, 3.5) for value in pair["each"]]
        mean = x(factor * pair["mean"])
        out.append(_line(mean, y - 9, mean, y + 9, DARK, 3))
    return out


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:g}"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = DARK, size: int = 0) -> str:
    own = f' font-size="{size}"' * bool(size)
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{own}>{escape(text)}</text>'


def _dot(x: float, y: float, colour: str, radius: float = 5) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}" fill-opacity="0.65"/>'
