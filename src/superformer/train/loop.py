"""The loop: from a recipe and pictures to a trained supernet in a run folder. Killed at any moment, the same call goes
on where it was."""

from __future__ import annotations

import functools
import math
import time
import warnings
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from superformer import data, files
from superformer.cost.latency_table import LatencyTable
from superformer.errors import StoppedError, SuperformerError
from superformer.evaluation.evaluator import Evaluator
from superformer.families.network import Network
from superformer.kernels import keep_freed
from superformer.machine import tell_if_busy, torch_threads
from superformer.progress import Tell, deferred_interrupts, quiet, teller
from superformer.recipes import Recipe, resolve, space_of
from superformer.runs import Run, note_command
from superformer.runs.processes import World, synchronise
from superformer.runs.storage import Checkpoint, latest_checkpoint, save_checkpoint, save_supernet
from superformer.space import Space
from superformer.space.costs import skeleton
from superformer.space.schema import family
from superformer.spaces import supernet
from superformer.train.channel_sort import sort_channels
from superformer.train.display import Display, Metrics, Pace, watched
from superformer.train.losses import load_teachers
from superformer.train.optimizer import check_no_decay
from superformer.train.sampling import measured_identity
from superformer.train.step import Outcome, Trainer
from superformer.train.warm_start import from_settings


def train(
    recipe: Recipe | str, data_spec: str, folder: str | Path, *changes: str, console: Console | None = None
) -> Run:
    """Train the supernet of a recipe on pictures (see `superformer.data`) in a run folder; or go on with it.
    ``changes`` are ``key=value`` words for a recipe given by name or file."""
    inside, world = World.joined(), World.join()
    keep_freed()
    try:
        settings = recipe if isinstance(recipe, Recipe) else resolve(recipe, changes)
        with torch_threads(settings.train.threads):
            return _train(settings, data_spec, Path(folder), world, quiet(console if world.first else None))
    finally:
        if not inside:
            world.leave()


def _train(recipe: Recipe, spec: str, folder: Path, world: World, console: Console) -> Run:
    run = Run(folder)
    # published spaces may be written otherwise in a later version: a run keeps its own
    space = run.space() if run.recipe_file.exists() else space_of(recipe)
    img_size = recipe.img_size or space.img_size
    pictures = data.load(spec, recipe.data, img_size)
    steps_per_epoch = data.steps_per_epoch(len(pictures.train), recipe.train.batch_size)
    _ = pictures.search  # read now: pictures that cannot be read are told of before training, not at the first check
    facts = {"data": spec, "fingerprint": pictures.fingerprint, "classes": list(pictures.classes), "img_size": img_size}
    facts |= {"pictures": {"train": len(pictures.train), "search": len(pictures.search)}}
    run.check(recipe, facts)
    steps, tell = max(1, round(recipe.train.epochs * steps_per_epoch)), teller(console)
    own, table = identity_of(run, recipe, space, len(pictures.classes), img_size, world, tell)
    facts |= {"identity": own.sampling.identity} if own is not recipe else {}
    build = functools.partial(build_trainer, own, space, pictures.classes, steps, steps_per_epoch, world, tell=tell)
    tell_if_busy(tell)

    trainer = None
    if not run.recipe_file.exists():  # what is wrong with the settings is found before anything is written
        trainer = build()
        check_no_decay(recipe.optimizer.no_decay, trainer.net)
        rehearse(trainer, pictures, img_size)
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
        if found is not None:
            with files.understood(run.checkpoints, f"delete the checkpoint of step {done} there"):
                trainer.restore(found)
            tell(f"going on after step {done} of {steps}")
        if done >= steps and run.supernet_file.exists():
            tell(f"{run.folder} is already trained ({steps} steps)")
            return run
        _Loop(run, trainer, pictures, img_size, console, done).go()
        if world.first:
            require_finite(trainer.best)
            about = {"step": steps, "mean": recipe.data.mean, "std": recipe.data.std}
            save_supernet(trainer.best, run.supernet_file, pictures.classes, **about)
        world.wait()
    return run


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


def rehearse(trainer: Trainer, pictures: data.DataSet, img_size: int) -> None:
    """The first batch through the networks of the first step, without a trace: what only shows there is told before a
    run is begun."""
    with closing(_batches(trainer, pictures, img_size, 0, 0)) as batches:
        trainer.rehearse(next(iter(batches)))


def check_settings(recipe: Recipe, spec: str) -> None:
    """Refuse what a training with these settings, from whatever weights, would stop at. Nothing is written."""
    space, world = space_of(recipe), World.join()
    img_size = recipe.img_size or space.img_size
    pictures = data.load(spec, recipe.data, img_size)
    per_epoch = data.steps_per_epoch(len(pictures.train), recipe.train.batch_size)
    steps = max(1, round(recipe.train.epochs * per_epoch))
    trainer = build_trainer(recipe, space, pictures.classes, steps, per_epoch, world, warm=False)
    check_no_decay(recipe.optimizer.no_decay, trainer.net)
    rehearse(trainer, pictures, img_size)


def _batches(
    trainer: Trainer, pictures: data.DataSet, img_size: int, epoch: int, start: int
) -> data.Prefetcher[data.Batch]:
    """The rest of an epoch."""
    recipe, world = trainer.recipe, trainer.world
    return data.train_batches(
        pictures.train, recipe.data, recipe.mix, img_size, seed=recipe.seed, epoch=epoch,
        batch_size=recipe.train.batch_size, start=start, rank=world.rank, world=world.size,
        patch_grid=trainer.net.patch_grid(img_size) if recipe.mix.patches != "off" else None,
    )  # fmt: skip


