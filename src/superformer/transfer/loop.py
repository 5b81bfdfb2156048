"""The loop: from a backbone, a head and examples to a trained model in a folder. Killed at any moment, the same call
goes on where it was. The steps themselves are those of every training (`superformer.train.steps`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from superformer import files
from superformer.data.batches import Prefetcher, steps_per_epoch
from superformer.errors import SuperformerError
from superformer.kernels import compiled
from superformer.machine import tell_if_busy
from superformer.progress import Tell, teller
from superformer.runs import note_command
from superformer.runs.processes import World
from superformer.runs.storage import write_tensors
from superformer.train.optimizer import check_no_decay
from superformer.train.preparation import step_costs
from superformer.train.steps import (
    CHECKPOINTS,
    Loop,
    advice,
    check_processes,
    newest_checkpoint,
    require_finite,
    timekeeper,
)
from superformer.train.time_budget import Costs, Stopwatch, as_begun, choose, say_end, say_time
from superformer.transfer.evaluation import judge, told
from superformer.transfer.examples import load
from superformer.transfer.folder import TransferRun
from superformer.transfer.model import assemble
from superformer.transfer.settings import MAIN, Transfer
from superformer.transfer.source import Source
from superformer.transfer.task import Batch, TaskData
from superformer.transfer.training import Trainer, train_batches

CLIP = "train.clip"
LEAST = 50
"""Steps that a time must be enough for: sets of detection are large, and an epoch of them is long."""


@dataclass(frozen=True)
class _Work:
    """What only a transfer does between its steps."""

    trainer: Trainer
    data: TaskData

    def batches(self, epoch: int, start: int) -> Prefetcher[Batch]:
        return train_batches(self.data.train, self.trainer.settings, epoch, start, self.trainer.world)

    def check(self) -> tuple[dict[str, Any], str]:
        """The task's figures on the examples that models are chosen by; the first process finds them."""
        own, device = self.trainer.settings, self.trainer.world.device
        if not self.trainer.world.first:
            return {}, ""
        found = judge(self.trainer.best, self.data, self.data.choice, own, device, own.watch.pictures)["metrics"]
        return {"metrics": found}, f"on the pictures to choose by: {told({MAIN[own.task]: found[MAIN[own.task]]})}"

    def rehearse(self) -> None:
        """The first batch, without a trace: what only shows there is told before a run is begun."""
        with closing(self.batches(0, 0)) as batches:
            self.trainer.rehearse(next(iter(batches)))

    def costs(self, minutes: float) -> Costs:
        """What a step, a check and a checkpoint cost now. The trainer is worn out by it."""
        check = self.check if len(self.data.choice) else None
        return step_costs(self.trainer, self.batches(0, 0), check, minutes)


def train_task(
    run: TransferRun, settings: Transfer, source: Source, spec: str, world: World, console: Console,
    minutes: float | None, watch: Stopwatch,
) -> None:  # fmt: skip
    """Train in the folder of a transfer, or go on."""
    tell = teller(console)
    data = load(settings.task, spec, settings.data)
    _tell_data(data, tell)
    settings = _batch_that_is_there(settings, len(data.train), world, tell)
    per_epoch = steps_per_epoch(len(data.train), settings.train.batch_size)
    settings = _as_begun(run, in_epochs(settings, per_epoch), minutes)
    facts = facts_of(settings, source, spec, data)
    run.check(settings, facts)
    tell_if_busy(tell)
    fresh, trainer = not run.begun, None
    if fresh:  # what is wrong with the settings is found before anything is written
        trainer = _trainer(settings, source, data, per_epoch, world)
        check_no_decay(settings.optimizer.no_decay, trainer.model)
        _Work(trainer, data).rehearse()
        if minutes is not None:
            costs, trainer = _Work(trainer, data).costs(minutes), None
            spent, training = world.first_says(watch.seconds), minutes - _judging(data, settings, costs) / 60
            settings = choose(settings, costs, per_epoch, max(training, minutes / 2), spent, LEAST)
            known = {"asked": minutes, "minutes": max(training, minutes / 2), "seconds": spent, "costs": vars(costs)}
            facts["time"] = known
    with run.lock() if world.first else nullcontext():
        if world.first:
            run.begin(settings, facts)
            note_command(run.folder)
        _go(run, settings, source, data, trainer, world, console, watch, fresh)
        world.wait()


