"""Pieces of HTML text. Whatever is not marked as `Markup` is text, and is escaped: names of classes, paths and words come from files."""

from __future__ import annotations

import html
from collections.abc import Sequence

from superformer.svg import FORBIDDEN

VOID = ("br", "input")


class Markup(str):
    """HTML that is to be kept as it is."""

    __slots__ = ()


Part = str | Markup | None


def text(part: object) -> Markup:
    """A part of a page: markup as it is, anything else escaped; nothing for None."""
    if part is None:
        return Markup("")
    return part if isinstance(part, Markup) else Markup(html.escape(FORBIDDEN.sub("\ufffd", str(part))))


def tag(name: str, *parts: object, **attributes: object) -> Markup:
    """One element. An attribute's name may end in _ and has _ for -; True is an attribute without a value, None and False leave it out."""
    words = []
    for key, value in attributes.items():
        if value is not None and value is not False:
            word = key.rstrip("_").replace("_", "-")
            words.append(f" {word}" if value is True else f' {word}="{text(value)}"')
    opened = f"<{name}{''.join(words)}>"
    return Markup(opened if name in VOID else f"{opened}{''.join(map(text, parts))}</{name}>")


def joined(parts: Sequence[object], between: str = "") -> Markup:
    return Markup(between.join(map(text, parts)))


def paragraph(*parts: object, class_: str | None = None) -> Markup:
    return tag("p", *parts, class_=class_)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str, words: int = 1) -> Markup:
    """A table whose first ``words`` columns are words (left), the others numbers (right). On a phone each row becomes a small list."""

    def cell(k: int, value: object) -> Markup:
        kind = "word" if k < words else "number"
        return tag("th" if k == 0 else "td", value, class_=kind, scope="row" if k == 0 else None, data_column=columns[k])

    head = tag("tr", *(tag("th", name, scope="col", class_="word" if k < words else "number") for k, name in enumerate(columns)))
    body = [tag("tr", *(cell(k, value) for k, value in enumerate(row))) for row in rows]
    return tag("div", tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body)), class_="table")


def pairs(rows: Sequence[tuple[object, object]]) -> Markup:
    """Names and what they stand for."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in rows), class_="pairs")


def command(words: str) -> Markup:
    """Something to type."""
    return tag("pre", tag("code", words), class_="command", tabindex="0")
