"""What the library says while it works, on the console it was given; without one it says nothing."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from rich.console import Console

T = TypeVar("T")
Tell = Callable[[str], None]
LOG_SECONDS = 10.0  # between the lines that say how far something is


_begun: list[float] = []
"""When the command line began, until someone asks."""


def note_begin() -> None:
    """Time that a command has counts from here: what is imported for it, too."""
    _begun[:] = [time.monotonic()]


def take_begin() -> float | None:
    """When the command line began, for the first that asks: the time of all others begins when they are called."""
    return _begun.pop() if _begun else None


def quiet(console: Console | None) -> Console:
    """The console, or one that shows nothing."""
    return console if console is not None else Console(quiet=True)


def teller(console: Console | None) -> Tell:
    """Prints lines as they are: no markup, no colours of numbers, no breaks."""
    shown = quiet(console)
    return lambda text: shown.print(text, highlight=False, soft_wrap=True, markup=False)


class Clock:
    """When the next line of a log is due."""

    def __init__(self) -> None:
        self.start = self.told = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self.start

    def due(self) -> bool:
        if time.monotonic() - self.told < LOG_SECONDS:
            return False
        self.told = time.monotonic()
        return True


def each(items: Sequence[T], what: str, console: Console | None) -> Iterator[T]:
    """The items one after another, with how far they are: a bar on a terminal, else a line every so often."""
    if console is not None and console.is_terminal:
        from rich.progress import track  # not needed by every command

        yield from track(items, what, console=console, transient=True)
        return
    clock, tell = Clock(), teller(console)
    for done, item in enumerate(items):
        if clock.due():
            tell(f"{what}: {done} of {len(items)}")
        yield item


@contextmanager
def chapter(console: Console, title: str) -> Iterator[None]:
    """A part of a longer work: its title before it, its time after it."""
    console.rule(title, align="left")
    start = time.monotonic()
    yield
    console.print(f"({time.monotonic() - start:.0f} s)", style="dim", highlight=False)


@contextmanager
def doing(console: Console | None, what: str = "") -> Iterator[Tell]:
    """What is being done, as one live line on a terminal that later ones replace; elsewhere only ``what``."""
    shown = quiet(console)
    if shown.is_terminal:
        with shown.status(what) as status:
            yield status.update
        return
    if what:
        teller(shown)(what)
    yield lambda text: None


_asked: list[int] = []
"""Requests to stop that were raised, and must have ended the work."""


def note_interrupts() -> None:
    """From now on Ctrl-C is noted before it is raised. Some libraries catch everything while they are imported: what is
    lost there, the next loop finds (`deferred_interrupts`)."""

    def noted(number: int, frame: FrameType | None) -> None:
        _asked.append(number)
        raise KeyboardInterrupt

    _asked.clear()
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, noted)


class Interrupt:
    """Whether someone asked to stop, by Ctrl-C or SIGTERM. A second Ctrl-C stops at once."""

    asked = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def deferred_interrupts() -> Iterator[Interrupt]:
    """Signals are noted, for the loop to look at after each step: what is saved between two steps is whole."""
    interrupt = Interrupt()
    if _asked:
        raise KeyboardInterrupt
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {number: signal.signal(number, interrupt._note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