def _go(
    run: TransferRun, settings: Transfer, source: Source, data: TaskData, trainer: Trainer | None, world: World,
    console: Console, watch: Stopwatch, fresh: bool,
) -> None:  # fmt: skip
    """The steps that are left, and what they end with."""
    tell, per_epoch = teller(console), steps_per_epoch(len(data.train), settings.train.batch_size)
    found = newest_checkpoint(run.folder, world, tell)
    trainer = trainer or _trainer(settings, source, data, per_epoch, world, warm=found is None)
    done = found.step if found is not None else 0
    keeper = timekeeper(run.folder, run.facts().get("time"), trainer, settings.watch, found, watch, fresh)
    steps = trainer.timetable.steps(done)
    if found is not None:
        with files.understood(run.folder / CHECKPOINTS, f"delete the checkpoint of step {done} there"):
            trainer.state.restore(found)
        tell(f"going on after step {done} of {steps}")
    if done >= steps and run.network_file.exists():
        tell(f"{run.folder} is already trained ({steps} steps)")
        return
    check_processes(found, world)
    if keeper is not None:
        epochs = f"{steps / per_epoch:.3g} epochs ({steps} steps)"
        tell(f"{epochs} for {say_time(keeper.seconds)}, ends at about {say_end(keeper.seconds - watch.seconds)}")
    work, how = _Work(trainer, data), advice(settings.optimizer.lr, CLIP)
    check = work.check if len(data.choice) else None
    given = settings.watch, settings.train.batch_size, work.batches, check
    Loop(run.folder, trainer, *given, console, done, how, keeper, main=MAIN[settings.task]).go()
    if world.first:
        require_finite(trainer.best, CLIP)
        header = {"task": settings.task, "head": settings.head_used}
        write_tensors(run.network_file, trainer.best.state_dict(), header)


def _batch_that_is_there(settings: Transfer, pictures: int, world: World, tell: Tell) -> Transfer:
    """The small recipes take what there is where it is less than their batch; what a paper prints stays."""
    size, parts = settings.train.batch_size, world.size * settings.train.accumulate
    most = pictures - pictures % parts
    if size <= pictures or not most or not settings.name.endswith("-laptop"):
        return settings
    tell(f"{settings.name} has batches of {size}, and there are {pictures} examples to train on: {most} at a time")
    return settings.model_copy(update={"train": settings.train.model_copy(update={"batch_size": most})})


def in_epochs(settings: Transfer, per_epoch: int) -> Transfer:
    """Settings whose length is one in epochs."""
    if settings.train.steps is None:
        return settings
    train = settings.train.model_copy(update={"epochs": settings.train.steps / per_epoch, "steps": None})
    return settings.model_copy(update={"train": train})


def facts_of(settings: Transfer, source: Source, spec: str, data: TaskData) -> dict[str, Any]:
    """What ``transfer.json`` says."""
    pictures = {"train": len(data.train), "choice": len(data.choice), "test": len(data.test)}
    return {
        "task": settings.task, "head": settings.head_used, "backbone": source.facts, "data": spec,
        "fingerprint": data.fingerprint, "classes": list(data.classes), "pictures": pictures,
        "skipped": dict(data.skipped), "about": _plain(data.about),
    }  # fmt: skip


def _plain(about: Mapping[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in about.items()}


def _tell_data(data: TaskData, tell: Tell) -> None:
    counts = f"{len(data.train)} pictures to train on, {len(data.choice)} to choose by, {len(data.test)} to test"
    tell(f"{counts}; {len(data.classes)} classes")
    for why, n in data.skipped.items():
        tell(f"left out: {n} ({why})")


def _judging(data: TaskData, settings: Transfer, costs: Costs) -> float:
    """Seconds for the test pictures at the end, by what a check took."""
    return costs.check * len(data.test) / max(min(len(data.choice), settings.watch.pictures), 1)


def _as_begun(run: TransferRun, settings: Transfer, minutes: float | None) -> Transfer:
    """The settings with the epochs that a transfer chose when it began: it does not choose again."""
    if minutes is None or not run.begun:
        return settings
    return as_begun(settings, run.settings(), run.facts().get("time"), minutes, run.folder)


def _trainer(
    settings: Transfer, source: Source, data: TaskData, per_epoch: int, world: World, warm: bool = True
) -> Trainer:
    """The model and its trainer, before the first step; ``warm``: with the backbone's weights (a run that goes on has
    its own)."""
    if not math.isfinite(steps := settings.train.epochs * per_epoch) or steps > 1e9:
        raise SuperformerError(f"train.epochs={settings.train.epochs:g} are too many steps")
    model = assemble(settings, source if warm else source.bare, data, warm).to(world.device).train()
    trainer = Trainer(model, settings, max(1, round(steps)), per_epoch, world)
    if settings.train.compile:
        net: Any = model.backbone
        net.__dict__["forward"] = compiled(net.forward)
    return trainer
