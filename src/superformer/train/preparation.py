"""What a training needs before its first step: the network and its trainer, the first batch, what a step costs."""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from superformer import data
from superformer.cost.latency_table import LatencyTable
from superformer.errors import SuperformerError
from superformer.evaluation.evaluator import Evaluator
from superformer.families.network import Network
from superformer.kernels import compiled
from superformer.progress import Tell
from superformer.recipes import Recipe, space_of
from superformer.runs import Run
from superformer.runs.processes import World, synchronise
from superformer.runs.storage import save_checkpoint
from superformer.space import Space
from superformer.space.costs import skeleton
from superformer.space.schema import family
from superformer.spaces import supernet
from superformer.train.display import watched
from superformer.train.kept import Kept
from superformer.train.losses import load_teachers
from superformer.train.optimizer import check_no_decay
from superformer.train.sampling import measured_identity
from superformer.train.step import Trainer
from superformer.train.steps import Steps
from superformer.train.time_budget import LEAST_STEPS, MEASURED, MOST_MEASURED, Costs, Stopwatch, choose, measured_steps
from superformer.train.warm_start import from_settings


def count_steps(recipe: Recipe, per_epoch: int) -> int:
    """Of a whole training."""
    return max(1, round(recipe.train.epochs * per_epoch))


def rehearse(trainer: Trainer, pictures: data.DataSet) -> None:
    """The first batch through the networks of the first step, without a trace: what only shows there is told before a
    run is begun."""
    with closing(_epoch_batches(trainer, pictures, 0, 0)) as batches:
        trainer.rehearse(next(iter(batches)))


def check_settings(recipe: Recipe, spec: str, minutes: float | None = None) -> None:
    """Refuse what a training with these settings, from whatever weights, would stop at; ``minutes``: and too little
    time. Nothing is written."""
    trainer, pictures, img_size = _rehearsed(recipe, spec)
    if minutes is not None:
        costs = measure(trainer, pictures, img_size, minutes / 4)
        choose(recipe, costs, trainer.steps_per_epoch, minutes, 0.0)


def epochs_within(recipe: Recipe, spec: str, minutes: float) -> float:
    """How many epochs of a training take so many minutes here; a short measurement. Nothing is written."""
    trainer, pictures, img_size = _rehearsed(recipe, spec)
    costs = measure(trainer, pictures, img_size, minutes)
    return choose(recipe, costs, trainer.steps_per_epoch, minutes, 0.0, least=1).train.epochs


def _rehearsed(recipe: Recipe, spec: str) -> tuple[Trainer, data.DataSet, int]:
    space, world = space_of(recipe), World.join()
    img_size = recipe.img_size or space.img_size
    pictures = data.load(spec, recipe.data, img_size)
    per_epoch = data.steps_per_epoch(len(pictures.train), recipe.train.batch_size)
    steps = count_steps(recipe, per_epoch)
    trainer = build_trainer(recipe, space, pictures.classes, steps, per_epoch, world, warm=False)
    check_no_decay(recipe.optimizer.no_decay, trainer.net)
    rehearse(trainer, pictures)
    return trainer, pictures, img_size


def epoch_batches(trainer: Trainer, pictures: data.DataSet, epoch: int, start: int) -> data.Prefetcher[data.Batch]:
    """The rest of an epoch, and what teachers say of it, where that is kept."""
    recipe = trainer.recipe
    if trainer.kept is not None:
        view = epoch % recipe.data.views
        trainer.kept.prepare(view, pictures, recipe, trainer.cut_size, trainer.world)
    return _epoch_batches(trainer, pictures, epoch, start)


