"""The steps of a training, whatever it trains, and what happens between them: what is told, checks, checkpoints, the
clock."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from torch import nn

from superformer import data
from superformer.errors import StoppedError, SuperformerError
from superformer.progress import Tell, deferred_interrupts, teller
from superformer.recipes.settings import Watch
from superformer.runs import stored
from superformer.runs.processes import World
from superformer.runs.storage import Checkpoint, latest_checkpoint, save_checkpoint, save_part
from superformer.settings import PROCESSES
from superformer.train.display import Display, Metrics, Pace
from superformer.train.state import Guard, Outcome
from superformer.train.time_budget import Costs, Revision, Stopwatch, Timekeeper, Timetable

TOLD = 0.1
"""By how much the number of steps must change to be told again."""
AGREE = 4
"""Steps after which processes agree about what the first one's clock says: for that they wait for their devices."""


class Steps(Protocol):
    """What takes the steps. ``steps``: as they were planned."""

    steps: int
    steps_per_epoch: int
    timetable: Timetable
    guard: Guard

    @property
    def world(self) -> World: ...

    def step(self, n: int, batch: Any) -> Outcome:
        """Step number ``n``, counted from 0."""

    def checkpoint(self, step: int) -> Checkpoint:
        """The state after so many steps."""


@dataclass
class Loop:
    """The steps of a run. ``batches`` of an epoch from a step on; ``check``: what is measured every so often, and how
    it is told; ``advice``: what to change if steps fail; ``before``: done before an epoch; ``main``: the figure of a
    check that counts, none: their mean."""

    folder: Path
    trainer: Steps
    watch: Watch
    batch_size: int
    batches: Callable[[int, int], data.Prefetcher[Any]]
    check: Callable[[], tuple[Mapping[str, Any], str]] | None
    console: Console
    done: int
    advice: str
    keeper: Timekeeper | None = None
    before: Callable[[int], None] = lambda done: None
    main: str | None = None

    def go(self) -> None:
        trainer = self.trainer
        self.world, self.steps = trainer.world, trainer.timetable.steps(self.done)
        self.per_epoch, self.told = trainer.steps_per_epoch, self.steps
        tell = teller(self.console)
        self.metrics = Metrics(self.folder / stored.METRICS, self.done, tell) if self.world.first else None
        self.display = Display(self.console, self.steps, self.done)
        self.saved, self.pace = time.monotonic(), Pace()
        size = sum(t.nbytes for t in trainer.checkpoint(self.done).tensors.values())
        self.in_parts = self.world.size > 1 and size >= 1e9 * self.watch.parts_above
        self.stopping = False
        self.checked: list[tuple[int, float]] = []
        self._note_known_checks()
        try:
            with deferred_interrupts() as self.interrupt:
                while self.done < self.steps:
                    self._epoch()
        finally:
            self.display.close()
            if self.metrics is not None:
                self.metrics.close()

    def _epoch(self) -> None:
        """The rest of an epoch."""
        trainer = self.trainer
        epoch, at = divmod(self.done, self.per_epoch)
        if at == 0:
            self.before(self.done)
        start = time.monotonic()
        batches = self.batches(epoch, at)
        if self.keeper is not None:  # what teachers say of a view is computed once: no part of the pace
            self.keeper.apart += time.monotonic() - start
        with closing(batches):
            for batch in batches:
                start = time.monotonic()
                outcome = trainer.step(self.done, batch)
                self.done += 1
                self.pace.note(self.batch_size, time.monotonic() - start, batches.waited)
                if self.keeper is not None:
                    self._keep_time(self.keeper)
                self._tell(outcome)
                if outcome.bad is not None:
                    self._tell_skipped(outcome.bad)
                if self._check_due():
                    self._timed("check", self._check)
                    self._stop_if_stale()
                if self._saves():
                    self._timed("save", self._save)
                if self._stops() and self.done < self.steps:
                    what = f"interrupted after step {self.done} of {self.steps}"
                    raise StoppedError(f"{what}: the same command goes on from here")
                if self.done >= self.steps:
                    break

    def _keep_time(self, keeper: Timekeeper) -> None:
        """Revise how many steps there are, if they would not end in time; all processes alike."""
        table, world = keeper.table, self.world
        if self._agreeing():
            found = keeper.stepped(self.done) if world.first else None
            if (steps := int(world.first_says(-1 if found is None else found.steps))) >= 0:
                revision = found or Revision(self.done, steps, keeper.watch.seconds)
                table.revise(self.folder if world.first else None, revision)
        if (now := table.steps(self.done)) != self.steps:
            if abs(now - self.told) > TOLD * self.told:
                self.display.note(f"step {self.done}: {now} steps fit into the time, not {self.told}")
                self.told = now
            self.display.revise(now)
            self.steps = now

    def _timed(self, kind: str, work: Callable[[], None]) -> None:
        start = time.monotonic()
        work()
        if self.keeper is not None:
            self.keeper.other(kind, time.monotonic() - start)

    def _save(self) -> None:
        """A checkpoint; where time counts, with what was spent of it. Of a large one each process writes a part, and
        the first one, when all are there, that they are one."""
        checkpoint, folder, parts = self.trainer.checkpoint(self.done), self.folder / CHECKPOINTS, 1
        more = {} if self.keeper is None else {"seconds": self.keeper.watch.seconds}
        checkpoint = replace(checkpoint, rest={**checkpoint.rest, "processes": self.world.size, **more})
        if self.in_parts:
            parts = self.world.size
            save_part(folder, checkpoint, self.world.rank, parts)
            self.world.wait()
        if self.world.first:
            save_checkpoint(folder, checkpoint, self.watch.keep, parts)
        self.saved = time.monotonic()

    def _tell(self, outcome: Outcome) -> None:
        self.display.step(self.done, loss=outcome.loss, lr=outcome.lr, **{"img/s": self.pace.speed})
        if self.metrics is None:
            return
        if self.done % self.watch.log == 0 or self.done == self.steps:
            self.metrics.write(
                "step", self.done, epoch=self.done / self.per_epoch, loss=outcome.loss, lr=outcome.lr,
                grad_norm=outcome.grad_norm, images_per_second=self.pace.speed, waited=self.pace.idle,
                seconds_left=self.display.left(self.done), **outcome.more,
            )  # fmt: skip
        if outcome.conflict is not None:
            self.metrics.write("conflict", self.done, **outcome.conflict)

    def _tell_skipped(self, why: str) -> None:
        """A skipped step; too many in a row end the run."""
        if self.metrics is not None:
            self.metrics.write("skipped", self.done, why=why)
        self.display.note(f"step {self.done} was skipped: {why}")
        in_a_row = self.trainer.guard.in_a_row
        if in_a_row >= self.watch.patience:
            raise StoppedError(f"{in_a_row} steps in a row had to be skipped ({why}). {self.advice}")

    def _check_due(self) -> bool:
        """Whether a moment that comes every so many epochs lies in the step just done; the end is one, too. Never
        without anything to check."""
        if self.check is None:
            return False
        every = self.watch.every * self.per_epoch
        return self.done == self.steps or math.floor(self.done / every) > math.floor((self.done - 1) / every)

    def _check(self) -> None:
        """What is found, by all processes, goes to the metrics."""
        assert self.check is not None
        found, told = self.check()
        if self.metrics is None:
            return
        self.metrics.write("health", self.done, **found, skipped=self.trainer.guard.skipped)
        self._note_check(self.done, found)
        self.display.note(f"epoch {self.done / self.per_epoch:.4g}: {told}")

    def _note_known_checks(self) -> None:
        """What checks found before this process, where that may end the training."""
        if self.watch.stop is None or not self.world.first:
            return
        for row in stored.read_lines(self.folder / stored.METRICS):
            if row.get("kind") == "health" and row["step"] <= self.done:
                self._note_check(int(row["step"]), row)

    def _note_check(self, step: int, found: Mapping[str, Any]) -> None:
        if (worth := _worth(found, self.main)) is not None:
            self.checked.append((step, worth))

    def _stop_if_stale(self) -> None:
        """End where the checks have not become better for long; in all processes alike, and again if it is killed."""
        if self.watch.stop is None or self.done >= self.steps:
            return
        best = max(self.checked, key=lambda c: c[1], default=(self.done, 0.0))[0]  # the first of equal ones
        stale = self.done - best >= self.watch.stop * self.per_epoch
        if self.world.first_says(float(stale)):
            table, seconds = self.trainer.timetable, self.keeper.watch.seconds if self.keeper is not None else 0.0
            table.revise(self.folder if self.world.first else None, Revision(self.done, self.done, seconds))
            self.display.note(f"step {self.done}: no better check for {self.watch.stop:g} epochs, training ends")
            self.display.revise(self.done)
            self.steps = self.done

    def _agreeing(self) -> bool:
        """Whether what the first process alone knows is told to the others after this step."""
        return self.world.size == 1 or self.done % AGREE == 0

    def _saves(self) -> bool:
        """Whether this process writes now; where all write, the first one's clock, or who interrupts it, says when."""
        due = self.watch.checkpoint_steps is not None and self.done % self.watch.checkpoint_steps == 0
        due = due or self.done == self.steps
        late = time.monotonic() - self.saved >= self.watch.checkpoint_seconds
        if not self.in_parts:
            return self.world.first and (due or late or self.interrupt.asked)
        self.stopping = False
        if self._agreeing():
            said = self.world.first_says(2.0 if self.interrupt.asked else float(late))
            self.stopping, late = said == 2, said > 0
            return due or late
        return due

    def _stops(self) -> bool:
        """Whether someone asked to stop; where all write checkpoints, all stop together."""
        return self.stopping if self.in_parts else self.interrupt.asked


