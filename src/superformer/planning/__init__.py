"""The plan before the bill: steps, work, memory and time of a training before it starts.

One step of the recipe, with its whole batch, its optimiser and its teachers, is done on tensors without numbers
(`superformer.planning.trace`): memory is what is alive in it at once, work what its operations multiply, read and
write. Time follows from the peaks of a device (`superformer.planning.devices`), operation by operation: each takes as
long as its arithmetic, its bytes or its start, whatever is longest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from superformer import data
from superformer.cost import cost
from superformer.errors import SuperformerError
from superformer.families.network import Network
from superformer.kernels import accelerated, rehearsing
from superformer.kernels.slices import MEMORY
from superformer.planning.devices import CPU, REACHED, Device, Devices, counted
from superformer.planning.measured import peaks, reached
from superformer.planning.trace import Trace, Work, size_of
from superformer.recipes import Recipe, from_tree, resolve, space_of
from superformer.runs.processes import OnItsWay, World, device_here, synchronise
from superformer.space import Space
from superformer.space.schema import family
from superformer.spaces import supernet
from superformer.train.losses import untrained_teachers
from superformer.train.preparation import count_steps
from superformer.train.step import Trainer

IMAGENET_PICTURES, IMAGENET_CLASSES = 1_281_167, 1000
"""Of the papers' data, where no other are named."""
FEW = 16
"""Pictures of a step that is measured."""
LEAST, HALF = 0.9, 0.5
"""Of its share of the activations, that a part of a batch takes at least; of float32's, that half precision does."""
GLANCE = 2.0
"""Seconds to find out what this machine's processor can do."""
AHEAD = 3
"""Batches that lie on an accelerator before they are used: two that wait, one that arrives."""
LOOKED_AT = 64
"""Steps, spread over the training, that tell the mean work; the largest of them is traced."""


@dataclass(frozen=True)
class Step:
    """What a step takes of one device: bytes by kind, and the work of its operations. ``number``: which one it is;
    ``macs``: of its sub-networks' forward passes, ``mean``: of those of the mean step; ``sent``: bytes that processes
    add up."""

    memory: dict[str, int]
    work: list[Work]
    macs: float
    mean: float
    sent: int
    number: int = 0


