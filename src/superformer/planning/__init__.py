"""The plan before the bill: steps, work, memory and time of a training before it starts.

One step of the recipe, with its whole batch, its optimiser and its teachers, is done on tensors without numbers
(`superformer.planning.trace`): memory is what is alive in it at once, work what its operations multiply, read and
write. Time follows from the peaks of a device (`superformer.planning.devices`), operation by operation: each takes as
long as its arithmetic, its bytes or its start, whatever is longest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from superformer import data
from superformer.cost import cost
from superformer.errors import SuperformerError
from superformer.planning.devices import Devices
from superformer.planning.trace import Trace, Work, size_of
from superformer.recipes import Recipe, resolve, space_of
from superformer.runs.processes import World
from superformer.space import Space
from superformer.train.losses import untrained_teachers
from superformer.train.preparation import build_trainer, count_steps
from superformer.train.step import Trainer

IMAGENET_PICTURES, IMAGENET_CLASSES = 1_281_167, 1000
"""Of the papers' data, where no other are named."""
LOOKED_AT = 64
"""Steps, spread over the training, that tell the mean work; the largest of them is traced."""
META = torch.device("meta")


@dataclass(frozen=True)
class Step:
    """What a step takes of one device: bytes by kind, and the work of its operations. ``grown``: MACs of this step,
    ``mean``: of the mean step, with what is trained three times."""

    memory: dict[str, int]
    work: list[Work]
    macs: float
    mean: float


def plan(
    recipe: Recipe | str, data_spec: str | None = None, devices: str = "1xA100-80GB", changes: Sequence[str] = ()
) -> dict[str, Any]:
    """What a training will take, in numbers."""
    settings = recipe if isinstance(recipe, Recipe) else resolve(recipe, changes)
    space, own = space_of(settings), Devices.read(devices)
    pictures, classes, known = _pictures(settings, space, data_spec)
    per_epoch = data.steps_per_epoch(pictures, settings.train.batch_size)
    steps = count_steps(settings, per_epoch)
    step = traced(settings, space, classes, steps, per_epoch, own.count)
    return _told(settings, own, step, steps, per_epoch) | {
        "recipe": settings.name, "pictures": pictures, "data": known, "classes": classes,
    }  # fmt: skip


def _pictures(recipe: Recipe, space: Space, spec: str | None) -> tuple[int, int, str]:
    """How many there are to train with, in how many classes."""
    if spec is not None:
        found = data.load(spec, recipe.data, recipe.img_size or space.img_size)
        return len(found.train), len(found.classes), spec
    search = recipe.data.search
    kept = IMAGENET_PICTURES - round(search * IMAGENET_PICTURES if search < 1 else search * IMAGENET_CLASSES)
    return kept, IMAGENET_CLASSES, "ImageNet-1k (assumed: name yours with --data)"


def traced(recipe: Recipe, space: Space, classes: int, steps: int, per_epoch: int, processes: int = 1) -> Step:
    """One step of one of several processes, the largest of some, on tensors without numbers."""
    batch = recipe.train.batch_size
    if batch % processes:
        raise SuperformerError(f"a batch of {batch} cannot be shared equally by {processes} devices")
    share = recipe.model_copy(update={"train": recipe.train.model_copy(update={"batch_size": batch // processes})})
    with torch.device(META):
        teachers = untrained_teachers(share.loss.teachers, classes, share.loss.teacher_size)
    names = [str(k) for k in range(classes)]
    trainer = build_trainer(share, space, names, steps, per_epoch, World(device=META), warm=False, teachers=teachers)
    looked = sorted({round(k * (steps - 1) / (LOOKED_AT - 1)) for k in range(LOOKED_AT)})
    macs = {n: _macs(trainer, n, batch // processes) for n in looked}
    largest = max(looked, key=macs.__getitem__)
    x = torch.empty(batch // processes, 3, trainer.cut_size, trainer.cut_size, device=META)
    pictures = data.Batch(x, *(torch.empty(len(x), n, device=META) for n in (classes, 1)))
    if share.mix.patches != "off":
        grid = trainer.net.patch_grid(trainer.img_size)
        pictures = replace(pictures, patches=torch.empty(len(x), grid**2, classes, device=META))
    trainer.step(largest, pictures)  # the optimiser's moments are there afterwards
    weights = size_of([*trainer.net.parameters(), *trainer.net.buffers()])
    moments = [t for state in trainer.optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
    ema = list(trainer.ema.module.state_dict().values()) if trainer.ema is not None else []
    taught = [t for teacher in trainer.teachers for t in (*teacher.parameters(), *teacher.buffers())]
    gradients = size_of([p.grad for p in trainer.parameters if p.grad is not None])
    kept = [*trainer.net.parameters(), *trainer.net.buffers(), *moments, *ema, *taught]
    with Trace([*kept, *(t for t in vars(pictures).values() if isinstance(t, Tensor))]) as trace:
        trainer.step(largest, pictures)
    memory = {"weights": weights, "gradients": gradients, "optimizer": size_of(moments)}
    memory |= {"average": size_of(ema), "teachers": size_of(taught)}
    memory["activations"] = max(trace.peak - sum(memory.values()), 0)
    memory["total"] = trace.peak
    return Step(memory, trace.work, macs[largest], sum(macs.values()) / len(macs))


def _macs(trainer: Trainer, n: int, pictures: int) -> float:
    """Of the passes of a step, forward."""
    turns = trainer.sampler.turns(n)
    archs = [(arch, pictures * len(t.sides) / len(t.archs)) for t in turns for arch in t.archs]
    found = cost(trainer.net.space, [a for a, _ in archs], trainer.net.num_classes).macs
    return float(sum(m * share for m, (_, share) in zip(found, archs, strict=True)))


def _told(recipe: Recipe, devices: Devices, step: Step, steps: int, per_epoch: int) -> dict[str, Any]:
    device, half = devices.device, recipe.train.amp != "off"
    share = step.mean / max(step.macs, 1e-9)  # of the largest step's work, that the mean one has
    computing = share * device.seconds(step.work, half)
    sent = 2 * (devices.count - 1) / devices.count * step.memory["gradients"]
    sending = sent / device.link if devices.count > 1 else 0.0
    seconds = computing + sending
    keep = recipe.watch.keep
    states = step.memory["weights"] + step.memory["optimizer"] + step.memory["average"]
    return {
        "steps": steps, "epochs": steps / per_epoch, "batch": recipe.train.batch_size, "devices": str(devices),
        "seconds_a_step": seconds, "hours": steps * seconds / 3600,
        "device_hours": devices.count * steps * seconds / 3600,
        "macs_a_step": 3 * step.mean, "launches": len(step.work), "bytes_sent_a_step": sent, "sending_seconds": sending,
        "bytes_moved_a_step": sum(w.bytes for w in step.work), "memory": step.memory,
        "fits": step.memory["total"] <= device.usable, "disk": keep * states + 2 * step.memory["weights"],
        "assumed": device.assumed,
    }  # fmt: skip