def _epoch_batches(trainer: Trainer, pictures: data.DataSet, epoch: int, start: int) -> data.Prefetcher[data.Batch]:
    recipe, world = trainer.recipe, trainer.world
    return data.train_batches(
        pictures.train, recipe.data, recipe.mix, trainer.cut_size, seed=recipe.seed, epoch=epoch,
        batch_size=recipe.train.batch_size, start=start, rank=world.rank, world=world.size,
        patch_grid=trainer.net.patch_grid(trainer.img_size) if recipe.mix.patches != "off" else None,
        device=world.device if trainer.kept is None else None,
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
    shared = torch.tensor([math.nan if found is None else found], dtype=torch.float64, device=world.carrier)
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
    if settings.compile and space.size > 1:
        why = "a supernet would be compiled anew for every sub-network"
        raise SuperformerError(f"train.compile compiles networks by themselves; {why}: give it to superformer retrain")
    networks = recipe.sampling.networks
    if recipe.sampling.rule == "multi" and settings.batch_size % (networks * settings.accumulate * world.size):
        raise SuperformerError(
            f"a batch of {settings.batch_size} cannot be shared equally by {networks} networks, {world.size} processes"
            f" and {settings.accumulate} parts: change train.batch_size or sampling.networks"
        )
    how = recipe.data.mean, recipe.data.std, classes, recipe.loss.teacher_size != "student"
    teachers = load_teachers(recipe.loss.teachers, len(classes), *how)
    if recipe.loss.teacher_size == "larger" and recipe.mix.patches != "off":
        raise SuperformerError("loss.teacher_size=larger does not go with token labelling: set mix.patches=off")
    if recipe.loss.features and not (teachers and all(isinstance(t.net, Network) for t in teachers)):
        raise SuperformerError("loss.features compares tokens with a teacher's: loss.teachers must be folders of ours")
    if recipe.loss.features and recipe.sharing != "ordinal":
        why = f"{recipe.sharing} sharing has no first ones"
        raise SuperformerError(f"loss.features compares the first channels with a teacher's; {why}: set it to 0")
    heads = {"patch_head": True} if recipe.mix.patches != "off" else {}
    drops = {"drop_path": settings.drop_path, "dropout": settings.dropout}
    net = supernet(space, len(classes), recipe.sharing, recipe.seed, **drops, **heads)
    if warm and (report := from_settings(net, recipe.start)) is not None:
        tell(report.text())
    net.set_grad_checkpointing(settings.recompute)
    net.to(world.device).train()
    if settings.sync_norm and world.size > 1:
        synchronise(net, world)
    teachers = [t.to(world.device) for t in teachers]
    trainer = Trainer(net, recipe, steps, steps_per_epoch, world, teachers)
    if settings.compile:
        net.__dict__["run"] = compiled(net.run)
    trainer.kept = Kept.of(recipe, teachers, steps_per_epoch * settings.batch_size, trainer.cut_size)
    return trainer


def check_networks(trainer: Trainer, pictures: data.DataSet, img_size: int) -> dict[str, float]:
    """The accuracy of the watched sub-networks on the search split; processes share them."""
    recipe = trainer.recipe
    limits = img_size, recipe.watch.pictures, trainer.world.device
    judge = Evaluator.of(trainer.best, recipe, pictures, pictures.search, *limits)
    archs = watched(trainer.net.space, recipe.watch.networks, recipe.seed)
    return dict(zip(archs, trainer.world.divided(list(archs.values()), judge), strict=True))


def measure(trainer: Trainer, pictures: data.DataSet, img_size: int, minutes: float) -> Costs:
    """What a step, with its pictures, a check and a checkpoint cost now. The trainer is worn out by it."""
    check = functools.partial(check_networks, trainer, pictures, img_size) if len(pictures.search) else None
    return step_costs(trainer, epoch_batches(trainer, pictures, 0, 0), check, minutes)


def step_costs(
    trainer: Steps, given: data.Prefetcher[Any], check: Callable[[], object] | None, minutes: float
) -> Costs:
    """The same of whatever is trained."""
    world, watch, steps, times = trainer.world, Stopwatch(), measured_steps(trainer.steps), list[float]()
    most, checking, save = min(60 * MEASURED * minutes, MOST_MEASURED), 0.0, 0.0
    with closing(given) as batches:
        for batch, n in zip(batches, steps, strict=False):
            trainer.step(n, batch)
            times.append(watch.seconds)
            if len(times) >= LEAST_STEPS and world.first_says(watch.seconds) > most:
                break
    if check is not None:
        start = watch.seconds
        check()
        checking = watch.seconds - start
    if world.first:
        start = watch.seconds
        with tempfile.TemporaryDirectory() as folder:
            save_checkpoint(Path(folder), trainer.checkpoint(0), 1)
        save = watch.seconds - start
    step = (times[-1] - times[0]) / max(len(times) - 1, 1) or times[0]  # the first one makes things ready
    return Costs(*(world.first_says(value) for value in (step, checking, save)))