def plan(
    recipe: Recipe | str, data_spec: str | None = None, devices: str = "1xA100-80GB", changes: Sequence[str] = (),
    measure: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What a training will take, in numbers. ``measure``: on devices like that of this process, as many as ``devices``
    says, with so many seconds to find out what it reaches."""
    settings = recipe if isinstance(recipe, Recipe) else resolve(recipe, changes)
    space, (count, kind), this = space_of(settings), counted(devices), device_here()
    cpu = kind.lower() == CPU
    own = None if cpu else Devices.read(devices)
    pictures, classes, known = _pictures(settings, space, data_spec)
    per_epoch = data.steps_per_epoch(pictures, settings.train.batch_size)
    steps = count_steps(settings, per_epoch)
    elsewhere = accelerated(this) if measure is not None else not cpu
    if measure is not None:
        found = _at_hand(settings, space, classes, steps, per_epoch, measure, this)
        own = Devices(count, found if own is None else replace(found, link=own.device.link))
    elif own is None:
        own = Devices(count, replace(peaks(torch.device(CPU), GLANCE), reached=REACHED))
    settings = _settled(settings, own.device)
    how = space, classes, steps, per_epoch, own
    told = _told(settings, own, traced(settings, *how[:4], own.count, elsewhere), steps, per_epoch)
    told |= {"recipe": settings.name, "pictures": pictures, "data": known, "classes": classes}
    return told if told["fits"] else told | {"changes": list(_that_fit(settings, *how, told["memory"], elsewhere))}


def _settled(recipe: Recipe, device: Device) -> Recipe:
    """The recipe with the precision that ``auto`` means on a device."""
    if recipe.train.amp != "auto":
        return recipe
    amp = "bfloat16" if device.bfloat16 else "off"
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"amp": amp})})


def _at_hand(
    recipe: Recipe, space: Space, classes: int, steps: int, per_epoch: int, seconds: float, this: torch.device
) -> Device:
    """The device of this process, by real steps with few pictures."""
    device = peaks(this, seconds / 10)
    least = recipe.sampling.networks if recipe.sampling.rule == "multi" else 1
    few = min(recipe.train.batch_size, max(FEW // least, 1) * least * recipe.train.accumulate)
    small = _settled(_with(recipe, few), device)
    step = traced(small, space, classes, steps, per_epoch, elsewhere=accelerated(this))
    trainer, batch = real_step(small, space, classes, steps, per_epoch, World(device=this))
    half = small.train.amp != "off"
    return reached(device, trainer, lambda n: trainer.step(step.number, batch), step.work, seconds / 2, half)


def real_step(
    recipe: Recipe, space: Space, classes: int, steps: int, per_epoch: int, world: World
) -> tuple[Trainer, data.Batch]:
    """What the steps that are planned are really taken with: a network with new weights, pictures of noise."""
    heads = {"patch_head": True} if recipe.mix.patches != "off" else {}
    words: dict[str, Any] = {"drop_path": recipe.train.drop_path, "dropout": recipe.train.dropout}
    net = supernet(space, classes, recipe.sharing, **words, **heads).to(world.device).train()
    net.set_grad_checkpointing(recipe.train.recompute)
    taught = untrained_teachers(recipe.loss.teachers, classes, recipe.loss.teacher_size)
    trainer = Trainer(net, recipe, steps, per_epoch, world, [t.to(world.device) for t in taught])
    batch = _batch(trainer, classes)
    batch.x.normal_(generator=torch.Generator().manual_seed(0))
    for target in (batch.target, batch.patches):
        if target is not None:
            target.fill_(1 / classes)
    return trainer, batch


def _that_fit(
    recipe: Recipe, space: Space, classes: int, steps: int, per_epoch: int, devices: Devices, memory: dict[str, int],
    elsewhere: bool,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """What to change where ``memory`` is too much: the fewest words of each kind that are enough. What cannot be enough
    is not traced, which takes long."""
    share = recipe.train.batch_size // devices.count
    halves = [2**k for k in range(share.bit_length()) if share % 2**k == 0]
    always = memory["total"] - memory["activations"]
    known: dict[tuple[str, ...], float] = {(): memory["activations"]}  # by words: those of a whole batch at least
    amp, recompute = "train.amp=bfloat16", "train.recompute=true"
    for words in ((), (amp,), (recompute,), (amp, recompute)):
        if amp in words and (recipe.train.amp != "off" or not devices.device.bfloat16):
            continue
        whole = known.get(words, HALF * known.get(tuple(w for w in words if w != amp), 0))
        for parts in halves if words else halves[1:]:
            changes = [*words, *([f"train.accumulate={parts}"] if parts > 1 else [])]
            if always + LEAST * whole / parts > devices.device.usable:
                continue  # a part of a batch takes its share
            with suppress(SuperformerError):  # batches that cannot be cut like this
                changed = from_tree(recipe.model_dump(mode="json"), recipe.name, changes)
                step = traced(changed, space, classes, steps, per_epoch, devices.count, elsewhere)
                known[words] = whole = max(whole, parts * step.memory["activations"])
                found = _told(changed, devices, step, steps, per_epoch)
                if found["fits"]:
                    yield {"words": changes, "total": found["memory"]["total"], "hours": found["hours"]}
                    break


def _pictures(recipe: Recipe, space: Space, spec: str | None) -> tuple[int, int, str]:
    """How many there are to train with, in how many classes."""
    if spec is not None:
        found = data.load(spec, recipe.data, recipe.img_size or space.img_size)
        return len(found.train), len(found.classes), spec
    search = recipe.data.search
    kept = IMAGENET_PICTURES - round(search * IMAGENET_PICTURES if search < 1 else search * IMAGENET_CLASSES)
    return kept, IMAGENET_CLASSES, "ImageNet-1k (assumed: name yours with --data)"


@dataclass(frozen=True)
class Nowhere(World):
    """A process whose tensors have no numbers, and go nowhere. ``sent``: bytes of those that others would add to."""

    sent: list[int] = field(default_factory=list, compare=False)

    def read(self, numbers: Tensor) -> Any:
        return np.zeros(tuple(numbers.shape)).tolist()

    def add_up(self, tensor: Tensor) -> None:
        self.sent.append(tensor.nbytes)

    def add_up_later(self, flat: Tensor) -> OnItsWay:
        self.sent.append(flat.nbytes)
        return _There()


class _There:
    """Nothing to wait for."""

    def wait(self) -> None: ...


def traced(
    recipe: Recipe, space: Space, classes: int, steps: int, per_epoch: int, processes: int = 1, elsewhere: bool = True
) -> Step:
    """One step of one of several processes, the largest of some, on tensors without numbers: as on an accelerator
    (``elsewhere``), or as on this machine's processor."""
    batch = recipe.train.batch_size
    if batch % processes:
        raise SuperformerError(f"a batch of {batch} cannot be shared equally by {processes} devices")
    if recipe.train.accumulate > 2:
        return _of_parts(recipe, space, classes, steps, per_epoch, processes, elsewhere)
    share = _with(recipe, batch // processes)
    with rehearsing(elsewhere), FakeTensorMode(), Trace() as trace:
        taught = untrained_teachers(share.loss.teachers, classes, share.loss.teacher_size)
        single = share.model_copy(update={"train": share.train.model_copy(update={"ema": None})})  # it makes a copy
        world = Nowhere(0, processes)
        trainer = Trainer(_network(share, space, classes), single, steps, per_epoch, world, taught)
        if processes > 1 and recipe.train.sync_norm:
            synchronise(trainer.net, world)
        if share.train.ema is not None:
            trainer.ema = _Average(_network(share, space, classes))  # type: ignore[assignment]
        looked = sorted({round(k * (steps - 1) / (LOOKED_AT - 1)) for k in range(LOOKED_AT)})
        macs = {n: _macs(trainer, n, batch // processes) for n in looked}
        largest = max(looked, key=macs.__getitem__)
        pictures = _batch(trainer, classes)
        _as_later(trainer)
        if not elsewhere:  # whose memory of gradients stays
            trainer.step(largest, pictures)
        trace.begin()
        world.sent.clear()
        trainer.step(largest, pictures)
        memory = {name: size_of(tensors) for name, tensors in _held(trainer).items()}
        memory["pictures"] = size_of(t for t in vars(pictures).values() if isinstance(t, Tensor))
    memory["activations"] = max(trace.peak - sum(memory.values()), 0)
    memory["pictures"] *= 1 + AHEAD * elsewhere
    memory["total"] = sum(memory.values())
    return Step(memory, trace.work, macs[largest], sum(macs.values()) / len(macs), sum(world.sent), largest)


def _with(recipe: Recipe, batch: int, parts: int | None = None) -> Recipe:
    """The recipe with another batch, in other parts."""
    changes = {"batch_size": batch, "accumulate": parts or recipe.train.accumulate}
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=changes)})


def _of_parts(
    recipe: Recipe, space: Space, classes: int, steps: int, per_epoch: int, processes: int, elsewhere: bool
) -> Step:
    """A step in many parts, by steps of one and of two of them: the second has all that is alive, and each further one
    is what it does more."""
    batch, parts = recipe.train.batch_size, recipe.train.accumulate
    if batch % (parts * processes):
        raise SuperformerError(f"a process's batch of {batch // processes} cannot be computed in {parts} equal parts")
    how = space, classes, steps, per_epoch, processes, elsewhere
    one, two = (traced(_with(recipe, k * batch // parts, k), *how) for k in (1, 2))
    memory = two.memory | {"pictures": two.memory["pictures"] * parts // 2}
    memory["total"] += memory["pictures"] - two.memory["pictures"]
    each = list((Counter(two.work) - Counter(one.work)).elements())
    sent = one.sent + (parts - 1) * (two.sent - one.sent)
    return Step(memory, one.work + (parts - 1) * each, parts * one.macs, parts * one.mean, sent, two.number)


@torch.no_grad()
def _as_later(trainer: Trainer) -> None:
    """In the end every weight has had its turn: the optimiser has its moments, and where gradients are set aside they
    have their memory."""
    for p in trainer.parameters:
        p.grad = torch.empty_like(p)
    trainer.optimizer.step()
    recipe = trainer.recipe
    if _apart(recipe) or (recipe.watch.conflicts and recipe.sampling.rule == "sandwich"):
        trainer.memory.keep(trainer.net)
    trainer.net.zero_grad()


def _apart(recipe: Recipe) -> bool:
    """Whether every step sets the largest network's gradients aside."""
    settings = recipe.gradients
    needed = settings.rule == "project" or settings.clip_subnets is not None
    return needed and recipe.sampling.rule == "sandwich"


class _Average:
    """Averaged weights, which here is no copy: tensors without numbers have none."""

    def __init__(self, module: Network):
        self.module = module

    @torch.no_grad()
    def update(self, net: Network, step: int) -> None:
        mine, theirs = ([t for t in m.state_dict().values() if t.is_floating_point()] for m in (self.module, net))
        torch._foreach_lerp_(mine, theirs, weight=0.5)


def _network(recipe: Recipe, space: Space, classes: int) -> Network:
    """The supernet, whose weights need no values."""
    heads = {"patch_head": True} if recipe.mix.patches != "off" else {}
    net = family(space.family)(space, classes, recipe.sharing, **heads).set_drop_path(recipe.train.drop_path)
    net.drop_rate = recipe.train.dropout
    net.set_grad_checkpointing(recipe.train.recompute)
    return net.train()


def _batch(trainer: Trainer, classes: int) -> data.Batch:
    """Pictures of a step."""
    count, side = trainer.recipe.train.batch_size, trainer.cut_size
    grid = trainer.net.patch_grid(trainer.img_size) if trainer.recipe.mix.patches != "off" else 0
    x, target = torch.empty(count, 3, side, side), torch.empty(count, classes)
    labels = torch.zeros(count, dtype=torch.int64)
    return data.Batch(x, target, labels, torch.empty(count, grid**2, classes) if grid else None)


def _held(trainer: Trainer) -> dict[str, list[Tensor]]:
    """What is there between steps. On a processor the memory of gradients stays for the next one."""
    moments = [t for state in trainer.optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
    kept = [p.__dict__[MEMORY].grad for p in trainer.parameters if MEMORY in p.__dict__]
    return {
        "weights": [*trainer.net.parameters(), *trainer.net.buffers()],
        "gradients": [*(p.grad for p in trainer.parameters if p.grad is not None), *kept, *trainer.memory.kept],
        "optimizer": moments,
        "average": list(trainer.ema.module.state_dict().values()) if trainer.ema is not None else [],
        "teachers": [t for teacher in trainer.teachers for t in (*teacher.parameters(), *teacher.buffers())],
    }


def _macs(trainer: Trainer, n: int, pictures: int) -> float:
    """Of the passes of a step, forward."""
    turns = trainer.sampler.turns(n)
    archs = [(arch, pictures * len(t.sides) / len(t.archs)) for t in turns for arch in t.archs]
    found = cost(trainer.net.space, [a for a, _ in archs], trainer.net.num_classes).macs
    return float(sum(m * share for m, (_, share) in zip(found, archs, strict=True)))


def _told(recipe: Recipe, devices: Devices, step: Step, steps: int, per_epoch: int) -> dict[str, Any]:
    device = devices.device
    share = step.mean / max(step.macs, 1e-9)  # of the largest step's work, that the mean one has
    computing = share * device.seconds(step.work, recipe.train.amp != "off")
    sent = 2 * (devices.count - 1) / devices.count * step.sent
    sending = sent / device.link if devices.count > 1 else 0.0
    seconds = computing + sending
    keep = recipe.watch.keep
    states = step.memory["weights"] + step.memory["optimizer"] + step.memory["average"]
    return {
        "steps": steps, "epochs": steps / per_epoch, "batch": recipe.train.batch_size, "devices": str(devices),
        "seconds_a_step": seconds, "hours": steps * seconds / 3600,
        "device_hours": devices.count * steps * seconds / 3600,
        "macs_a_step": share * sum(w.flops for w in step.work) / 2, "launches": len(step.work),
        "bytes_sent_a_step": sent, "sending_seconds": sending,
        "bytes_moved_a_step": share * sum(w.bytes for w in step.work), "memory": step.memory,
        "fits": step.memory["total"] <= device.usable, "disk": keep * states + 2 * step.memory["weights"],
        "assumed": device.assumed,
    }  # fmt: skip