def _worth(found: Mapping[str, Any], main: str | None) -> float | None:
    """Of what a check found, which is better the higher it is: the figure of this name, or the mean of all. None where
    nothing could be measured, as COCO's figures of sizes that no object has."""
    scores = next((v for k, v in found.items() if k not in ("kind", "step", "skipped")), None)
    figures = scores if isinstance(scores, Mapping) else {"": scores}
    values = [float(v) for k, v in figures.items() if v is not None and main in (None, k)]
    return sum(values) / len(values) if values else None


CHECKPOINTS = "checkpoints"
"""The folder of a run that they are in."""


def advice(lr: float, clip: str) -> str:
    """What to change where steps fail."""
    return (
        f"Try a smaller learning rate (optimizer.lr={lr / 3:.1g}), {clip}=1, longer optimizer.warmup_epochs, "
        "train.amp=off, in a new run folder; if the first steps fail already, look at the pictures"
    )


def newest_checkpoint(folder: Path, world: World, tell: Tell) -> Checkpoint | None:
    """The newest whole checkpoint of a run, the same in all processes: the first one sets damaged ones aside before the
    others look. Without one a run begins as a new one does."""
    if not world.first:
        world.wait()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = latest_checkpoint(folder / CHECKPOINTS)
    for warning in told:
        tell(f"warning: {warning.message}")
    if told and found is None:
        tell("no whole checkpoint is left: training begins again")
    if world.first:
        world.wait()
    return found


