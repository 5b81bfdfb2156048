"""The loop: from a recipe and pictures to a trained supernet in a run folder. Killed at any moment, the same call goes
on where it was."""

from __future__ import annotations

import functools
import math
import time
import warnings
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from superformer import data, files
from superformer.cost.latency_table import LatencyTable
from superformer.errors import StoppedError
from superformer.families.network import Network
from superformer.kernels import keep_freed
from superformer.machine import tell_if_busy, torch_threads
from superformer.progress import Tell, deferred_interrupts, quiet, take_begin, teller
from superformer.recipes import Recipe, resolve, space_of
from superformer.runs import Run, RunError, note_command
from superformer.runs.processes import World
from superformer.runs.storage import Checkpoint, latest_checkpoint, save_checkpoint, save_supernet
from superformer.train.channel_sort import sort_channels
from superformer.train.display import Display, Metrics, Pace
from superformer.train.optimizer import check_no_decay
from superformer.train.preparation import (
    build_trainer,
    check_networks,
    count_steps,
    epoch_batches,
    identity_of,
    measure,
    rehearse,
)
from superformer.train.step import Outcome, Trainer
from superformer.train.time_budget import (
    Costs,
    Revision,
    Stopwatch,
    Timekeeper,
    Timetable,
    check_minutes,
    choose,
    say_end,
    say_time,
    with_epochs,
)

TOLD = 0.1
"""By how much the number of steps must change to be told again."""


def train(
    recipe: Recipe | str, data_spec: str, folder: str | Path, *changes: str, console: Console | None = None,
    minutes: float | None = None,
) -> Run:  # fmt: skip
    """Train the supernet of a recipe on pictures (see `superformer.data`) in a run folder; or go on with it.
    ``changes`` are ``key=value`` words for a recipe given by name or file. ``minutes``: as many epochs as fit into them
    (`superformer.train.time_budget`), instead of the recipe's."""
    check_minutes(minutes)
    watch = Stopwatch(start=take_begin())
    inside, world = World.joined(), World.join()
    keep_freed()
    try:
        settings = recipe if isinstance(recipe, Recipe) else resolve(recipe, changes)
        with torch_threads(settings.train.threads):
            shown = quiet(console if world.first else None)
            return _train(settings, data_spec, Path(folder), world, shown, minutes, watch)
    finally:
        if not inside:
            world.leave()


def _train(
    recipe: Recipe, spec: str, folder: Path, world: World, console: Console, minutes: float | None, watch: Stopwatch
) -> Run:
    run = Run(folder)
    recipe = _as_begun(run, recipe, minutes)
    # published spaces may be written otherwise in a later version: a run keeps its own
    space = run.space() if run.recipe_file.exists() else space_of(recipe)
    img_size = recipe.img_size or space.img_size
    pictures = data.load(spec, recipe.data, img_size)
    steps_per_epoch = data.steps_per_epoch(len(pictures.train), recipe.train.batch_size)
    _ = pictures.search  # read now: pictures that cannot be read are told of before training, not at the first check
    facts = {"data": spec, "fingerprint": pictures.fingerprint, "classes": list(pictures.classes), "img_size": img_size}
    facts |= {"pictures": {"train": len(pictures.train), "search": len(pictures.search)}}
    run.check(recipe, facts)
    tell = teller(console)
    own, table = identity_of(run, recipe, space, len(pictures.classes), img_size, world, tell)
    facts |= {"identity": own.sampling.identity} if own is not recipe else {}
    steps = count_steps(recipe, steps_per_epoch)
    build = functools.partial(build_trainer, own, space, pictures.classes, steps, steps_per_epoch, world, tell=tell)
    tell_if_busy(tell)

    trainer, fresh = None, not run.recipe_file.exists()
    if fresh:  # what is wrong with the settings is found before anything is written
        trainer = build()
        check_no_decay(recipe.optimizer.no_decay, trainer.net)
        rehearse(trainer, pictures, img_size)
        if minutes is not None:
            costs, trainer = measure(trainer, pictures, img_size, minutes), None
            spent = world.first_says(watch.seconds)
            recipe, own = (choose(one, costs, steps_per_epoch, minutes, spent) for one in (recipe, own))
            facts["time"] = {"minutes": minutes, "seconds": spent, "costs": vars(costs)}
            steps = count_steps(recipe, steps_per_epoch)
            build = functools.partial(build_trainer, own, space, pictures.classes, steps, steps_per_epoch, world)
    with run.lock() if world.first else nullcontext():
        if world.first:
            run.begin(recipe, space, facts)
            if table is not None:
                device = table.device
                table.save(run.folder / LatencyTable.file_name(table.runtime, table.threads, table.batch, device))
            note_command(run.folder)
        found = _newest(run, world, tell)
        trainer = trainer or build(warm=found is None)
        done = found.step if found is not None else 0
        keeper = _keeper(run, trainer, found, watch, fresh)
        steps = trainer.timetable.steps(done)
        if found is not None:
            with files.understood(run.checkpoints, f"delete the checkpoint of step {done} there"):
                trainer.restore(found)
            tell(f"going on after step {done} of {steps}")
        if done >= steps and run.supernet_file.exists():
            tell(f"{run.folder} is already trained ({steps} steps)")
            return run
        if keeper is not None:
            left = keeper.seconds - watch.seconds
            epochs = f"{steps / steps_per_epoch:.3g} epochs ({steps} steps)"
            tell(f"{epochs} for {say_time(keeper.seconds)}, ends at about {say_end(left)}")
        _Loop(run, trainer, pictures, img_size, console, done, keeper).go()
        if world.first:
            require_finite(trainer.best)
            last = trainer.timetable.steps(trainer.timetable.decided)
            about = {"step": last, "mean": recipe.data.mean, "std": recipe.data.std}
            save_supernet(trainer.best, run.supernet_file, pictures.classes, **about)
        world.wait()
    return run


