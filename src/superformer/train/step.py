"""One step of training: the sub-networks it is the turn of, their losses, their gradients as one, and the optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from superformer.data import Batch
from superformer.families.network import Network
from superformer.recipes.settings import Recipe
from superformer.runs.processes import World
from superformer.runs.storage import Checkpoint
from superformer.train import losses
from superformer.train import optimizer as gradients
from superformer.train import optimizer as optimize
from superformer.train.sampling import Sampler, Turn

Teacher = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Outcome:
    """What a step did. ``bad``: why it was skipped, if it was."""

    loss: float
    grad_norm: float
    lr: float
    bad: str | None = None
    conflict: dict[str, Any] | None = None


@dataclass
class Guard:
    """Losses that are no numbers, or many times the recent ones, must not reach the weights."""

    explode: float
    recent: float | None = None
    skipped: int = 0
    in_a_row: int = 0

    def judge(self, loss: float, norm: float) -> str | None:
        """Why a step is to be skipped, or None."""
        bad = None
        if not math.isfinite(loss):
            bad = f"the loss is {loss}"
        elif not math.isfinite(norm):
            bad = f"the norm of the gradient is {norm}"
        elif self.recent is not None and loss > self.explode * max(self.recent, 1.0):
            bad = f"the loss is {loss:.3g}, {loss / self.recent:.0f} times the recent one"
        if bad is None:
            self.recent = loss if self.recent is None else 0.95 * self.recent + 0.05 * loss
            self.in_a_row = 0
        else:
            self.skipped += 1
            self.in_a_row += 1
        return bad


@dataclass
class Trainer:
    """A supernet and all that changes with it from step to step."""

    net: Network
    recipe: Recipe
    steps: int
    steps_per_epoch: int
    world: World = field(default_factory=World)
    teachers: Sequence[Teacher] = ()

    def __post_init__(self) -> None:
        recipe, net = self.recipe, self.net
        self.sampler = Sampler(
            net.space, recipe.sampling, sharing=recipe.sharing, num_classes=net.num_classes, seed=recipe.seed, total_steps=self.steps,
            img_size=recipe.img_size,
        )  # fmt: skip
        self.plain_decay = recipe.optimizer.decay_unused or self.sampler.covers_all()
        self.optimizer = optimize.build(net, recipe.optimizer, decay=self.plain_decay)
        self.schedule = optimize.Schedule(self.optimizer, recipe.optimizer, self.steps, self.steps_per_epoch)
        self.guard = Guard(recipe.watch.explode)
        self.ema = ModelEmaV3(net, decay=recipe.train.ema) if recipe.train.ema else None
        self.parameters = gradients.trainable(net)
        self.memory = gradients.Kept()
        self.buffers = [b for b in net.buffers() if b.is_floating_point()]

    @property
    def best(self) -> Network:
        """The network that evaluation uses: the average of the weights, if there is one."""
        return self.ema.module if self.ema is not None else self.net

    def step(self, n: int, batch: Batch) -> Outcome:
        """Step number ``n``, counted from 0. What it draws depends on the seed and on ``n`` alone."""
        recipe, net = self.recipe, self.net
        torch.manual_seed(recipe.seed * 1_000_003 + n * self.world.size + self.world.rank)  # drop path
        lr = self.schedule.set(n)
        before = [b.clone() for b in self.buffers]
        turns = self.sampler.turns(n)
        largest = [t for t in turns if t.role == "largest"]
        settings = recipe.gradients
        project = settings.rule == "project" and n >= settings.start * self.steps
        measure = bool(largest) and bool(recipe.watch.conflicts) and n % recipe.watch.conflicts == 0
        apart = (
            bool(largest) and len(turns) > len(largest) and (project or measure or settings.clip_subnets is not None)
        )

        net.zero_grad()
        total = torch.zeros((), device=self.world.device)
        shares = [self._taught(part) for part in batch.parts(recipe.train.accumulate, self.world.device)]
        taught: list[Tensor] = []
        kept: gradients.Grads | None = None
        for turn in turns:
            if apart and turn is turns[len(largest)]:  # the largest has run
                self.world.mean_gradients(self.parameters)
                kept = self.memory.keep(net)
                net.zero_grad()
            total += self._turn(turn, shares, taught)
        self.world.mean_gradients(self.parameters)
        loss = float(self.world.mean(total)) / len(turns)
        conflict = self._join(kept, project, measure) if kept is not None else None
        norm = gradients.clip(self.parameters, settings.clip)
        bad = self.guard.judge(loss, norm)
        if bad is not None:
            for buffer, old in zip(self.buffers, before, strict=True):
                buffer.copy_(old)
            return Outcome(loss, norm, lr, bad)
        if not self.plain_decay:
            optimize.shrink(self.optimizer)
        self.optimizer.step()
        if self.ema is not None:
            self.ema.update(net, step=n)
        return Outcome(loss, norm, lr, None, conflict)

    def _join(self, kept: gradients.Grads, project: bool, measure: bool) -> dict[str, Any] | None:
        """Make one gradient of the largest network's, which was kept, and the others'; measure how they conflict."""
        settings = self.recipe.gradients
        if settings.clip_subnets is not None:
            gradients.clip(self.parameters, settings.clip_subnets)
        found = gradients.products(self.parameters, kept) if project or measure else None
        conflict = gradients.conflict(self.net, kept, found) if measure else None
        gradients.combine(
            self.parameters, kept, "project" if project else "sum", settings.priority, settings.cap, known=found
        )
        return conflict

    def _turn(self, turn: Turn, shares: Sequence[Batch], taught: list[Tensor]) -> Tensor:
        """Forward and backward of one turn, part by part of the batch; its loss. The largest network's logits go to
        ``taught``."""
        total = torch.zeros((), device=self.world.device)
        for m, share in enumerate(shares):
            with self._autocast():
                out = self._forward(turn, share.x)
                loss = self._loss(out, share, taught[m] if turn.role != "largest" and taught else None) / len(shares)
            if turn.role == "largest":
                taught.append((out[0] if isinstance(out, tuple) else out).detach())
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.recipe.train.amp == "off":
            return nullcontext()
        return torch.autocast(self.world.device.type, torch.bfloat16)

    def _forward(self, turn: Turn, x: Tensor) -> Any:
        """Logits (and those of the patches); those of both sides are added (ViTAS as released)."""
        words = {"patches": True} if self.recipe.mix.patches != "off" else {}
        archs = turn.archs[0] if len(turn.archs) == 1 else list(turn.archs)
        outs = [self.net(x, archs, side=side, **words) for side in turn.sides]
        if len(outs) == 1:
            return outs[0]
        if isinstance(outs[0], tuple):
            return tuple(torch.stack(o).sum(0) for o in zip(*outs, strict=True))
        return torch.stack(outs).sum(0)

    def _loss(self, out: Any, batch: Batch, teacher: Tensor | None) -> Tensor:
        settings = self.recipe.loss
        logits, patches = out if isinstance(out, tuple) else (out, None)
        if teacher is not None and settings.distill != "none":
            return losses.distillation(logits, teacher, settings)
        if patches is None:
            return losses.soft_cross_entropy(logits, batch.target)
        assert batch.patches is not None
        return losses.token_labelling(logits, patches, batch.target, batch.patches, settings.patches)

    @torch.no_grad()
    def _taught(self, batch: Batch) -> Batch:
        """Targets of outside teachers, where there are any."""
        if not self.teachers:
            return batch
        settings = self.recipe.loss
        targets = losses.teacher_targets([teacher(batch.x) for teacher in self.teachers], settings.teacher_scale)
        return replace(batch, target=torch.lerp(batch.target, targets, settings.teacher_weight))


# What the next step depends on, as tensors by name and plain values, for checkpoints.


def capture(trainer: Trainer, step: int) -> Checkpoint:
    """The state after ``step`` steps: weights, their average, the optimiser's moments, and what the guard against bad
    losses knows."""
    tensors = {f"net.{k}": v for k, v in trainer.net.state_dict().items()}
    if trainer.ema is not None:
        tensors |= {f"ema.{k}": v for k, v in trainer.ema.module.state_dict().items()}
    plain: dict[str, dict[str, Any]] = {}
    names = {id(p): name for name, p in trainer.net.named_parameters()}
    for p, state in trainer.optimizer.state.items():
        name = names[id(p)]
        tensors |= {f"optimizer.{name}/{k}": v for k, v in state.items() if isinstance(v, Tensor)}
        if rest := {k: v for k, v in state.items() if not isinstance(v, Tensor)}:
            plain[name] = rest
    guard = {"recent": trainer.guard.recent, "skipped": trainer.guard.skipped, "in_a_row": trainer.guard.in_a_row}
    return Checkpoint(step, tensors, {"optimizer": plain, "guard": guard})


def restore(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Go on from a checkpoint."""
    trainer.net.load_state_dict(checkpoint.part("net."))
    if trainer.ema is not None:
        trainer.ema.module.load_state_dict(checkpoint.part("ema."))
    states: dict[str, dict[str, Any]] = {name: dict(values) for name, values in checkpoint.rest["optimizer"].items()}
    for key, tensor in checkpoint.part("optimizer.").items():
        name, _, entry = key.rpartition("/")
        states.setdefault(name, {})[entry] = tensor
    _give(trainer, states)
    for name, value in checkpoint.rest["guard"].items():
        setattr(trainer.guard, name, value)


def _give(trainer: Trainer, states: Mapping[str, Mapping[str, Any]]) -> None:
    for name, p in trainer.net.named_parameters():
        if name in states:
            trainer.optimizer.state[p] = {k: _placed(v, p) for k, v in states[name].items()}


def _placed(value: Any, like: nn.Parameter) -> Any:
    """Moments lie where their weights are; the count of steps stays where the optimiser keeps it."""
    return value.to(like.device) if isinstance(value, Tensor) and value.ndim else value
