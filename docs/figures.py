"""The figures of the documentation, drawn from the library itself.

python docs/figures.py               budget.svg and architecture.svg
python docs/figures.py RUN [RUN ...] cifar.svg: the accuracies that training runs watched, a panel each
python docs/figures.py docs/fitting/*.jsonl  fitting.svg: what benchmarks/fit.py kept, accuracy against latency
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import superformer as sf

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 860, 340, 60, 56, 58
LOW, HIGH, BINS = 0.7, 3.6, 116
SERIES = (
    ("every choice uniform, as the papers sample", "#4c72b0"),
    ("uniform over different architectures", "#dd8452"),
)


PANEL_WIDTH, PANEL_HEIGHT, COLUMNS = 286, 190, 3
WATCHED = {"smallest": "#4c72b0", "largest": "#dd8452"}
"""Of the others, which are random, all lines are grey."""


def budget() -> None:
    space = sf.space("vit-resnas-tiny")
    x = lambda g: LEFT + (g - LOW) / (HIGH - LOW) * (WIDTH - LEFT - 20)  # noqa: E731
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        '<text x="16" y="24" font-size="15" font-weight="bold">MACs of networks drawn from vit-resnas-tiny (1.6e28 architectures)</text>',
    ]
    base, room = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP
    for k, (label, colour) in enumerate(SERIES):
        macs = sf.cost(space, space.sample_genes(200_000, seed=0, over=("choices", "architectures")[k])).macs / 1e9
        counts, edges = np.histogram(macs, bins=BINS, range=(LOW, HIGH))
        line = " ".join(
            f"{x(e):.1f},{base - c / counts.max() * room * 0.9:.1f}" for e, c in zip(edges, counts, strict=False)
        )
        out.append(
            f'<polygon points="{x(LOW):.1f},{base} {line} {x(HIGH):.1f},{base}" fill="{colour}" fill-opacity="0.35" stroke="{colour}"/>'
        )
        out.append(
            f'<rect x="{LEFT + 8}" y="{TOP - 18 + 18 * k}" width="12" height="12" fill="{colour}" fill-opacity="0.6"/>'
        )
        out.append(f'<text x="{LEFT + 26}" y="{TOP - 8 + 18 * k}" font-size="12">{label}</text>')
    for target in (1.0, 2.9):
        genes = space.sample_genes(1000, seed=0, macs=(0.99e9 * target, 1.01e9 * target))
        found = sf.cost(space, genes).macs / 1e9
        out.append(
            f'<rect x="{x(found.min()):.1f}" y="{TOP + 40}" width="{x(found.max()) - x(found.min()):.1f}" height="{base - TOP - 40}" fill="#55a868"/>'
        )
        anchor, at = ("start", x(target) + 10) if target < 2 else ("end", x(target) - 10)
        out.append(
            f'<text x="{at:.1f}" y="{TOP + 52}" font-size="12" fill="#2f7d46" text-anchor="{anchor}">1,000 exact draws</text>'
        )
        out.append(
            f'<text x="{at:.1f}" y="{TOP + 67}" font-size="12" fill="#2f7d46" text-anchor="{anchor}">within 1 % of {target} G</text>'
        )
    out.append(f'<line x1="{LEFT}" y1="{base}" x2="{WIDTH - 20}" y2="{base}" stroke="#333"/>')
    for tick in np.arange(1.0, 3.6, 0.5):
        out.append(f'<line x1="{x(tick):.1f}" y1="{base}" x2="{x(tick):.1f}" y2="{base + 5}" stroke="#333"/>')
        out.append(f'<text x="{x(tick):.1f}" y="{base + 20}" font-size="12" text-anchor="middle">{tick:.1f} G</text>')
    out.append(
        f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 14}" font-size="12" text-anchor="middle">multiply-accumulates a picture at 224 pixels</text>'
    )
    out.append("</svg>")
    _write("budget.svg", out)
    sf.draw("vit_resnas_medium").save(Path(__file__).with_name("architecture.svg"))


def curves(folders: list[str]) -> None:
    """Accuracy on the search split over the epochs, of the networks that each run watched."""
    rows = -(-len(folders) // COLUMNS)
    width, height = COLUMNS * PANEL_WIDTH, rows * PANEL_HEIGHT + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for k, (name, colour) in enumerate({**WATCHED, "random": "#aaaaaa"}.items()):
        at = 44 + 90 * k
        out.append(
            f'<line x1="{at}" x2="{at + 16}" y1="16" y2="16" stroke="{colour}" stroke-width="2"/><text x="{at + 21}" y="20">{name}</text>'
        )
    for k, folder in enumerate(folders):
        out.append(f'<g transform="translate({k % COLUMNS * PANEL_WIDTH},{30 + k // COLUMNS * PANEL_HEIGHT})">')
        out += [*_panel(sf.Run.open(folder)), "</g>"]
    _write("cifar.svg", [*out, "</svg>"])


def _panel(run: sf.Run) -> list[str]:
    recipe = run.recipe()
    health = [row for row in run.metrics() if row["kind"] == "health"]
    epochs, last = recipe.train.epochs, health[-1]["step"]
    high, low = (f(value for row in health for value in row["accuracy"].values()) for f in (max, min))
    low, high = 10 * int(10 * low), 10 * int(10 * high + 1)
    x = lambda step: 44 + step / last * (PANEL_WIDTH - 60)  # noqa: E731
    y = lambda percent: PANEL_HEIGHT - 34 - (percent - low) / (high - low) * (PANEL_HEIGHT - 64)  # noqa: E731
    out = [f'<text x="44" y="18" font-weight="bold">{recipe.name}</text>']
    for tick in range(low, high + 1, 10):
        out.append(f'<line x1="44" x2="{PANEL_WIDTH - 16}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="40" y="{y(tick) + 4:.1f}" text-anchor="end">{tick} %</text>')
    for share in (0, 0.5, 1):
        out.append(
            f'<text x="{x(share * last):.1f}" y="{PANEL_HEIGHT - 18}" text-anchor="middle">{share * epochs:g}</text>'
        )
    out.append(f'<text x="{PANEL_WIDTH - 16}" y="{PANEL_HEIGHT - 4}" text-anchor="end">epochs</text>')
    for name in sorted(health[0]["accuracy"], key=lambda name: name in WATCHED):
        line = " ".join(f"{x(row['step']):.1f},{y(100 * row['accuracy'][name]):.1f}" for row in health)
        colour, width = WATCHED.get(name, "#bbbbbb"), 2 if name in WATCHED else 1
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
    return out


FITTED = {
    "original": ("the original, tuned", "#555555"),
    "fit": ("superformer fit", "#c44e52"),
    "smaller": ("the original, smaller pictures", "#55a868"),
    "even": ("evenly dropped blocks", "#4c72b0"),
    "pruned": ("Torch-Pruning (Taylor)", "#dd8452"),
    "scratch": ("what fit found, new weights", "#8172b3"),
}
FITTED_WIDTH, FITTED_HEIGHT = 430, 330


def fitted(paths: list[str]) -> None:
    """Test accuracy against the share of the original's latency, a point for each network, with standard errors; a
    panel for each network that was fitted, all its seeds in it (files are named NETWORK-SEED.jsonl)."""
    panels: dict[str, list[dict[str, Any]]] = {}
    for path in map(Path, sorted(paths, reverse=True)):
        panels.setdefault(path.stem.rpartition("-")[0], []).extend(map(json.loads, path.read_text().splitlines()))
    accuracies = [100 * row["accuracy"] for rows in panels.values() for row in rows]
    low, high = min(accuracies) // 10 * 10, max(accuracies) // 10 * 10 + 10
    width, height = max(len(panels), 2) * FITTED_WIDTH, FITTED_HEIGHT + 50
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    named = {row["name"] for rows in panels.values() for row in rows}
    shown = [known for name, known in FITTED.items() if name in named]
    for k, (label, colour) in enumerate(shown):
        x, y = LEFT + k % 3 * 250, 18 + k // 3 * 18
        out.append(f'<circle cx="{x}" cy="{y - 4}" r="5" fill="{colour}"/><text x="{x + 10}" y="{y}">{label}</text>')
    for k, (name, rows) in enumerate(panels.items()):
        out += [f'<g transform="translate({k * FITTED_WIDTH},44)">', *_fitted_panel(name, rows, low, high), "</g>"]
    _write("fitting.svg", [*out, "</svg>"])


def _fitted_panel(title: str, rows: list[dict[str, Any]], low: float, high: float) -> list[str]:
    base, right = FITTED_HEIGHT - 50, FITTED_WIDTH - 16
    x = lambda share: LEFT + share / 1.1 * (right - LEFT)  # noqa: E731
    y = lambda percent: base - (percent - low) / (high - low) * (base - 30)  # noqa: E731
    out = [f'<text x="{LEFT}" y="18" font-weight="bold">{title}</text>']
    for tick in range(int(low), int(high) + 1, 10):
        out.append(f'<line x1="{LEFT}" x2="{right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick} %</text>')
    for share in (0.25, 0.5, 0.75, 1.0):
        out.append(f'<text x="{x(share):.1f}" y="{base + 18}" text-anchor="middle">{share:g}</text>')
    told = "latency, of the original's (one picture, one thread)"
    out.append(f'<text x="{right}" y="{base + 38}" text-anchor="end">{told}</text>')
    for row in rows:
        percent, colour = 100 * row["accuracy"], FITTED[row["name"]][1]
        error = (percent * (100 - percent) / row["pictures"]) ** 0.5
        at, top, end = x(row["latency"]), y(percent + error), y(percent - error)
        out.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top:.1f}" y2="{end:.1f}" stroke="{colour}"/>')
        out.append(f'<circle cx="{at:.1f}" cy="{y(percent):.1f}" r="4" fill="{colour}"/>')
    return out


def _write(name: str, lines: list[str]) -> None:
    Path(__file__).with_name(name).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    given = sys.argv[1:]
    if given and given[0].endswith(".jsonl"):
        fitted(given)
    else:
        curves(given) if given else budget()