def _as_begun(run: Run, recipe: Recipe, minutes: float | None) -> Recipe:
    """The recipe with the epochs that a run chose when it began: it does not choose again."""
    if minutes is None or not run.recipe_file.exists():
        return recipe
    known, chosen = run.facts().get("time"), run.recipe()
    if known is None or known["minutes"] != minutes:
        was = "without a time" if known is None else f"with {known['minutes']:g} minutes"
        raise RunError(f"{run.folder} was begun {was}, not with {minutes:g} minutes: go on with the same words")
    return with_epochs(recipe, chosen.train.epochs, chosen.optimizer.warmup_epochs)


def _keeper(run: Run, trainer: Trainer, found: Checkpoint | None, watch: Stopwatch, fresh: bool) -> Timekeeper | None:
    """Of a run that time set the epochs of; what its processes spent before this one counts."""
    if (known := run.facts().get("time")) is None:
        return None
    table = trainer.timetable = Timetable.read(run.folder, trainer.steps)
    if not fresh:
        saved = [float(found.rest.get("seconds", 0.0))] if found is not None else []
        watch.before = max([known["seconds"], *(r.seconds for r in table.revisions), *saved])
    own = trainer.recipe.watch
    every = own.every * trainer.steps_per_epoch
    costs = Costs(**known["costs"])
    return Timekeeper(known["minutes"], table, watch, costs, every, own.checkpoint_seconds)


def require_finite(net: Network) -> None:
    """A network with a weight that is no number is never a result."""
    bad = [name for name, t in net.state_dict().items() if not t.isfinite().all()]
    if bad:
        how = "try a smaller optimizer.lr, gradients.clip=1 or train.amp=off in a new run folder"
        raise StoppedError(f"training ended with weights that are not finite numbers ({', '.join(bad[:3])}): {how}")


def _newest(run: Run, world: World, tell: Tell) -> Checkpoint | None:
    """The newest whole checkpoint, the same in all processes: the first one sets damaged ones aside before the others
    look. Without one a run begins as a new one does."""
    if not world.first:
        world.wait()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = latest_checkpoint(run.checkpoints)
    for warning in told:
        tell(f"warning: {warning.message}")
    if told and found is None:
        tell("no whole checkpoint is left: training begins again")
    if world.first:
        world.wait()
    return found


