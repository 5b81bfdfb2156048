"""How far a list of long things is: a bar on a terminal, else a line every so often."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")
LINES = 10.0
"""Seconds between the lines of a log."""


def each(items: Sequence[T], what: str, console: Console | None) -> Iterator[T]:
    """The items one after another."""
    if console is None or console.is_terminal:
        yield from items if console is None else track(items, what, console=console, transient=True)
        return
    told = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - told >= LINES:
            told = time.monotonic()
            console.print(f"{what}: {done} of {len(items)}", highlight=False, soft_wrap=True)
        yield item
