"""What changes from step to step of a training, whatever it trains: weights, their average, the optimiser's moments,
and what the guard knows. A checkpoint has all of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.optim import Optimizer

from superformer.runs.storage import Checkpoint

GROWS = 2000
"""Steps without an overflow after which float16's factor doubles."""


@dataclass(frozen=True)
class Outcome:
    """What a step did. ``bad``: why it was skipped, if it was; ``more``: the parts of its loss."""

    loss: float
    grad_norm: float
    lr: float
    bad: str | None = None
    conflict: dict[str, Any] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


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
        else:
            self.recent = loss if self.recent is None else 0.95 * self.recent + 0.05 * loss
        self.skipped += bad is not None
        self.in_a_row = self.in_a_row + 1 if bad is not None else 0
        return bad


@dataclass
class Scaler:
    """The factor of losses in float16, in which small gradients would be nothing: halved where they overflow, doubled
    after many steps in which none did."""

    scale: float = 2.0**16
    good: int = 0

    def overflowed(self) -> bool:
        """Gradients were no numbers: a smaller factor may help. It cannot if there is none left."""
        possible = self.scale > 1
        self.scale, self.good = max(self.scale / 2, 1.0), 0
        return possible

    def went_well(self) -> None:
        self.good += 1
        if self.good >= GROWS:
            self.scale, self.good = 2 * self.scale, 0


@dataclass
class State:
    net: nn.Module
    optimizer: Optimizer
    guard: Guard
    ema: ModelEmaV3 | None
    scaler: Scaler | None = None

    def checkpoint(self, step: int) -> Checkpoint:
        """The state after ``step`` steps."""
        tensors = {f"net.{k}": v for k, v in self.net.state_dict().items()}
        if self.ema is not None:
            tensors |= {f"ema.{k}": v for k, v in self.ema.module.state_dict().items()}
        plain: dict[str, dict[str, Any]] = {}
        names = {id(p): name for name, p in self.net.named_parameters()}
        for p, state in self.optimizer.state.items():
            name = names[id(p)]
            tensors |= {f"optimizer.{name}/{k}": v for k, v in state.items() if isinstance(v, Tensor)}
            if rest := {k: v for k, v in state.items() if not isinstance(v, Tensor)}:
                plain[name] = rest
        guard = {"recent": self.guard.recent, "skipped": self.guard.skipped, "in_a_row": self.guard.in_a_row}
        scaler = {} if self.scaler is None else {"scaler": vars(self.scaler)}
        return Checkpoint(step, tensors, {"optimizer": plain, "guard": guard, **scaler})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint. Moments lie where their weights are; the optimiser's count of steps on the
        processor, but where fused kernels (or captured graphs) read it from the weight's device."""
        self.net.load_state_dict(checkpoint.under("net."))
        if self.ema is not None:
            self.ema.module.load_state_dict(checkpoint.under("ema."))
        states: dict[str, dict[str, Any]] = {k: dict(values) for k, values in checkpoint.rest["optimizer"].items()}
        for key, tensor in checkpoint.under("optimizer.").items():
            name, _, entry = key.rpartition("/")
            states.setdefault(name, {})[entry] = tensor
        groups = self.optimizer.param_groups
        there = {id(p) for g in groups if g.get("fused") or g.get("capturable") for p in g["params"]}
        for name, p in self.net.named_parameters():
            if name in states:
                tensors = {k: v for k, v in states[name].items() if isinstance(v, Tensor)}
                moved = {k: v.to(p.device) for k, v in tensors.items() if v.ndim or id(p) in there}
                self.optimizer.state[p] = {**states[name], **moved}
        for name, value in checkpoint.rest["guard"].items():
            setattr(self.guard, name, value)
        if self.scaler is not None:
            vars(self.scaler).update(checkpoint.rest.get("scaler", {}))