def check_processes(found: Checkpoint | None, world: World) -> None:
    """Refuse to go on with another number of processes, unless the user says so."""
    before = world.size if found is None else int(found.rest.get("processes", world.size))
    if before != world.size and os.environ.get(PROCESSES) != "any":
        what = f"the number of processes that train was {before}, and would now be {world.size}"
        why = "the batches stay the same, what drop path draws does not"
        raise SuperformerError(f"{what}: start {before} again, or give --processes any ({why})")


def timekeeper(
    folder: Path, known: Mapping[str, Any] | None, trainer: Steps, settings: Watch, found: Checkpoint | None,
    watch: Stopwatch, fresh: bool,
) -> Timekeeper | None:  # fmt: skip
    """Of a run that time set the epochs of (``known``: its facts); what its processes spent before this one counts. In
    any case its steps are as they were revised."""
    table = trainer.timetable = Timetable.read(folder, trainer.steps)
    if known is None:
        return None
    if not fresh:
        saved = [float(found.rest.get("seconds", 0.0))] if found is not None else []
        watch.before = max([known["seconds"], *(r.seconds for r in table.revisions), *saved])
    every, costs = settings.every * trainer.steps_per_epoch, Costs(**known["costs"])
    return Timekeeper(known["minutes"], table, watch, costs, every, settings.checkpoint_seconds)


def require_finite(net: nn.Module, clip: str = "gradients.clip") -> None:
    """A network with a weight that is no number is never a result."""
    bad = [name for name, t in net.state_dict().items() if not t.isfinite().all()]
    if bad:
        how = f"try a smaller optimizer.lr, {clip}=1 or train.amp=off in a new run folder"
        raise StoppedError(f"training ended with weights that are not finite numbers ({', '.join(bad[:3])}): {how}")