@dataclass
class _Loop:
    """The steps of a run, and what happens between them."""

    run: Run
    trainer: Trainer
    pictures: data.DataSet
    img_size: int
    console: Console
    done: int
    keeper: Timekeeper | None = None

    def go(self) -> None:
        trainer = self.trainer
        self.recipe, self.world, self.steps = trainer.recipe, trainer.world, trainer.timetable.steps(self.done)
        self.per_epoch, self.told = trainer.steps_per_epoch, self.steps
        tell = teller(self.console)
        self.metrics = Metrics(self.run.metrics_file, self.done, tell) if self.world.first else None
        self.display = Display(self.console, self.steps, self.done)
        self.saved, self.pace = time.monotonic(), Pace()
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
        recipe, world, trainer = self.recipe, self.world, self.trainer
        epoch, at = divmod(self.done, self.per_epoch)
        if at == 0 and trainer.timetable.at(self.done) < recipe.train.channel_sort * trainer.steps:
            self._sort()
        batches = epoch_batches(trainer, self.pictures, self.img_size, epoch, at)
        with closing(batches):
            for batch in batches:
                start = time.monotonic()
                outcome = trainer.step(self.done, batch)
                self.done += 1
                self.pace.note(recipe.train.batch_size, time.monotonic() - start, batches.waited)
                if self.keeper is not None:
                    self._keep_time(self.keeper)
                self._tell(outcome)
                if outcome.bad is not None:
                    self._tell_skipped(outcome.bad)
                if world.first and self._check_due():
                    self._timed("check", self._check)
                if world.first and (self._save_due() or self.interrupt.asked):
                    self._timed("save", self._save)
                if self.interrupt.asked and self.done < self.steps:
                    what = f"interrupted after step {self.done} of {self.steps}"
                    raise StoppedError(f"{what}: the same command goes on from here")
                if self.done >= self.steps:
                    break

    def _keep_time(self, keeper: Timekeeper) -> None:
        """Revise how many steps there are, if they would not end in time; all processes alike."""
        table, world = keeper.table, self.world
        found = keeper.stepped(self.done) if world.first else None
        if (steps := int(world.first_says(-1 if found is None else found.steps))) >= 0:
            revision = found or Revision(self.done, steps, keeper.watch.seconds)
            table.revise(self.run.folder if world.first else None, revision)
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
        """A checkpoint; where time counts, with what was spent of it."""
        checkpoint = self.trainer.checkpoint(self.done)
        if self.keeper is not None:
            checkpoint = replace(checkpoint, rest={**checkpoint.rest, "seconds": self.keeper.watch.seconds})
        save_checkpoint(self.run.checkpoints, checkpoint, self.recipe.watch.keep)
        self.saved = time.monotonic()

    def _sort(self) -> None:
        """ViT-ResNAS's released "rewiring": at the start of an epoch heads and hidden units are sorted by importance;
        the optimiser's moments and the average of the weights follow (the released ones do not)."""
        order = sort_channels(self.trainer.net)
        order.follow(self.trainer.optimizer, self.trainer.net)
        if self.trainer.ema is not None:
            order.apply(self.trainer.ema.module.state_dict())

    def _tell(self, outcome: Outcome) -> None:
        self.display.step(self.done, loss=outcome.loss, lr=outcome.lr, **{"img/s": self.pace.speed})
        if self.metrics is None:
            return
        if self.done % self.recipe.watch.log == 0 or self.done == self.steps:
            self.metrics.write(
                "step", self.done, epoch=self.done / self.per_epoch, loss=outcome.loss, lr=outcome.lr,
                grad_norm=outcome.grad_norm, images_per_second=self.pace.speed, waited=self.pace.idle,
                seconds_left=self.display.left(self.done),
            )  # fmt: skip
        if outcome.conflict is not None:
            self.metrics.write("conflict", self.done, **outcome.conflict)

    def _tell_skipped(self, why: str) -> None:
        """A skipped step; too many in a row end the run."""
        if self.metrics is not None:
            self.metrics.write("skipped", self.done, why=why)
        self.display.note(f"step {self.done} was skipped: {why}")
        in_a_row = self.trainer.guard.in_a_row
        if in_a_row >= self.recipe.watch.patience:
            raise StoppedError(
                f"{in_a_row} steps in a row had to be skipped ({why}). Try a smaller learning rate "
                f"(optimizer.lr={self.recipe.optimizer.lr / 3:.1g}), gradients.clip=1, longer optimizer.warmup_epochs, "
                "train.amp=off, in a new run folder; if the first steps fail already, look at the pictures"
            )

    def _check_due(self) -> bool:
        """Whether a moment that comes every so many epochs lies in the step just done; the end is one, too. Never
        without a search split."""
        if not len(self.pictures.search):
            return False
        every = self.recipe.watch.every * self.per_epoch
        return self.done == self.steps or math.floor(self.done / every) > math.floor((self.done - 1) / every)

    def _check(self) -> None:
        """The accuracy of the watched sub-networks on the search split."""
        found = check_networks(self.trainer, self.pictures, self.img_size)
        assert self.metrics is not None
        self.metrics.write("health", self.done, accuracy=found, skipped=self.trainer.guard.skipped)
        told = ", ".join(f"{name} {100 * value:.1f} %" for name, value in found.items())
        self.display.note(f"epoch {self.done / self.per_epoch:.4g}: accuracy on the search split {told}")

    def _save_due(self) -> bool:
        watch = self.recipe.watch
        late = time.monotonic() - self.saved >= watch.checkpoint_seconds
        due = watch.checkpoint_steps is not None and self.done % watch.checkpoint_steps == 0
        return late or due or self.done == self.steps