def identity_of(
    run: Run, recipe: Recipe, space: Space, num_classes: int, img_size: int, world: World, tell: Tell
) -> tuple[Recipe, LatencyTable | None]:
    """The recipe with the probability of identities itself, where that depends on what is measured: measured once, by
    the first process; a run that goes on has it among its facts, and so draws the same networks."""
    found, table = None, None
    if run.recipe_file.exists():
        found = run.facts().get("identity")
    elif world.first and (
        measured := measured_identity(space, recipe, num_classes, img_size, str(world.device).partition(":")[0])
    ):
        found, table = measured
        tell(f"identities are drawn with probability {found:g}, by the times of {table.fit.networks} networks")
    shared = torch.tensor([math.nan if found is None else found], dtype=torch.float64, device=world.device)
    world.spread([shared])
    if math.isnan(probability := float(shared)):
        return recipe, None
    sampling = recipe.sampling.model_copy(update={"identity": probability})
    return recipe.model_copy(update={"sampling": sampling}), table


def recipe_skeleton(recipe: Recipe, num_classes: int) -> Network:
    """The network that a recipe trains, without any weight in memory."""
    return skeleton(space_of(recipe), num_classes, (("patch_head", True),) if recipe.mix.patches != "off" else ())


def build_trainer(
    recipe: Recipe, space: Space, classes: Sequence[str], steps: int, steps_per_epoch: int, world: World, *,
    warm: bool = True, tell: Tell = lambda text: None,
) -> Trainer:  # fmt: skip
    """The network and the trainer that a recipe describes, before the first step; ``warm``: with the weights that the
    recipe starts from (a run that goes on has its own)."""
    settings = recipe.train
    if recipe.mix.patches != "off" and not family(space.family).patch_head_possible:
        needed = "networks with a patch head (family vit_res)"
        raise SuperformerError(f"mix.patches needs {needed}, not {space.family}: set mix.patches=off")
    if settings.channel_sort and recipe.sharing != "ordinal":
        why = f"{recipe.sharing} sharing has no first ones"
        raise SuperformerError(f"train.channel_sort puts the best channels first; {why}: set it to 0")
    networks = recipe.sampling.networks
    if recipe.sampling.rule == "multi" and settings.batch_size % (networks * settings.accumulate * world.size):
        raise SuperformerError(
            f"a batch of {settings.batch_size} cannot be shared equally by {networks} networks, {world.size} processes"
            f" and {settings.accumulate} parts: change train.batch_size or sampling.networks"
        )
    own_size = recipe.loss.teacher_size == "own"
    teachers = load_teachers(recipe.loss.teachers, len(classes), recipe.data.mean, recipe.data.std, classes, own_size)
    heads = {"patch_head": True} if recipe.mix.patches != "off" else {}
    drops = {"drop_path": settings.drop_path, "dropout": settings.dropout}
    net = supernet(space, len(classes), recipe.sharing, recipe.seed, **drops, **heads)
    if warm and (report := from_settings(net, recipe.start)) is not None:
        tell(report.text())
    net.to(world.device).train()
    if settings.sync_norm and world.size > 1:
        synchronise(net)
    return Trainer(net, recipe, steps, steps_per_epoch, world, [t.to(world.device) for t in teachers])


@dataclass
class _Loop:
    """The steps of a run, and what happens between them."""

    run: Run
    trainer: Trainer
    pictures: data.DataSet
    img_size: int
    console: Console
    done: int

    def go(self) -> None:
        trainer = self.trainer
        self.recipe, self.world, self.steps = trainer.recipe, trainer.world, trainer.steps
        self.per_epoch = trainer.steps_per_epoch
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
        if at == 0 and self.done < recipe.train.channel_sort * self.steps:
            self._sort()
        batches = _batches(trainer, self.pictures, self.img_size, epoch, at)
        with closing(batches):
            for batch in batches:
                start = time.monotonic()
                outcome = trainer.step(self.done, batch)
                self.done += 1
                self.pace.note(recipe.train.batch_size, time.monotonic() - start, batches.waited)
                self._tell(outcome)
                if outcome.bad is not None:
                    self._tell_skipped(outcome.bad)
                if world.first and self._check_due():
                    self._check()
                if world.first and (self._save_due() or self.interrupt.asked):
                    save_checkpoint(self.run.checkpoints, trainer.checkpoint(self.done), recipe.watch.keep)
                    self.saved = time.monotonic()
                if self.interrupt.asked and self.done < self.steps:
                    what = f"interrupted after step {self.done} of {self.steps}"
                    raise StoppedError(f"{what}: the same command goes on from here")
                if self.done >= self.steps:
                    break

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
        recipe, pictures, trainer = self.recipe, self.pictures, self.trainer
        limits = self.img_size, recipe.watch.pictures, self.world.device
        judge = Evaluator.of(trainer.best, recipe, pictures, pictures.search, *limits)
        archs = watched(trainer.net.space, recipe.watch.networks, recipe.seed)
        found = dict(zip(archs, judge(list(archs.values())), strict=True))
        assert self.metrics is not None
        self.metrics.write("health", self.done, accuracy=found, skipped=trainer.guard.skipped)
        told = ", ".join(f"{name} {100 * value:.1f} %" for name, value in found.items())
        self.display.note(f"epoch {self.done / self.per_epoch:.4g}: accuracy on the search split {told}")

    def _save_due(self) -> bool:
        watch = self.recipe.watch
        late = time.monotonic() - self.saved >= watch.checkpoint_seconds
        due = watch.checkpoint_steps is not None and self.done % watch.checkpoint_steps == 0
        return late or due or self.done == self.steps
