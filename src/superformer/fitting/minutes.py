"""How the time of a fit is spread over its parts: each part's minutes are decided when it begins, from what is left of
the whole, and noted (``DIR/minutes.json``), so that the same words go on with the same ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from superformer import files
from superformer.errors import SuperformerError
from superformer.runs import Run, stored
from superformer.train.time_budget import Stopwatch, TooShortError

FILE = "minutes.json"
ORIGINAL, SUPERNET, SEARCH = 0.18, 0.3, 0.15
"""Shares of what is left when a part begins; the networks share the rest."""
MOST = {"original": 0.4, "supernet": 0.6}
"""The most that an epoch of these may take of what is left, where it needs more than its share."""
END, LEAST = 0.02, 1e-3
"""Of the whole, for the last measurements; the least minutes of a part."""
T = TypeVar("T")


def _say(minutes: float | None) -> str:
    return "without a time" if minutes is None else f"with {minutes:g} minutes"


class Minutes:
    """The minutes of each part; none at all where no time was given. ``first``: the run of the first part, which is
    there before anything is noted. ``aim``: what is asked for; with another one than before the search and the networks
    have their time again."""

    def __init__(self, home: Path, minutes: float | None, watch: Stopwatch, first: Run, aim: str = ""):
        self.path, self.whole, self.watch, self.aim = home / FILE, minutes, watch, aim
        self.parts: dict[str, dict[str, float]] = {}
        was, now, other = _say(minutes), _say(minutes), False
        if self.path.exists():
            noted = stored.read(self.path)
            self.parts = {part.pop("name"): part for part in noted["parts"]}
            was, other = _say(noted["minutes"]), noted.get("aim", aim) != aim
        elif first.recipe_file.exists():
            own = first.facts().get("time", {}).get("minutes")
            if own is not None:
                self.parts = {"original": {"minutes": own, "begun": 0.0}}
            if (own is None) != (minutes is None):
                was = _say(None) if own is None else "with a time"
        if was != now:
            raise stored.RunError(f"{home} was begun {was}, not {now}: go on with the same words")
        if other:
            self.parts = {name: part for name, part in self.parts.items() if name in MOST}
        self.resumed = self.parts[[*self.parts][-1]] if self.parts else None
        watch.before = self.resumed["begun"] if self.resumed is not None else 0.0
        if other and self.resumed is not None:
            watch.before += 60 * self.resumed["minutes"]

    @property
    def left(self) -> float:
        """Of the whole, without what the end needs. A part that a killed process had begun has had all its minutes."""
        if self.whole is None:
            return math.inf
        spent = self.watch.seconds / 60
        if self.resumed is not None:
            spent = max(spent, self.resumed["begun"] / 60 + self.resumed["minutes"])
        return max((1 - END) * self.whole - spent, 0.0)

    def of(self, part: str, share: float) -> float | None:
        """The minutes of a part: as noted, or a share of what is left."""
        if self.whole is None:
            return None
        if part not in self.parts:
            self._decide(part, share * self.left)
        return self.parts[part]["minutes"]

    def spend(self, part: str, share: float, work: Callable[[float | None], T]) -> T:
        """Do a part in its share of what is left; in as many minutes as an epoch needs, where those are not much more.
        It is noted before, where there is a folder: the run of the first part knows its minutes itself."""
        if self.whole is None:
            return work(None)
        before = self.left
        minutes = self.parts[part]["minutes"] if part in self.parts else self._decide(part, share * before)
        try:
            found = work(minutes)
        except TooShortError as error:
            if error.needed > MOST[part] * before:
                needed = math.ceil(error.needed / MOST[part] + self.whole - before)
                short = f"{self.whole:g} minutes are too short to tune, train, search and retrain here"
                where = ", in a new folder" if self.path.exists() else ""
                raise SuperformerError(f"{short}: give --minutes {needed} or more{where}") from error
            found = work(self._decide(part, error.needed))
        self.note()
        return found

    def skip(self, part: str) -> None:
        """There is no time for a part."""
        self.parts[part]["minutes"] = 0.0
        self.note()

    def note(self) -> None:
        parts = [{"name": name, **part} for name, part in self.parts.items()]
        files.write_object(self.path, {"minutes": self.whole, "aim": self.aim, "parts": parts})

    def _decide(self, part: str, minutes: float) -> float:
        """Never nothing: what is too short is told by what it is too short for."""
        self.resumed, minutes = None, max(minutes, LEAST)
        self.parts[part] = {"minutes": minutes, "begun": self.watch.seconds}
        if self.path.parent.exists():
            self.note()
        return minutes
