"""The network and the trainer that a recipe describes, before the first step."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from superformer import data
from superformer.cost.runtimes import pinned
from superformer.elastic.conv import synchronise
from superformer.errors import StoppedError, SuperformerError
from superformer.evaluation.evaluator import Evaluator
from superformer.families.network import Network
from superformer.interop.timm_weights import from_timm
from superformer.kernels.memory import keep_freed
from superformer.progress import Tell, deferred, quiet, teller
from superformer.recipes import Recipe, resolve, space_of
from superformer.recipes.settings import Start
from superformer.runs import folder as provenance
from superformer.runs import storage as checkpoint
from superformer.runs.folder import Run
from superformer.runs.processes import World
from superformer.runs.storage import load_network, load_supernet, save_supernet
from superformer.space import Space
from superformer.spaces import supernet
from superformer.train import display as watch
from superformer.train import losses as teachers
from superformer.train import step as state
from superformer.train import warm_start as start
from superformer.train.channel_sort import sort_channels
from superformer.train.display import Display, Metrics, Pace
from superformer.train.step import Outcome, Trainer


def prepare(
    recipe: Recipe,
    space: Space,
    classes: Sequence[str],
    steps: int,
    steps_per_epoch: int,
    world: World,
    begins: bool = True,
    tell: Tell = lambda text: None,
) -> Trainer:
    """The trainer of a run that begins, or (without weights to start from) of one that goes on."""
    words: dict[str, Any] = {}
    if recipe.mix.patches != "off":
        if space.family != "vit_res":
            raise SuperformerError(
                f"mix.patches needs networks with a patch head (family vit_res), not {space.family}: set mix.patches=off"
            )
        words["patch_head"] = True
    if recipe.train.channel_sort and recipe.sharing != "ordinal":
        raise SuperformerError(
            f"train.channel_sort puts the best channels first; {recipe.sharing} sharing has no first ones: set it to 0"
        )
    if recipe.sampling.rule == "multi" and recipe.train.batch_size % (
        recipe.sampling.networks * recipe.train.accumulate * world.size
    ):
        raise SuperformerError(
            f"a batch of {recipe.train.batch_size} cannot be shared equally by {recipe.sampling.networks} networks, {world.size} processes"
            f" and {recipe.train.accumulate} parts: change train.batch_size or sampling.networks"
        )
    taught = teachers.load(recipe.loss.teachers, len(classes), recipe.data.mean, recipe.data.std, tuple(classes))
    net = supernet(space, len(classes), recipe.sharing, recipe.seed, recipe.train.drop_path, **words)
    if begins and (report := warm_start(net, recipe.start)) is not None:
        tell(report.text())
    net.to(world.device).train()
    if recipe.train.sync_norm and world.size > 1:
        synchronise(net)
    return Trainer(net, recipe, steps, steps_per_epoch, world, [t.to(world.device) for t in taught])


def warm_start(net: Network, settings: Start) -> start.Report | None:
    """Weights to begin with, from an earlier run, a stand-alone network or a timm network."""
    given = [name for name in ("run", "network", "timm") if getattr(settings, name) is not None]
    if len(given) > 1:
        raise SuperformerError(f"start.{given[0]} and start.{given[1]} are two beginnings: give one of them")
    if settings.run is not None:
        return start.from_supernet(net, load_supernet(Run.open(settings.run).supernet_file))
    if settings.network is not None:
        return start.from_network(net, load_network(settings.network).net)
    if settings.timm is None:
        return None
    words: dict[str, Any] = {"pretrained": settings.pretrained and settings.checkpoint is None}
    if settings.checkpoint is not None:
        if not settings.checkpoint.endswith(".safetensors"):
            raise SuperformerError(
                f"start.checkpoint must be a safetensors file, which can hold nothing but weights, not {settings.checkpoint}"
            )
        words["checkpoint_path"] = settings.checkpoint
    try:
        model = from_timm(settings.timm, **words)
    except SuperformerError:
        raise
    except Exception as error:  # timm's own errors are of many kinds
        raise SuperformerError(
            f"timm cannot make {settings.timm!r} with these weights ({type(error).__name__}: {str(error).splitlines()[0][:200]}); "
            "without a network connection give start.checkpoint=FILE.safetensors, or start.pretrained=false"
        ) from error
    return start.from_network(net, model)


# The loop: from a recipe and pictures to a trained supernet in a run folder. Killed at any moment, the same call goes
# on where it was.


def train(
    recipe: Recipe | str, data_spec: str, folder: str | Path, *changes: str, console: Console | None = None
) -> Run:
    """Train the supernet of a recipe on pictures (see `superformer.data`) in a run folder; or go on with it.

    ``changes`` are ``key=value`` words for a recipe given by name or file.
    """
    world = World.join()
    keep_freed()
    try:
        settings = recipe if isinstance(recipe, Recipe) else resolve(recipe, changes)
        with pinned(settings.train.threads):
            return _train(settings, data_spec, Path(folder), world, quiet(console))
    finally:
        world.leave()


def _train(recipe: Recipe, spec: str, folder: Path, world: World, console: Console) -> Run:
    space = space_of(recipe)
    img_size = recipe.img_size or space.img_size
    pictures = data.load(spec, recipe.data, img_size)
    steps_per_epoch = data.steps_per_epoch(len(pictures.train), recipe.train.batch_size)
    _ = pictures.search  # read now: pictures that cannot be read are told of before training, not at the first check
    facts = {"data": spec, "fingerprint": pictures.fingerprint, "classes": list(pictures.classes), "img_size": img_size}
    facts |= {"pictures": {"train": len(pictures.train), "search": len(pictures.search)}}
    run = Run(folder)
    run.check(recipe, facts)
    loop = _Loop(
        run, recipe, space, pictures, img_size, steps_per_epoch, world, quiet(console if world.first else None)
    )
    trainer = loop.prepare()  # what is wrong with the settings is found before anything is written
    with run.lock() if world.first else nullcontext():
        if world.first:
            run.begin(recipe, space, facts)
            provenance.note(run.folder)
        world.wait()
        return loop.go(trainer)


@dataclass
class _Loop:
    run: Run
    recipe: Recipe
    space: Space
    pictures: data.DataSet
    img_size: int
    steps_per_epoch: int
    world: World
    console: Console
    steps: int = field(init=False)
    tell: Tell = field(init=False)

    def __post_init__(self) -> None:
        self.steps = max(1, round(self.recipe.train.epochs * self.steps_per_epoch))
        self.tell = teller(self.console)

    def prepare(self) -> Trainer:
        return prepare(
            self.recipe, self.space, self.pictures.classes, self.steps, self.steps_per_epoch, self.world,
            begins=not checkpoint.listed(self.run.checkpoints), tell=self.tell,
        )  # fmt: skip

    def go(self, trainer: Trainer) -> Run:
        done = self._resume(trainer)
        if done >= self.steps and self.run.supernet_file.exists():
            self.tell(f"{self.run.folder} is already trained ({self.steps} steps)")
            return self.run
        self._steps(trainer, done)
        if self.world.first:
            facts = {"step": self.steps, "mean": self.recipe.data.mean, "std": self.recipe.data.std}
            save_supernet(trainer.best, self.run.supernet_file, self.pictures.classes, **facts)
        self.world.wait()
        return self.run

    def _sort(self, trainer: Trainer) -> None:
        """ViT-ResNAS's released "rewiring": at the start of an epoch heads and hidden units are sorted by importance;
        the optimiser's moments and the average of the weights follow (the released ones do not)."""
        order = sort_channels(trainer.net)
        order.follow(trainer.optimizer, trainer.net)
        if trainer.ema is not None:
            order.apply(trainer.ema.module.state_dict())

    def _resume(self, trainer: Trainer) -> int:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = checkpoint.latest(self.run.checkpoints)
        for warning in told:
            self.tell(f"warning: {warning.message}")
        if found is None:
            return 0
        state.restore(trainer, found)
        self.tell(f"going on after step {found.step} of {self.steps}")
        return found.step

    def _steps(self, trainer: Trainer, done: int) -> None:
        self.metrics = Metrics(self.run.metrics_file, done) if self.world.first else None
        self.display = Display(self.console, self.steps, done)
        self.saved, self.pace = time.monotonic(), Pace()
        try:
            with deferred() as self.interrupt:
                while done < self.steps:
                    done = self._epoch(trainer, done)
        finally:
            self.display.close()
            if self.metrics is not None:
                self.metrics.close()

    def _epoch(self, trainer: Trainer, done: int) -> int:
        """The rest of an epoch."""
        recipe, world = self.recipe, self.world
        epoch, at = divmod(done, self.steps_per_epoch)
        self.done = done
        if at == 0 and done < recipe.train.channel_sort * self.steps:
            self._sort(trainer)
        batches = data.train_batches(
            self.pictures.train, recipe.data, recipe.mix, self.img_size,
            seed=recipe.seed, epoch=epoch, batch_size=recipe.train.batch_size, start=at, rank=world.rank, world=world.size,
            patch_grid=self._patch_grid(trainer.net),
        )  # fmt: skip
        with closing(batches):
            for batch in batches:
                start = time.monotonic()
                outcome = trainer.step(self.done, batch)
                self.done += 1
                self.pace.note(recipe.train.batch_size, time.monotonic() - start, batches.waited)
                self._tell(outcome)
                self._judge(trainer, outcome)
                if self._due(self.recipe.watch.every * self.steps_per_epoch):
                    self._check(trainer)
                if world.first and (self._save_due() or self.interrupt.asked):
                    self._save(trainer, self.done)
                if self.interrupt.asked and self.done < self.steps:
                    raise StoppedError(
                        f"interrupted after step {self.done} of {self.steps}: the same command goes on from here"
                    )
                if self.done >= self.steps:
                    break
        return self.done

    def _patch_grid(self, net: Network) -> int | None:
        """Patches of the last stage in a row, for token labelling."""
        if self.recipe.mix.patches == "off":
            return None
        side = int(net.grid({}, self.img_size, self.img_size)[0])
        for _ in net.stages[1:]:
            side = -(-side // 2)
        return side

    def _due(self, every: float) -> bool:
        """Whether a moment that comes every so many steps lies in the step just done; the end is one, too."""
        return self.done == self.steps or math.floor(self.done / every) > math.floor((self.done - 1) / every)

    def _tell(self, outcome: Outcome) -> None:
        self.display.step(self.done, loss=outcome.loss, lr=outcome.lr, **{"img/s": self.pace.speed})
        if self.metrics is None:
            return
        if self.done % self.recipe.watch.log == 0 or self.done == self.steps:
            self.metrics.write(
                "step", self.done, epoch=self.done / self.steps_per_epoch, loss=outcome.loss, lr=outcome.lr, grad_norm=outcome.grad_norm,
                images_per_second=self.pace.speed, waited=self.pace.idle, seconds_left=self.display.left(self.done),
            )  # fmt: skip
        if outcome.conflict is not None:
            self.metrics.write("conflict", self.done, **outcome.conflict)

    def _judge(self, trainer: Trainer, outcome: Outcome) -> None:
        if outcome.bad is None:
            return
        if self.metrics is not None:
            self.metrics.write("skipped", self.done, why=outcome.bad)
        self.display.note(f"step {self.done} was skipped: {outcome.bad}")
        if trainer.guard.in_a_row >= self.recipe.watch.patience:
            raise StoppedError(
                f"{trainer.guard.in_a_row} steps in a row had to be skipped ({outcome.bad}). Try a smaller learning rate "
                f"(optimizer.lr={self.recipe.optimizer.lr / 3:.1g}), gradients.clip=1, longer optimizer.warmup_epochs, train.amp=off, "
                "in a new run folder; if the first steps fail already, look at the pictures"
            )

    def _check(self, trainer: Trainer) -> None:
        """The accuracy of the watched sub-networks on the search split."""
        if not self.world.first:
            return
        recipe = self.recipe
        judge = Evaluator.of(
            trainer.best,
            recipe,
            self.pictures,
            self.pictures.search,
            self.img_size,
            recipe.watch.pictures,
            self.world.device,
        )
        found = watch.check(judge, watch.watched(self.space, recipe.watch.networks, recipe.seed))
        assert self.metrics is not None
        self.metrics.write("health", self.done, accuracy=found, skipped=trainer.guard.skipped)
        self.display.note(
            f"epoch {self.done / self.steps_per_epoch:.4g}: accuracy on the search split "
            + ", ".join(f"{name} {100 * value:.1f} %" for name, value in found.items())
        )

    def _save_due(self) -> bool:
        steps = self.recipe.watch.checkpoint_steps
        late = time.monotonic() - self.saved >= self.recipe.watch.checkpoint_seconds
        return late or self.done == self.steps or (steps is not None and self.done % steps == 0)

    def _save(self, trainer: Trainer, done: int) -> None:
        checkpoint.save(self.run.checkpoints, state.capture(trainer, done), self.recipe.watch.keep)
        self.saved = time.monotonic()
