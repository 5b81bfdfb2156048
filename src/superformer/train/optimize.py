"""The optimiser and its schedule: timm's, and weight decay that leaves alone what a step did not use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import timm.optim
import torch
from timm.scheduler import CosineLRScheduler
from torch import nn
from torch.optim import Optimizer as TorchOptimizer

from superformer.errors import SuperformerError, nearest
from superformer.recipes.settings import Optimizer


def build(net: nn.Module, settings: Optimizer, *, decay: bool = True) -> TorchOptimizer:
    """An optimiser of timm with two groups: weights that decay, and vectors and the names of ``no_decay`` that do not.

    Without ``decay`` it shrinks nothing itself; `shrink` then does.
    """
    known = timm.optim.list_optimizers()
    if settings.name not in known:
        raise SuperformerError(f"optimizer.name: unknown optimiser {settings.name!r}: {nearest(settings.name, known)}")
    kept: list[nn.Parameter] = []
    decayed: list[nn.Parameter] = []
    for name, p in net.named_parameters():
        (kept if p.ndim <= 1 or any(word in name for word in settings.no_decay) else decayed).append(p)
    groups = [{"params": kept, "weight_decay": 0.0, "decay": 0.0}]
    groups.append({"params": decayed, "weight_decay": settings.weight_decay if decay else 0.0, "decay": settings.weight_decay})
    info = timm.optim.get_optimizer_info(settings.name)
    words: dict[str, Any] = {"eps": settings.eps} if info.has_eps else {}
    if info.has_betas:
        words["betas"] = settings.betas
    if info.has_momentum:
        words["momentum"] = settings.momentum
    if settings.name in ("adamw", "adam"):
        words["fused"] = True  # one pass over the weights
    made: TorchOptimizer = timm.optim.create_optimizer_v2(
        [g for g in groups if g["params"]], opt=settings.name, lr=settings.lr, weight_decay=0.0, filter_bias_and_bn=False, **words
    )
    return made


@torch.no_grad()
def shrink(optimizer: TorchOptimizer) -> None:
    """Decoupled weight decay of what has a gradient: channels and blocks that a step did not use keep their weights."""
    for group in optimizer.param_groups:
        factor = group["lr"] * group["decay"]
        if factor:
            for p in group["params"]:
                if p.grad is not None:
                    p.addcmul_(p, (p.grad != 0).to(p.dtype), value=-factor)


class Schedule:
    """The learning rate of each step; it depends on nothing but the step's number."""

    def __init__(self, optimizer: TorchOptimizer, settings: Optimizer, steps: int, steps_per_epoch: int):
        self.optimizer, self.settings = optimizer, settings
        self.warmup = min(round(settings.warmup_epochs * steps_per_epoch), steps)
        self.cosine = CosineLRScheduler(
            optimizer,
            t_initial=max(steps, 1),
            lr_min=settings.min_lr,
            warmup_t=self.warmup,
            warmup_lr_init=settings.warmup_lr,
            t_in_epochs=False,
        )

    def set(self, step: int) -> float:
        """Set the rate of a step."""
        if self.settings.schedule == "constant" and step >= self.warmup:
            self._all([self.settings.lr] * len(self.optimizer.param_groups))
        else:
            self.cosine.step_update(step)
        return float(self.optimizer.param_groups[0]["lr"])

    def _all(self, rates: Iterable[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
