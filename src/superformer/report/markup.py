"""What a page is made of: pieces of HTML, charts as plain values, sections.

Whatever is not marked as `Markup` is text, and is escaped: names of classes, paths and words come from files. Charts
(plots of lines, steps and dots; bars; heat maps) are drawn by the page's scripts. Their numbers are rounded and long
series thinned, so that a page of any run stays small; missing numbers (NaN, infinity) are None."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from superformer.draw.svg import FORBIDDEN

VOID = ("br", "img", "input")
MOST = 600
"""Points of a line."""
Chart = dict[str, Any]
"""What the scripts need to draw a chart."""
Values = Sequence[object]


class Markup(str):
    """HTML that is to be kept as it is."""

    __slots__ = ()


def text(part: object) -> Markup:
    """A part of a page: markup as it is, anything else escaped; nothing for None."""
    if part is None:
        return Markup("")
    return part if isinstance(part, Markup) else Markup(html.escape(FORBIDDEN.sub("\ufffd", str(part))))


def tag(name: str, *parts: object, **attributes: object) -> Markup:
    """One element. An attribute's name may end in _ and has _ for -; True is an attribute without a value, None and
    False leave it out."""
    opened = f"<{name}"
    for key, value in attributes.items():
        if value is not None and value is not False:
            attribute = key.rstrip("_").replace("_", "-")
            opened += f" {attribute}" if value is True else f' {attribute}="{text(value)}"'
    opened += ">"
    return Markup(opened if name in VOID else f"{opened}{''.join(map(text, parts))}</{name}>")


def joined(parts: Sequence[object], between: str = "") -> Markup:
    return Markup(between.join(map(text, parts)))


def paragraph(*parts: object, class_: str | None = None) -> Markup:
    return tag("p", *parts, class_=class_)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str, words: int = 1) -> Markup:
    """A table whose first ``words`` columns are words (left), the others numbers (right). On a phone each row becomes a
    small list."""
    kinds = ["word" if k < words else "number" for k in range(len(columns))]

    def cell(k: int, value: object) -> Markup:
        if k == 0:
            return tag("th", value, class_=kinds[0], scope="row", data_column=columns[0])
        return tag("td", value, class_=kinds[k], data_column=columns[k])

    head = tag("tr", *(tag("th", name, scope="col", class_=kind) for name, kind in zip(columns, kinds, strict=True)))
    body = [tag("tr", *(cell(k, value) for k, value in enumerate(row))) for row in rows]
    return tag("div", tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body)), class_="table")


def pairs(rows: Sequence[tuple[object, object]]) -> Markup:
    """Names and what they stand for."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in rows), class_="pairs")


def details(summary: str, *content: object, **attributes: object) -> Markup:
    """Content that opens when its summary is clicked."""
    return tag("details", tag("summary", summary), *content, **attributes)


def command(words: str) -> Markup:
    """Something to type."""
    return tag("pre", tag("code", words), class_="command", tabindex="0")


