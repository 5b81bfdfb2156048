"""What tokens attend to, over the picture (S3, figures 4 and 8; ViTAS v1, figure 4): the picture with the query marked
by a cross, then a panel for each block (or each head of it) with its attention laid over the picture, the five
strongest keys numbered, and what lies outside the query's window dimmed. The part around a small window is
enlarged."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from superformer.draw.svg import Drawing, cut, element, opening, text, wrapped

PANEL, GAP, HEAD, EDGE, ACROSS = 184, 18, 62, 24, 5
"""A panel's side; between panels; room for the title; around all; panels in a row."""
FILLS = {"h": "ink", "i": "ink", "d": "dim"}
LINES: dict[str, tuple[str, float | None]] = {"frame": ("edge", 1.0)}
SQUARE: dict[str, Any] = {"width": PANEL, "height": PANEL, "preserveAspectRatio": "none", "class_": "over"}
HOT = (255, 122, 0)
"""The colour of attention."""
DIMMED = 0.62
"""How far what cannot be attended to is darkened."""
LABEL = 11.0
"""Size of the numbers."""


def draw(found: Mapping[str, Any], id_: str = "sf-attention") -> Drawing:
    """What `superformer.analysis.attention.attention_maps` found: ``picture`` (a data URI), ``about`` it, ``maps``."""
    maps, of_class = found["maps"], found["maps"][0]["query"] is None
    panels = 1 + len(maps)
    across = min(panels, ACROSS)
    rows = -(-panels // across)
    width = 2 * EDGE + across * PANEL + (across - 1) * GAP
    title = "What the class token attends to" if of_class else "What the token at + attends to"
    how = "mean of the heads; " if maps[0]["head"] is None else ""
    lines = wrapped([str(found["about"]), f"{how}the five strongest keys are numbered"], width - 2 * EDGE, 11)
    head = HEAD + 14 * (len(lines) - 1)
    height = EDGE + head + rows * (PANEL + 30) + EDGE - 12
    out = [
        *opening(
            id_, width, height, title, FILLS, LINES, num=_halo("#fff", "#000c", 3), over="image-rendering:pixelated"
        ),
        f"<defs>{element('image', id=f'{id_}-picture', href=found['picture'], **SQUARE)}</defs>",
        text(EDGE, EDGE + 12, title, 15, "h"),
        *(text(EDGE, EDGE + 31 + 14 * k, line, 11) for k, line in enumerate(lines)),
    ]
    for k, one in enumerate([None, *maps]):
        x, y = EDGE + k % across * (PANEL + GAP), EDGE + head + k // across * (PANEL + 30)
        ox, oy, side = (0.0, 0.0, float(PANEL)) if one is None else _part(one)
        out.append(f'<g transform="translate({x} {y})">')
        out.append(f'<svg width="{PANEL}" height="{PANEL}" viewBox="{ox:.2f} {oy:.2f} {side:.2f} {side:.2f}">')
        out += [f'<use href="#{id_}-picture"/>', "" if one is None else _overlay(one), "</svg>"]
        first = maps[0]
        if one is None:
            out += [*(_cross(first, whole=True) if not of_class else ()), _below("the picture")]
        else:
            out += [*_window(one), *_keys(one), *(_cross(one) if not of_class else ()), _below(_name(one))]
        out += [element("rect", width=PANEL, height=PANEL, class_="frame"), "</g>"]
    return Drawing("\n".join([*out, "</svg>", ""]))


def _name(one: Mapping[str, Any]) -> str:
    heads = one["heads"]
    which = f"head {one['head'] + 1} of {heads}" if one["head"] is not None else f"{heads} head{'s' * (heads > 1)}"
    zoom = PANEL / _part(one)[2]
    enlarged = f", {zoom:.1f} x" if zoom > 1 else ""
    return f"block {one['block']}, {which}{enlarged}"


def _below(words: str) -> str:
    return text(0, PANEL + 15, cut(words, PANEL, 11), 11, "i")


def _overlay(one: Mapping[str, Any]) -> str:
    """Attention as a small picture, stretched: the more, the less transparent; what cannot be seen is dark."""
    weights = np.asarray(one["map"], dtype=np.float64)
    alpha = 0.72 * weights / max(weights.max(), 1e-12)
    pixels = np.zeros((*weights.shape, 4), dtype=np.uint8)
    pixels[..., :3], pixels[..., 3] = HOT, np.rint(255 * alpha)
    pixels[~np.asarray(one["seen"], dtype=bool)] = (0, 0, 0, round(255 * DIMMED))
    return element("image", href=png(pixels), **SQUARE)


def _box(one: Mapping[str, Any]) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of what can be attended to, of a picture of a panel's size."""
    seen = np.asarray(one["seen"], dtype=bool)
    (top, bottom), (left, right) = (np.flatnonzero(seen.any(axis))[[0, -1]] for axis in (1, 0))
    high, wide = PANEL / seen.shape[0], PANEL / seen.shape[1]
    return float(left * wide), float(top * high), float((right + 1) * wide), float((bottom + 1) * high)


def _part(one: Mapping[str, Any]) -> tuple[float, float, float]:
    """What a panel shows, its left, top and side: the picture, or of a small window the part around it."""
    left, top, right, bottom = _box(one)
    side = max(right - left, bottom - top)
    if side > PANEL / 2:
        return 0.0, 0.0, float(PANEL)
    side *= 1.7
    places = ((a + b) / 2 - side / 2 for a, b in ((left, right), (top, bottom)))
    x, y = (min(max(place, 0.0), PANEL - side) for place in places)
    return x, y, side


def _shown(one: Mapping[str, Any], x: float, y: float) -> tuple[float, float]:
    """Where a place of the picture is in its panel."""
    left, top, side = _part(one)
    return (x - left) * PANEL / side, (y - top) * PANEL / side


def _window(one: Mapping[str, Any]) -> list[str]:
    """A line around what can be attended to, if that is not everything: pictures may be dark themselves."""
    if np.asarray(one["seen"], dtype=bool).all():
        return []
    left, top, right, bottom = _box(one)
    (x, y), (to_x, to_y) = _shown(one, left, top), _shown(one, right, bottom)
    line: dict[str, Any] = {"fill": "none", "stroke": "#fff", "stroke_opacity": 0.75, "stroke_dasharray": "4 3"}
    return [element("rect", None, x=x, y=y, width=to_x - x, height=to_y - y, **line)]


def png(pixels: Any) -> str:
    """Pixels as a data URI."""
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _centre(one: Mapping[str, Any], whole: bool = False) -> tuple[float, float]:
    """Of the query."""
    (row, col), (rows, cols) = one["query"], one["grid"]
    x, y = (col + 0.5) * PANEL / cols, (row + 0.5) * PANEL / rows
    return (x, y) if whole else _shown(one, x, y)


def _cross(one: Mapping[str, Any], whole: bool = False) -> list[str]:
    x, y = _centre(one, whole)
    path = f"M{x - 6:.1f} {y:.1f}h12M{x:.1f} {y - 6:.1f}v12"
    return [
        element("path", d=path, stroke=colour, stroke_width=wide, stroke_linecap="round", fill="none")
        for colour, wide in (("#000", 5), ("#fff", 2.2))
    ]


def _keys(one: Mapping[str, Any]) -> list[str]:
    """The strongest keys: a square around each, its number in it, or beside it where tokens are small."""
    rows, cols = one["grid"]
    squares, numbers = list[str](), list[str]()
    taken = [_centre(one)] if one["query"] is not None else []
    for rank, (row, col, side, _) in enumerate(one["top"], 1):
        x, y = _shown(one, col * PANEL / cols, row * PANEL / rows)
        right, bottom = _shown(one, (col + side) * PANEL / cols, (row + side) * PANEL / rows)
        wide, high = right - x, bottom - y
        box: dict[str, Any] = {"x": x, "y": y, "width": wide, "height": high, "fill": "none"}
        squares.append(element("rect", **box, stroke="#000", stroke_width=2.4))
        squares.append(element("rect", **box, stroke="#fff", stroke_width=1.1))
        centre = (x + wide / 2, y + high / 2)
        at = _free(centre, taken, min(wide, high))
        taken.append(at)
        if max(abs(at[0] - centre[0]), abs(at[1] - centre[1])) > 1:
            path = f"M{centre[0]:.1f} {centre[1]:.1f}L{at[0]:.1f} {at[1]:.1f}"
            squares.append(element("path", d=path, stroke="#fff", stroke_width=0.8, stroke_opacity=0.8, fill="none"))
        numbers.append(text(at[0], at[1] + 0.36 * LABEL, str(rank), LABEL, "num", "middle"))
    return squares + numbers


def _free(centre: tuple[float, float], taken: Sequence[tuple[float, float]], side: float) -> tuple[float, float]:
    """Where a number hides neither its key, if that is small, nor another number: the nearest place."""
    rings = [0.0] * (side >= LABEL) + [12.0, 20.0, 28.0, 36.0]
    turns = np.arange(12) * np.pi / 6
    for ring in rings:
        for turn in turns if ring else turns[:1]:
            x, y = centre[0] + ring * np.cos(turn), centre[1] - ring * np.sin(turn)
            inside = 6 <= x <= PANEL - 6 and 6 <= y <= PANEL - 6
            if inside and all(np.hypot(x - a, y - b) >= LABEL for a, b in taken):
                return float(x), float(y)
    return centre


def _halo(fill: str, stroke: str, width: float) -> str:
    return f"fill:{fill};stroke:{stroke};stroke-width:{width};paint-order:stroke;font-weight:700"
