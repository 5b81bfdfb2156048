"""Pieces of SVG text: a drawing to show and to save, colours of light and dark pages, elements, room for words."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from superformer.errors import SuperformerError

LIGHT = {
    "bg": "#ffffff", "card": "#f3f5f9", "edge": "#ccd4e0", "ink": "#18212e", "dim": "#525e70", "rule": "#3d4d66",
    "b0": "#3568cc", "b1": "#d06f1c", "b2": "#3a8a4d", "b3": "#9a4fb8",
    "w0": "#0c8f80", "w1": "#b83a8c", "w2": "#8a7300", "w3": "#6d5bd0",
}  # fmt: skip
DARK = {
    "bg": "#0f151d", "card": "#1a232f", "edge": "#374557", "ink": "#eaf0f7", "dim": "#a3b1c4", "rule": "#b6c5da",
    "b0": "#74a5ff", "b1": "#f3a45c", "b2": "#74c686", "b3": "#cf93e6",
    "w0": "#3fcfbd", "w1": "#f087c8", "w2": "#d9c04a", "w3": "#a99bff",
}  # fmt: skip
"""Page, card, edges, text, fainter text, rules; bars; words."""
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML cannot hold."""


class Drawing(str):
    """SVG text that notebooks show as a picture."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture. The file is there in full or not at all."""
        to = Path(path)
        try:
            part = to.with_name(f".{to.name}.{os.getpid()}")
            try:
                part.write_text(self, encoding="utf-8")
                part.replace(to)
            finally:
                part.unlink(missing_ok=True)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "that is no file's name"
            told = f"cannot write {str(path)!r}: {why}; give a file in a folder that is there"
            raise SuperformerError(told) from error
        return to


def style(id_: str, fills: dict[str, str], lines: dict[str, tuple[str, float | None]], more: dict[str, str]) -> str:
    """Colours as custom properties, and classes of this picture only: fills, lines (colour, width) and other rules."""
    at = f"#{id_}"
    light, dark = (";".join(f"--{k}:{v}" for k, v in palette.items()) for palette in (LIGHT, DARK))
    rules = {name: f"fill:var(--{colour})" for name, colour in ({k: k for k in LIGHT} | fills).items()}
    for name, (colour, width) in lines.items():
        rules[name] = f"fill:none;stroke:var(--{colour})" + (f";stroke-width:{width}" if width else "")
    classes = "".join(f"{at} .{name}{{{rule}}}" for each in (rules, more) for name, rule in each.items())
    colours = f"{at}{{{light};font-family:{FONT}}}@media (prefers-color-scheme:dark){{{at}{{{dark}}}}}"
    return f"<style>{colours}{classes}</style>"


def element(tag: str, content: str | None = None, **attributes: object) -> str:
    """One element. Numbers are rounded; an attribute's name may end in _ and has _ for -."""
    words = {}
    for name, value in attributes.items():
        word = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
        words[name.rstrip("_").replace("_", "-")] = FORBIDDEN.sub("\ufffd", word)
    opened = f"<{tag}" + "".join(f" {k}={quoteattr(v)}" for k, v in words.items())
    return f"{opened}/>" if content is None else f"{opened}>{escape(FORBIDDEN.sub(chr(0xFFFD), content))}</{tag}>"


def opening(
    id_: str, width: float, height: float, title: str, fills: dict[str, str],
    lines: dict[str, tuple[str, float | None]], **more: str,
) -> list[str]:  # fmt: skip
    """How a picture begins: its size, its title, its styles (bold ``h``, and ``more``) and its ground."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" id="{id_}" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img">',
        element("title", title),
        style(id_, fills, lines, {"h": "font-weight:600", **more}),
        element("rect", width=width, height=height, rx=10, class_="bg"),
    ]


def text(x: float, y: float, content: str, size: float = 10, class_: str = "d", anchor: str = "start") -> str:
    """Words whose start (or middle, or end) is at x."""
    more = {} if anchor == "start" else {"text_anchor": anchor}
    return element("text", content, x=float(x), y=float(y), font_size=size, class_=class_, **more)


def text_width(text: str, size: float) -> float:
    """How wide a text is, generously: fonts differ."""

    def one(c: str) -> float:
        if c in " il.,:;'|()\u00b7tfj":
            return 0.4
        return 1.05 if ord(c) > 0x2E80 or c in "MWmw@%" else 0.66 if c.isdigit() or c.isupper() else 0.62

    return size * sum(map(one, text))


def cut(text: str, room: float, size: float) -> str:
    """As much of a text as there is room for."""
    if text_width(text, size) <= room:
        return text
    while len(text) > 1 and text_width(text + "…", size) > room:
        text = text[:-1]
    return text + "…"


def wrapped(parts: Sequence[str], room: float, size: float, between: str = "  \u00b7  ") -> list[str]:
    """Parts of a sentence in as many lines as they need."""
    lines: list[str] = []
    for part in parts:
        if lines and text_width(lines[-1] + between + part, size) <= room:
            lines[-1] += between + part
        else:
            lines.append(cut(part, room, size))
    return lines