def clean(value: object, digits: int = 6) -> float | int | None:
    """A number in as many digits as a chart needs; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not math.isfinite(value):
        return None
    short = float(f"{float(value):.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short


def cleaned(values: Iterable[object], digits: int = 6) -> list[float | int | None]:
    return [clean(v, digits) for v in values]


def axis(
    title: str, quantity: str = "number", low: float | None = None, high: float | None = None, names: Any = None
) -> dict[str, Any]:
    """``quantity``: number, whole, percent, amount (k, M, G), seconds or bytes. ``low`` and ``high`` are values that
    must be seen; ``names``, a list, stand for the numbers 0, 1, ..."""
    return {"title": title, "quantity": quantity, "low": low, "high": high, "names": names}


def series(name: str, x: Values, y: Values, style: str = "line", colour: int = 0, dash: int = 0) -> dict[str, Any]:
    """``style``: line, step, dots, specks (many small dots) or both (a line with dots). Colours and dashes count."""
    if style in ("line", "step"):
        x, y = thinned(x, y)
    return {"name": name, "x": cleaned(x), "y": cleaned(y), "style": style, "colour": colour, "dash": dash}


def thinned(x: Values, y: Values) -> tuple[Values, Values]:
    """A long line by the means of its neighbours."""
    if len(x) <= MOST:
        return x, y
    groups = np.array_split(np.arange(len(x)), MOST)

    def means(column: Values) -> list[float]:
        values = np.asarray([math.nan if (v := clean(raw)) is None else v for raw in column], dtype=np.float64)
        known = [values[group][np.isfinite(values[group])] for group in groups]
        return [float(own.mean()) if own.size else math.nan for own in known]

    return means(x), means(y)


def plot(label: str, x: Mapping[str, Any], y: Mapping[str, Any], lines: Sequence[dict[str, Any]], **more: Any) -> Chart:
    """``label`` says in words what is to be seen. ``more``: small; diagonal (a line of equal values) with a band
    (relative) around it and a limit (of both axes); marks (vertical lines with words); together (one tooltip for all
    lines); ticks (of x) and heights (of y)."""
    return {"kind": "plot", "label": label, "x": dict(x), "y": dict(y), "series": list(lines), **more}


def bars(label: str, x: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Chart:
    """Rows have a name, a value, perhaps a group, a colour, and ``to``: where a whisker ends."""
    drawn = [{**r, "value": clean(r["value"]), "to": clean(r.get("to"))} for r in rows]
    return {"kind": "bars", "label": label, "x": dict(x), "rows": drawn}


def heat(
    label: str, x: str, columns: Values, rows: Sequence[str], values: Sequence[Values], what: str, low: float
) -> Chart:
    """A map of values from ``low`` (-1 or 0) to 1; ``values`` has a row for each of ``rows``."""
    chart = {"kind": "heat", "label": label, "x": x, "columns": cleaned(columns), "rows": list(rows)}
    return {**chart, "values": [cleaned(row, 3) for row in values], "what": what, "low": low}


def distribution(errors: Sequence[float], most: int = 300) -> tuple[list[float], list[float]]:
    """The empirical distribution function of errors: how large a share (in percent) is not above each."""
    ordered = np.sort(np.asarray(errors, dtype=np.float64))
    ordered = ordered[np.isfinite(ordered)]
    if not len(ordered):
        return [], []
    share = 100 * np.arange(1, len(ordered) + 1) / len(ordered)
    if len(ordered) > most:
        kept = np.unique(np.linspace(0, len(ordered) - 1, most).round().astype(int))
        ordered, share = ordered[kept], share[kept]
    return [float(ordered[0]), *ordered.tolist()], [0.0, *share.tolist()]


@dataclass(frozen=True)
class Section:
    """A part of the page: a heading, its content, and the charts that its content has places for."""

    id: str
    title: str
    body: Markup
    charts: Mapping[str, Chart] = field(default_factory=dict)

    def markup(self) -> Markup:
        name = f"{self.id}-title"
        return tag("section", tag("h2", self.title, id=name), self.body, id=self.id, aria_labelledby=name)


def chart_section(id_: str, title: str, told: str, caption: str, chart: Chart, *more: object) -> Section:
    """A section of a paragraph, one chart, and more."""
    return Section(id_, title, several(paragraph(told), place(id_, caption), *more), {id_: chart})


def place(chart: str, caption: object, note: object = None, class_: str = "") -> Markup:
    """Where a chart is drawn."""
    canvas = tag("div", class_="canvas", data_chart=chart)
    below = paragraph(note, class_="note") if note else None
    return tag("figure", tag("figcaption", caption), canvas, below, class_=f"chart {class_}".strip())


def grid(*figures: Markup, class_: str = "two") -> Markup:
    return tag("div", *figures, class_=f"grid {class_}")


def several(*parts: object) -> Markup:
    """Parts of a body, those that are there."""
    return joined([text(p) for p in parts if p], "\n")
