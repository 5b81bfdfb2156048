"""Batches of a task's examples, and one step of training a backbone with a head.

As everywhere, the order of an epoch comes from (seed, epoch), what happens to a picture from (seed, epoch, place) and
what a step draws from (seed, step): a run that goes on computes the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from superformer.data.augment import generator
from superformer.data.batches import Prefetcher, steps_per_epoch
from superformer.errors import SuperformerError
from superformer.kernels import Arriving, precision
from superformer.runs.processes import World
from superformer.runs.storage import Checkpoint
from superformer.train import optimizer
from superformer.train.state import Guard, Outcome, Scaler, State
from superformer.train.time_budget import Timetable
from superformer.transfer.settings import Transfer
from superformer.transfer.task import Batch, Example, Split, Target

Key = tuple[int, tuple[int, int, int] | None]


class _Examples(Dataset[Example]):
    """The examples of a split by their numbers, varied by others."""

    def __init__(self, split: Split):
        self.split = split

    def __getitem__(self, key: Key) -> Example:
        return self.split.example(*key)


def batch_of(examples: Sequence[Example]) -> Batch:
    return Batch([e.picture for e in examples], [e.target for e in examples])


def loaded(split: Split, keys: list[list[Key]], workers: int) -> Generator[Batch]:
    """The batches of these keys, prepared by so many processes, which end with the last one: a fork is cheap."""
    own = torch.Generator().manual_seed(0)  # not the process's own
    workers = min(workers, len(keys))
    loader = DataLoader(
        _Examples(split), batch_sampler=keys, num_workers=workers, collate_fn=batch_of, generator=own
    )  # fmt: skip
    yield from loader


def train_batches(split: Split, settings: Transfer, epoch: int, start: int, world: World) -> Prefetcher[Batch]:
    """The batches of an epoch from a step on, or this process's share of them; to an accelerator they are copied
    ahead."""
    size, seed, workers = settings.train.batch_size, settings.seed, settings.data.workers
    if size % (world.size * settings.train.accumulate):
        shared = f"{world.size} processes and {settings.train.accumulate} parts"
        raise SuperformerError(f"a batch of {size} cannot be shared equally by {shared}: change train.batch_size")
    order = generator(seed, "order", epoch).permutation(len(split))
    steps = range(start, steps_per_epoch(len(split), size))
    places = (range(step * size + world.rank, (step + 1) * size, world.size) for step in steps)
    keys: list[list[Key]] = [[(int(order[place]), (seed, epoch, place)) for place in own] for own in places]

    def batches() -> Generator[Batch]:
        with closing(loaded(split, keys, workers)) as own:
            for batch in own:
                yield sent(batch, world.device)

    return Prefetcher(batches(), len(keys), depth=2 if workers else 0)


@dataclass(frozen=True)
class Sent(Batch):
    """A batch on its way to a device."""

    arriving: Arriving


def sent(batch: Batch, device: torch.device) -> Sent:
    tensors: dict[str, Tensor] = {}

    def note(x: Tensor) -> Tensor:
        tensors[str(len(tensors))] = x
        return x

    _changed(batch, note)
    arriving = Arriving(tensors, device)
    copies = iter(arriving.tensors.values())
    own = _changed(batch, lambda _: next(copies))
    return Sent(own.pictures, own.targets, arriving)


def on_device(batch: Batch, device: torch.device) -> Batch:
    """The batch there; one that was sent is waited for, by the device alone."""
    if isinstance(batch, Sent):
        batch.arriving.wait()
    return _changed(batch, lambda x: x.to(device, non_blocking=True))


def _changed(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """A batch with each of its tensors changed, always in the same order."""

    def own(value: Any) -> Any:
        return change(value) if isinstance(value, Tensor) else value

    targets: list[Target] = [{k: own(v) for k, v in target.items()} for target in batch.targets]
    return Batch([own(x) for x in batch.pictures], targets)


@dataclass
class Trainer:
    """A backbone with a head, and all that changes with it from step to step."""

    model: nn.Module
    settings: Transfer
    steps: int
    steps_per_epoch: int
    world: World = field(default_factory=World)

    def __post_init__(self) -> None:
        own, model = self.settings, self.model
        self.timetable = Timetable(self.steps)
        self.optimizer = optimizer.build(model, own.optimizer, scales=_scales(model, own))
        self.schedule = optimizer.Schedule(self.optimizer, own.optimizer, self.steps, self.steps_per_epoch)
        self.guard = Guard(own.watch.explode)
        self.scaler = Scaler() if own.train.amp == "float16" else None
        self.ema = ModelEmaV3(model, decay=own.train.ema) if own.train.ema else None
        self.parameters = optimizer.trainable(model)
        self.buffers = list(model.buffers())

    @property
    def best(self) -> nn.Module:
        """What evaluation uses: the average of the weights, if there is one."""
        return self.ema.module if self.ema is not None else self.model

    @property
    def state(self) -> State:
        return State(self.model, self.optimizer, self.guard, self.ema, self.scaler)

    def checkpoint(self, step: int) -> Checkpoint:
        """The state after ``step`` steps."""
        return self.state.checkpoint(step)

    def step(self, n: int, batch: Batch) -> Outcome:
        """Step number ``n``, counted from 0."""
        with self.world.seeded(self.settings.seed * 1_000_003 + n * self.world.size + self.world.rank):
            return self._step(n, batch)

    def _step(self, n: int, batch: Batch) -> Outcome:
        lr = self.schedule.set(self.timetable.at(n))
        statistics = [b.clone() for b in self.buffers]  # of batch norms, which a skipped step gives back
        self.model.train()
        self.model.zero_grad()
        parts = self._losses(batch)
        if self.world.size > 1:
            for p in self.parameters:  # what no picture of this process needed
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        self.world.mean_gradients(self.parameters)
        if self.scaler is not None:
            torch._foreach_div_([p.grad for p in self.parameters if p.grad is not None], self.scaler.scale)
        losses = self.world.mean(torch.stack(list(parts.values())))
        *means, norm = self.world.read(torch.cat([losses, optimizer.total_norm(self.parameters).to(losses)[None]]))
        values = dict(zip(parts, means, strict=True))
        loss = sum(means)
        optimizer.shrink(self.parameters, norm, self.settings.train.clip)
        too_large = self.scaler is not None and not math.isfinite(norm) and self.scaler.overflowed()
        bad = None if too_large else self.guard.judge(loss, norm)
        if too_large or bad is not None:
            for buffer, old in zip(self.buffers, statistics, strict=True):
                buffer.copy_(old)
        else:
            if self.scaler is not None:
                self.scaler.went_well()
            self.optimizer.step()
            if self.ema is not None:
                self.ema.update(self.model, step=n)
        return Outcome(loss, norm, lr, bad, more={"losses": values})

    def _losses(self, batch: Batch) -> dict[str, Tensor]:
        """The losses by name, part by part of the batch, with their gradients."""
        train, device, found = self.settings.train, self.world.device, dict[str, Tensor]()
        whole = on_device(batch, device)
        for m in range(train.accumulate):
            part = Batch(whole.pictures[m :: train.accumulate], whole.targets[m :: train.accumulate])
            with precision(device, train.amp):
                losses = self.model.losses(part)  # type: ignore[operator]
            total = torch.stack([value.float() for value in losses.values()]).sum() / train.accumulate
            (total if self.scaler is None else self.scaler.scale * total).backward()  # type: ignore[no-untyped-call]
            for name, value in losses.items():
                own = value.detach().float() / train.accumulate
                found[name] = found[name] + own if name in found else own
        return found

    @torch.no_grad()
    def rehearse(self, batch: Batch) -> None:
        """The losses and the predictions of a batch, without gradients; nothing is changed."""
        statistics = [b.clone() for b in self.buffers]
        moved = on_device(batch, self.world.device)
        with self.world.seeded(self.settings.seed):
            self.model.train()
            self.model.losses(moved)  # type: ignore[operator]
            self.model.eval()
            self.model.predict(moved.pictures[:1], moved.targets[:1])  # type: ignore[operator]
        for buffer, old in zip(self.buffers, statistics, strict=True):
            buffer.copy_(old)


def _scales(model: nn.Module, settings: Transfer) -> dict[str, float]:
    """Of the learning rates of the backbone's weights; what is new in it learns as fast as the head."""
    own, base = settings.backbone, model.backbone
    names = {id(p): name for name, p in model.named_parameters()}
    rates: dict[str, float] = base.rates(own.layer_decay)  # type: ignore[operator, union-attr]
    return {
        names[id(p)]: rates[name] * (own.rate if name.startswith("net.") else 1.0)
        for name, p in base.named_parameters()  # type: ignore[union-attr]
    }
