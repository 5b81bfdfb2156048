"""A part of the page: a heading, its content, and the charts that its content has places for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from superformer.report.markup import Markup, joined, tag, text

Chart = dict[str, Any]
"""What page.js needs to draw a chart (see `superformer.report.charts`)."""


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    body: Markup
    charts: Mapping[str, Chart] = field(default_factory=dict)

    def markup(self) -> Markup:
        return tag("section", tag("h2", self.title, id=f"{self.id}-title"), self.body, id=self.id, aria_labelledby=f"{self.id}-title")


def place(chart: str, caption: object, note: object = None, class_: str = "") -> Markup:
    """Where a chart is drawn."""
    return tag(
        "figure",
        tag("figcaption", caption),
        tag("div", class_="canvas", data_chart=chart),
        tag("p", note, class_="note") if note else None,
        class_=f"chart {class_}".strip(),
    )


def grid(*figures: Markup, class_: str = "two") -> Markup:
    return tag("div", *figures, class_=f"grid {class_}")


def several(*parts: object) -> Markup:
    """Parts of a body, those that are there."""
    return joined([text(p) for p in parts if p], "\n")
