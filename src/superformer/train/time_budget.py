"""Time as a budget: how much work fits, told before it begins and kept to while the machine's load changes.

A short measurement says what a step, a check and a saved checkpoint cost; from that the number of steps follows. While
training, the recent pace says when it would end. If that is off by more than ``TOLERANCE`` of the whole, the number of
steps is revised. A `Revision` is stored before it takes effect: a killed run goes on with the same ones, and what is
stored says which step ran with which learning rate. The schedule is one of progress: after a revision the rest of it
is stretched or shortened over the steps that are left, and still ends where it would have ended. Without revisions
step n is where it always was, to the last bit.

Seconds that a killed process spent count; those in which none ran do not."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from superformer import files
from superformer.errors import SuperformerError
from superformer.recipes.settings import Length, Optimizer, Watch
from superformer.runs import stored
from superformer.runs.stored import TIME

TOLERANCE, WINDOW = 0.03, 0.15
"""Shares of the whole time: how far off the end may be; which recent part of it tells the pace."""
MEASURED, MOST_MEASURED, LEAST_STEPS = 0.05, 20.0, 4
"""For the measurement: a share of the time, at most so many seconds, but at least so many steps."""
SPREAD = (0.0, 0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875)
"""Which steps of a training are measured, as shares of it: early ones may be larger networks than later ones."""
Clock = Callable[[], float]


class Timed(Protocol):
    """Settings of a training, of whatever kind."""

    @property
    def optimizer(self) -> Optimizer: ...
    @property
    def train(self) -> Length: ...
    @property
    def watch(self) -> Watch: ...
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self: ...


S = TypeVar("S", bound=Timed)


def now() -> float:
    return time.monotonic()


class TooShortError(SuperformerError):
    """A time in which not even one epoch fits; ``needed``: the minutes in which it would."""

    def __init__(self, told: str, needed: float):
        super().__init__(told)
        self.needed = needed


def check_minutes(minutes: float | None) -> None:
    if minutes is not None and not (math.isfinite(minutes) and minutes > 0):
        raise SuperformerError(f"minutes must be a number above 0, not {minutes}")


def say_time(seconds: float) -> str:
    """40 seconds, 12 minutes, 3.5 hours."""
    for unit, size in (("hour", 3600.0), ("minute", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}s"
    return f"{seconds:.3g} seconds"


def say_end(left: float) -> str:
    """The time of day in so many seconds; with the day, unless it is today."""
    end, today = time.localtime(time.time() + left), time.localtime()
    return time.strftime("%H:%M" if end[:3] == today[:3] else "%a %H:%M", end)


class Stopwatch:
    """Seconds that a piece of work has had, in this process (since ``start``) and in those ``before`` it."""

    def __init__(self, before: float = 0.0, start: float | None = None):
        self.before, self.start = before, now() if start is None else start

    @property
    def seconds(self) -> float:
        return self.before + now() - self.start


@dataclass(frozen=True)
class Costs:
    """Seconds of a step, of a check of the watched networks, of a saved checkpoint."""

    step: float
    check: float = 0.0
    save: float = 0.0

    @property
    def end(self) -> float:
        """After the last step: a check, the last checkpoint, the supernet."""
        return self.check + 2 * self.save

    def each(self, every: float, checkpoint_seconds: float) -> float:
        """A step with its share of the checks (one ``every`` so many steps) and of the checkpoints."""
        return self.step * (1 + self.save / max(checkpoint_seconds, self.step, 1e-9)) + self.check / every


@dataclass(frozen=True)
class Revision:
    """After ``step`` steps, ``seconds`` into the training, it was decided that there will be ``steps`` in all."""

    step: int
    steps: int
    seconds: float


@dataclass
class Timetable:
    """How many steps a training has, and where in its schedule each one is."""

    planned: int
    revisions: list[Revision] = field(default_factory=list)

    def steps(self, done: int) -> int:
        """In all, as far as it is decided after so many steps."""
        return next((r.steps for r in reversed(self.revisions) if r.step <= done), self.planned)

    def at(self, step: int) -> float:
        """Where in the planned schedule a step is: at the same share of what was left when steps were last revised."""
        place: float = 0
        begun, total = 0, self.planned
        for r in self.revisions:
            if r.step > step:
                break
            place += (self.planned - place) * (r.step - begun) / max(total - begun, 1)
            begun, total = r.step, r.steps
        if not begun:
            return step
        return min(place + (self.planned - place) * (step - begun) / max(total - begun, 1), self.planned)

    @property
    def decided(self) -> int:
        """The step of the last revision: until then a resumed run decides nothing anew."""
        return self.revisions[-1].step if self.revisions else 0

    @staticmethod
    def read(folder: Path, planned: int) -> Timetable:
        rows = stored.read_lines(folder / TIME)
        return Timetable(planned, [Revision(r["step"], r["steps"], r["seconds"]) for r in rows])

    def revise(self, folder: Path | None, revision: Revision) -> None:
        """From now on; first it is on the disk (in one of several processes)."""
        revisions = [*self.revisions, revision]
        if folder is not None:
            files.write(folder / TIME, "".join(files.line(vars(r)) for r in revisions))
        self.revisions = revisions


class Timekeeper:
    """Watches the clock of a training. ``costs``: as they were measured; ``every``: steps from check to check."""

    def __init__(
        self, minutes: float, table: Timetable, watch: Stopwatch, costs: Costs, every: float, checkpoint_seconds: float
    ):
        self.seconds, self.table, self.watch = 60 * minutes, table, watch
        self.every, self.checkpoint_seconds = every, checkpoint_seconds
        self.check, self.save, self.apart = costs.check, costs.save, 0.0
        self.revised = watch.seconds
        self._steps: deque[tuple[int, float]] = deque()

    def other(self, kind: str, seconds: float) -> None:
        """A ``check`` or a ``save`` took so long: it is no part of the pace."""
        self.apart += seconds
        setattr(self, kind, seconds)

    def stepped(self, done: int) -> Revision | None:
        """Called after each step; what has to be revised, if anything has."""
        spent, steps = self.watch.seconds, self._steps
        steps.append((done, spent - self.apart))
        while len(steps) > LEAST_STEPS and steps[-1][1] - steps[0][1] > WINDOW * self.seconds:
            steps.popleft()
        total = self.table.steps(done)
        if done >= total or done < self.table.decided or len(steps) < LEAST_STEPS:
            return None
        pace = (steps[-1][1] - steps[0][1]) / (steps[-1][0] - steps[0][0])
        costs = Costs(max(pace, 1e-9), self.check, self.save)
        each, left = costs.each(self.every, self.checkpoint_seconds), self.seconds - spent - costs.end
        room = TOLERANCE * self.seconds
        soon = spent - self.revised < room and left > room  # the last one must show its effect first
        if soon or abs((total - done) * each - left) <= room:
            return None
        self.revised = spent
        return Revision(done, done + max(0, math.floor(left / each)), spent)


def measured_steps(steps: int) -> Iterable[int]:
    """The numbers of steps to measure, without end."""
    while True:
        yield from (int(share * steps) for share in SPREAD)


def choose(recipe: S, costs: Costs, per_epoch: int, minutes: float, spent: float, least: int | None = None) -> S:
    """The recipe with the epochs that fit into what is left; a warm-up takes at most the share of it that it has in the
    recipe. Too little time for ``least`` steps, by default for one epoch, is refused."""
    watch = recipe.watch
    each = costs.each(watch.every * per_epoch, watch.checkpoint_seconds)
    steps = math.floor((60 * minutes - spent - costs.end) / each)
    wanted = per_epoch if least is None else min(least, per_epoch)
    if steps < wanted:
        around = spent + costs.end
        needed = math.ceil(11 * (around + each * wanted) / 60) / 10
        length = "one epoch" if wanted == per_epoch else f"{wanted} steps"
        short = f"{say_time(60 * minutes)} are too short to train for {length}, which takes about"
        takes = f"{say_time(each * wanted)} here, with {say_time(around)} before and after"
        raise TooShortError(f"{short} {takes}: give --minutes {needed:g} or more", needed)
    epochs = steps / per_epoch
    warmup = min(recipe.optimizer.warmup_epochs, recipe.optimizer.warmup_epochs * epochs / recipe.train.epochs)
    return with_epochs(recipe, epochs, warmup)


def as_begun(recipe: S, chosen: S, known: Mapping[str, Any] | None, minutes: float, folder: Path) -> S:
    """The recipe with the epochs that were ``chosen`` when its training began, in a time that is ``known``: it does not
    choose again. Another time is refused."""
    asked = None if known is None else known.get("asked", known["minutes"])
    if asked != minutes:
        was = "without a time" if asked is None else f"with {asked:g} minutes"
        raise stored.RunError(f"{folder} was begun {was}, not with {minutes:g} minutes: go on with the same words")
    return with_epochs(recipe, chosen.train.epochs, chosen.optimizer.warmup_epochs)


def with_epochs(recipe: S, epochs: float, warmup_epochs: float) -> S:
    """The recipe with other epochs; what it does after some of them, or in some steps, moves with them."""
    own, share = recipe.optimizer, epochs / recipe.train.epochs
    changes: dict[str, Any] = {"warmup_epochs": warmup_epochs, "milestones": tuple(m * share for m in own.milestones)}
    if own.warmup_steps is not None:
        changes["warmup_steps"] = min(own.warmup_steps, round(own.warmup_steps * share))
    optimizer, train = own.model_copy(update=changes), recipe.train.model_copy(update={"epochs": epochs})
    return recipe.model_copy(update={"train": train, "optimizer": optimizer})
