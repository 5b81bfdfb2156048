"""Batch norm over the pictures of all processes: two processes with half a batch each then compute what one does with the whole.

torch's own synchronised batch norm does not run on CPUs. Here sums travel instead, forwards and backwards. (For each norm two messages
forwards and two backwards: where a process has enough pictures by itself, statistics of its own are cheaper.)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

SYNCED = "synced"
"""The attribute of a norm that takes all processes' pictures."""


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


def synchronise(net: nn.Module, on: bool = True) -> None:
    """Let all batch norms of a network take the pictures of all processes; or, for what one process does by itself, not."""
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            setattr(module, SYNCED, on)


def is_synced(norm: nn.Module) -> bool:
    return bool(getattr(norm, SYNCED, False)) and norm.training and dist.is_initialized() and dist.get_world_size() > 1


def synced_norm(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """Batch norm of (..., channels); ``mean`` and ``var`` are set to the statistics of all processes (the variance unbiased)."""
    dims = tuple(range(x.ndim - 1))
    n = x.numel() // x.shape[-1] * dist.get_world_size()
    centre: Tensor = _Sum.apply(x.sum(dims)) / n
    off = x - centre
    spread: Tensor = _Sum.apply(off.square().sum(dims)) / n
    with torch.no_grad():
        mean.copy_(centre)
        var.copy_(spread * (n / max(n - 1, 1)))
    return off * (torch.rsqrt(spread + eps) * weight) + bias


class BatchNorm2d(nn.BatchNorm2d):
    """torch's batch norm of (batch, channels, rows, columns), which can take the pictures of all processes."""

    def forward(self, x: Tensor) -> Tensor:
        if not is_synced(self):
            return super().forward(x)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        mean, var = self.running_mean.clone(), self.running_var.clone()
        out = synced_norm(x.permute(0, 2, 3, 1), self.weight, self.bias, mean, var, self.eps)
        self.num_batches_tracked.add_(1)
        factor = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, factor)
        self.running_var.lerp_(var, factor)
        return out.permute(0, 3, 1, 2)
