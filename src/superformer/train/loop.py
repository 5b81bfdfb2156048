"""The loop: from a recipe and pictures to a trained supernet in a run folder. Killed at any moment, the same call goes
on where it was."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from superformer import data, files
from superformer.cost.latency_table import LatencyTable
from superformer.kernels import keep_freed
from superformer.machine import tell_if_busy, torch_threads
from superformer.progress import quiet, take_begin, teller
from superformer.recipes import Recipe, resolve, space_of
from superformer.runs import Run, note_command
from superformer.runs.processes import World
from superformer.runs.storage import save_supernet
from superformer.train.channel_sort import sort_channels
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
from superformer.train.step import Trainer
from superformer.train.steps import Loop, advice, check_processes, newest_checkpoint, timekeeper
from superformer.train.steps import require_finite as require_finite
from superformer.train.time_budget import Stopwatch, as_begun, check_minutes, choose, say_end, say_time


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
    with world.first_begins():
        pictures = data.load(spec, recipe.data, img_size)
        pictures.read_headers()
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
        rehearse(trainer, pictures)
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
        found = newest_checkpoint(run.folder, world, tell)
        trainer = trainer or build(warm=found is None)
        done = found.step if found is not None else 0
        keeper = timekeeper(run.folder, run.facts().get("time"), trainer, recipe.watch, found, watch, fresh)
        steps = trainer.timetable.steps(done)
        if found is not None:
            with files.understood(run.checkpoints, f"delete the checkpoint of step {done} there"):
                trainer.state.restore(found)
            tell(f"going on after step {done} of {steps}")
        if done >= steps and run.supernet_file.exists():
            tell(f"{run.folder} is already trained ({steps} steps)")
            return run
        check_processes(found, world)
        if keeper is not None:
            left = keeper.seconds - watch.seconds
            epochs = f"{steps / steps_per_epoch:.3g} epochs ({steps} steps)"
            tell(f"{epochs} for {say_time(keeper.seconds)}, ends at about {say_end(left)}")
        work, how = _Work(trainer, pictures, img_size), advice(recipe.optimizer.lr, "gradients.clip")
        check = work.check if len(pictures.search) else None
        given = recipe.watch, recipe.train.batch_size, work.batches, check
        Loop(run.folder, trainer, *given, console, done, how, keeper, work.sort).go()
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
    return as_begun(recipe, run.recipe(), run.facts().get("time"), minutes, run.folder)


@dataclass(frozen=True)
class _Work:
    """What only a supernet's training does between its steps."""

    trainer: Trainer
    pictures: data.DataSet
    img_size: int

    def batches(self, epoch: int, start: int) -> data.Prefetcher[data.Batch]:
        return epoch_batches(self.trainer, self.pictures, epoch, start)

    def check(self) -> tuple[dict[str, Any], str]:
        """The accuracy of the watched sub-networks on the search split."""
        found = check_networks(self.trainer, self.pictures, self.img_size)
        told = ", ".join(f"{name} {100 * value:.1f} %" for name, value in found.items())
        return {"accuracy": found}, f"accuracy on the search split {told}"

    def sort(self, done: int) -> None:
        """ViT-ResNAS's released "rewiring": at the start of an epoch heads and hidden units are sorted by importance;
        the optimiser's moments and the average of the weights follow (the released ones do not)."""
        trainer = self.trainer
        if trainer.timetable.at(done) >= trainer.recipe.train.channel_sort * trainer.steps:
            return
        order = sort_channels(trainer.net)
        order.follow(trainer.optimizer, trainer.net)
        if trainer.ema is not None:
            order.apply(trainer.ema.module.state_dict())
