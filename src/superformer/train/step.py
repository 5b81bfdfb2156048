"""One step of training: the sub-networks whose turn it is, their losses, their gradients as one, and the optimiser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from timm.utils import ModelEmaV3
from torch import Tensor

from superformer.data import Batch
from superformer.elastic.axis import Pass
from superformer.elastic.positions import at_size
from superformer.families.network import Network
from superformer.kernels import precision
from superformer.recipes.settings import Recipe
from superformer.runs.processes import Travelling, World
from superformer.runs.storage import Checkpoint
from superformer.train import losses, optimizer
from superformer.train.features import Final, feature_loss
from superformer.train.kept import Kept
from superformer.train.sampling import Sampler, Turn
from superformer.train.state import Guard, Outcome, Scaler, State
from superformer.train.time_budget import Timetable


@dataclass(frozen=True)
class Taught:
    """A part of a batch, with what outside teachers say of it: targets, final tokens."""

    batch: Batch
    finals: Sequence[Final] = ()


@dataclass(frozen=True)
class Made:
    """What a turn made of pictures: logits, those of the patches, the passes of each side."""

    logits: Tensor
    patches: Tensor | None
    sides: Sequence[Sequence[tuple[Tensor, Pass]]]


@dataclass
class Trainer:
    """A supernet and all that changes with it from step to step. ``steps``: as they were planned; a ``timetable`` may
    have other ones."""

    net: Network
    recipe: Recipe
    steps: int
    steps_per_epoch: int
    world: World = field(default_factory=World)
    teachers: Sequence[losses.Teacher] = ()
    kept: Kept | None = None

    def __post_init__(self) -> None:
        recipe, net = self.recipe, self.net
        self.timetable = Timetable(self.steps)
        self.sampler = Sampler(net.space, recipe, net.num_classes, self.steps)
        self.plain_decay = recipe.optimizer.decay_unused or self.sampler.covers_all()
        self.optimizer = optimizer.build(net, recipe.optimizer, decay=self.plain_decay)
        self.schedule = optimizer.Schedule(self.optimizer, recipe.optimizer, self.steps, self.steps_per_epoch)
        self.guard = Guard(recipe.watch.explode)
        self.scaler = Scaler() if recipe.train.amp == "float16" else None
        self.ema = ModelEmaV3(net, decay=recipe.train.ema) if recipe.train.ema else None
        self.parameters = optimizer.trainable(net)
        self.memory = optimizer.GradientMemory()
        self.buffers = [b for b in net.buffers() if b.is_floating_point()]

    @property
    def img_size(self) -> int:
        """Of the pictures that the networks see; a space may have smaller ones."""
        return self.recipe.img_size or self.net.space.img_size

    @property
    def cut_size(self) -> int:
        """Of the pictures that are cut for both: as large as a teacher's, if it is to see more than the networks."""
        sizes = [t.size[0] for t in self.teachers if t.size is not None]
        return max([self.img_size, *sizes]) if self.recipe.loss.teacher_size == "larger" else self.img_size

    @property
    def best(self) -> Network:
        """The network that evaluation uses: the average of the weights, if there is one."""
        return self.ema.module if self.ema is not None else self.net

    def step(self, n: int, batch: Batch) -> Outcome:
        """Step number ``n``, counted from 0. What it draws depends on the seed and on ``n`` alone."""
        with self.world.seeded(self.recipe.seed * 1_000_003 + n * self.world.size + self.world.rank):  # drop path
            return self._step(n, batch)

    def _step(self, n: int, batch: Batch) -> Outcome:
        recipe, net, settings = self.recipe, self.net, self.recipe.gradients
        at = self.timetable.at(n)
        lr = self.schedule.set(at)
        statistics = [b.clone() for b in self.buffers]  # of batch norms, which a skipped step gives back

        # 1. The turns of this step, and whether the largest network's gradients are kept apart from the others'.
        turns = self.sampler.turns(n, at)
        largest = sum(turn.role == "largest" for turn in turns)
        project = settings.rule == "project" and at >= settings.start * self.steps
        measure = largest > 0 and bool(recipe.watch.conflicts) and n % recipe.watch.conflicts == 0
        apart = 0 < largest < len(turns) and (project or measure or settings.clip_subnets is not None)

        # 2. Forward and backward of each turn; the largest comes first and teaches the others.
        net.zero_grad()
        total = torch.zeros((), device=self.world.device)
        parts = [self._taught(part) for part in batch.parts(recipe.train.accumulate, self.world.device)]
        teacher_logits: list[Tensor] = []
        kept: optimizer.Grads | None = None
        dtype = torch.bfloat16 if settings.travel == "bfloat16" else None
        ahead, rest = Travelling(self.world, dtype), Travelling(self.world, dtype)
        for k, turn in enumerate(turns):
            if apart and k == largest:
                self._unscale()
                kept = self.memory.keep(net)
                ahead.send(kept)
                net.zero_grad()
            total += self._forward_backward(turn, parts, teacher_logits, rest if k == len(turns) - 1 else None)
        rest.send(p.grad for p in self.parameters)
        ahead.arrive()
        rest.arrive()
        self._unscale()

        # 3. One gradient of the largest network's and the others', and how they conflict.
        conflict = None
        if kept is not None:
            if settings.clip_subnets is not None:
                optimizer.clip(self.parameters, settings.clip_subnets, self.world.read)
            known = optimizer.products(self.parameters, kept, self.world.read) if project or measure else None
            conflict = optimizer.conflict(net, kept, known) if measure else None
            rule = "project" if project else "sum"
            optimizer.combine(self.parameters, kept, rule, settings.priority, settings.cap, known=known)
        found = torch.stack([self.world.mean(total), optimizer.total_norm(self.parameters).to(total)])
        loss, norm = self.world.read(found)
        loss /= len(turns)
        optimizer.shrink(self.parameters, norm, settings.clip)

        # 4. Guard: what a bad step changed is taken back, and nothing is updated.
        too_large = self.scaler is not None and not math.isfinite(norm) and self.scaler.overflowed()
        bad = None if too_large else self.guard.judge(loss, norm)
        if too_large or bad is not None:
            for buffer, old in zip(self.buffers, statistics, strict=True):
                buffer.copy_(old)
            return Outcome(loss, norm, lr, bad)
        if self.scaler is not None:
            self.scaler.went_well()

        # 5. Update, and average.
        if not self.plain_decay:
            optimizer.decay_used(self.optimizer)
        self.optimizer.step()
        if self.ema is not None:
            self.ema.update(net, step=n)
        return Outcome(loss, norm, lr, None, conflict)

    @torch.no_grad()
    def _unscale(self) -> None:
        """Gradients without the factor of their losses."""
        if self.scaler is not None:
            torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], 1 / self.scaler.scale)

    @torch.no_grad()
    def rehearse(self, batch: Batch) -> None:
        """The passes of the first step, without gradients; nothing is changed."""
        statistics = [b.clone() for b in self.buffers]
        with self.world.seeded(self.recipe.seed):
            first = self._taught(batch.parts(self.recipe.train.accumulate, self.world.device)[0])
            for turn in self.sampler.turns(0):
                self._loss(self._forward(turn, first.batch.x), first, None)
        for buffer, old in zip(self.buffers, statistics, strict=True):
            buffer.copy_(old)

    @torch.no_grad()
    def _taught(self, batch: Batch) -> Taught:
        """Targets of outside teachers, where there are any."""
        if not self.teachers:
            return Taught(batch)
        settings, finals = self.recipe.loss, list[Final]()
        if self.kept is not None and (said := self.kept.say(batch)) is not None:
            logits, finals = said
        elif settings.features:
            logits, finals = map(list, zip(*(teacher.both(batch.x) for teacher in self.teachers), strict=True))
        else:
            logits = [teacher(batch.x) for teacher in self.teachers]
        target = losses.with_teachers(batch.target, logits, settings)
        x = at_size(batch.x, (self.img_size,) * 2) if settings.teacher_size == "larger" else batch.x
        return Taught(replace(batch, x=x, target=target), finals)

    def _forward_backward(
        self, turn: Turn, parts: Sequence[Taught], teacher_logits: list[Tensor], travelling: Travelling | None
    ) -> Tensor:
        """One turn, part by part of the batch; its loss. The largest network's logits go to ``teacher_logits``. From
        the last turn on, gradients are ``travelling`` as soon as they are complete."""
        total, amp = torch.zeros((), device=self.world.device), self.recipe.train.amp
        for m, part in enumerate(parts):
            ends = travelling if m == len(parts) - 1 else None
            early = nullcontext() if ends is None else ends.early(self.net.cells())
            with precision(self.world.device, amp), early:
                made = self._forward(turn, part.batch.x)
                teacher = teacher_logits[m] if turn.role != "largest" and teacher_logits else None
                loss = self._loss(made, part, teacher) / len(parts)
            if turn.role == "largest":
                teacher_logits.append(made.logits.detach())
            (loss if self.scaler is None else self.scaler.scale * loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def _forward(self, turn: Turn, x: Tensor) -> Made:
        """Logits, and those of the patches if they are trained; those of both sides are added (ViTAS as released)."""
        heads = {"patches": True} if self.recipe.mix.patches != "off" else {}
        archs = turn.archs[0] if len(turn.archs) == 1 else list(turn.archs)
        sides = [self.net.passes(x, archs, side) for side in turn.sides]
        outs = [[self.net.classify(tokens, at, **heads) for tokens, at in passes] for passes in sides]
        logits = _added([_joined([o[0] if heads else o for o in side]) for side in outs])
        patches = _added([_joined([o[1] for o in side]) for side in outs]) if heads else None
        return Made(logits, patches, sides)

    def _loss(self, made: Made, part: Taught, teacher: Tensor | None) -> Tensor:
        settings, logits, batch = self.recipe.loss, made.logits, part.batch
        if teacher is not None and settings.distill != "none":
            loss = losses.distillation(logits, teacher, settings)
        elif made.patches is None:
            loss = losses.soft_cross_entropy(logits, batch.target)
        else:
            assert batch.patches is not None
            loss = losses.token_labelling(logits, made.patches, batch.target, batch.patches, settings.patches)
        if part.finals:
            loss = (
                loss
                + settings.features * torch.stack([feature_loss(self.net, s, part.finals) for s in made.sides]).mean()
            )
        return loss

    @property
    def state(self) -> State:
        return State(self.net, self.optimizer, self.guard, self.ema, self.scaler)

    def checkpoint(self, step: int) -> Checkpoint:
        """The state after ``step`` steps."""
        return self.state.checkpoint(step)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _added(sides: Sequence[Tensor]) -> Tensor:
    return sides[0] if len(sides) == 1 else torch.stack(list(sides)).sum(0)
