"""Errors that tell what was given, what is possible and what to do, and numbers as messages write them."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable

VERSION = "0.1.0"
"""Of superformer."""


class SuperformerError(ValueError):
    """A mistake in what was asked; the message is meant for the person who asked."""


class SpaceError(SuperformerError):
    """A search space that is not well formed, or a name no space has."""


class ArchError(SuperformerError):
    """An architecture that is not well formed, or lies outside the space it is used with."""


class InfeasibleError(SuperformerError):
    """Limits that no architecture of the space meets."""


class StoppedError(RuntimeError):
    """Work that could not go on, through no mistake in what was asked; the message says why and what to do."""


def unknown(what: str, given: str, known: Iterable[str]) -> SpaceError:
    """The error for a name that nothing published has."""
    return SpaceError(f"unknown {what} {given!r}: {nearest(given, known)}")


def shown(value: object) -> str:
    """What was given, cut to a length that a line has room for, however long or deep it is."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxtuple, _SHORT.maxdict = 3, 8, 8, 6


def nearest(given: object, known: Iterable[object]) -> str:
    """A sentence that names the neighbour of a misspelt word and everything that is possible."""
    names = [str(k) for k in known]
    close = difflib.get_close_matches(str(given)[:100], names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}possible: {', '.join(names) if names else 'nothing'}"


def amount(value: float) -> str:
    """Three digits: 1.75 G, 384 M, 12."""
    power, unit = next(((p, u) for p, u in ((9, "G"), (6, "M"), (3, "k")) if value >= 0.9995 * 10**p), (0, ""))
    return f"{value / 10**power:.3g} {unit}".strip()
