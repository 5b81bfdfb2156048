"""Convolutions and batch norm on maps, (batch, rows, columns, channels).

Channels come last as in token families: a 1x1 convolution is then a matrix product, and torch's convolutions are fastest in that layout.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from superformer.elastic.axis import Axis, View, fixed
from superformer.elastic.count import Cost, Count
from superformer.elastic.gradients import boxes
from superformer.elastic.layers import Elastic, Widths, width
from superformer.elastic.scratch import scratch
from superformer.elastic.synced import is_synced, synced_norm
from superformer.elastic.take import gather, linear
from superformer.errors import SuperformerError


def kernel_axis(name: str, sizes: Iterable[int]) -> Axis:
    """Kernels of several sizes share the middle of the largest."""
    return Axis(name, tuple(sorted(sizes)), kind="centred")


class MapConv(Elastic, nn.Conv2d):
    """A convolution between two axes, padded by half its kernel; with ``depthwise`` each channel by itself (then ``inp`` is ``out``)."""

    def __init__(self, inp: Axis, out: Axis, kernel: int | Axis, stride: int = 1, bias: bool = False, depthwise: bool = False):
        sizes = kernel if isinstance(kernel, Axis) else fixed("kernel", kernel)
        nn.Conv2d.__init__(self, inp.size, out.size, sizes.size, stride, groups=out.size if depthwise else 1, bias=bias)
        self.dims = {"weight": (out, 1 if depthwise else inp, sizes, sizes)}
        if bias:
            self.dims["bias"] = (out,)
        self.step, self.depthwise = stride, depthwise

    def forward(self, x: Tensor, view: View) -> Tensor:  # type: ignore[override]
        if self.kernel_size == (1, 1) and not self.depthwise:
            x = x if self.step == 1 else x[:, :: self.step, :: self.step]
            bias_index = self.index("bias", view) if self.bias is not None else ()
            return linear(x, self.weight, self.bias, self.index("weight", view)[:2], bias_index)
        weight = self.selected("weight", view)
        bias = self.selected("bias", view) if self.bias is not None else None
        groups = len(weight) if self.depthwise else 1
        out = F.conv2d(x.permute(0, 3, 1, 2), weight, bias, self.step, weight.shape[-1] // 2, groups=groups)
        return out.permute(0, 2, 3, 1)

    def cost(self, widths: Widths, positions: Count) -> Cost:
        """``positions``: the number of output positions."""
        return Cost(positions * math.prod(width(d, widths) for d in self.dims["weight"]), self.params(widths))

    def reset(self, generator: torch.Generator) -> None:
        bound = 1 / math.sqrt(self.weight[0].numel())
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5), generator=generator)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound, generator=generator)


class _NormSwish(torch.autograd.Function):
    """Batch norm and swish of a map; kept for the backward pass is only what was normalised. In training ``mean`` and ``var`` are set to
    the batch's (the variance unbiased)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, training: bool, eps: float) -> Tensor:
        out, own, spread = torch.native_batch_norm(x.permute(0, 3, 1, 2), weight, bias, mean, var, training, 1.0, eps)
        ctx.mark_non_differentiable(mean, var)
        ctx.save_for_backward(x, weight, bias, mean, var, own, spread)
        ctx.training, ctx.eps = training, eps
        return F.silu(out, inplace=True).permute(0, 2, 3, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, var, own, spread = ctx.saved_tensors
        if not ctx.training:
            own, spread = mean, torch.rsqrt(var + ctx.eps)
        scale = weight * spread
        y = torch.addcmul(bias - own * scale, x, scale, out=scratch("wide", x.shape, x))
        back = torch.ops.aten.silu_backward.grad_input(grad, y, grad_input=y).permute(0, 3, 1, 2)
        parts = torch.ops.aten.native_batch_norm_backward(
            back, x.permute(0, 3, 1, 2), weight, mean, var, own, spread, ctx.training, ctx.eps, [True, True, True]
        )
        return parts[0].permute(0, 2, 3, 1), parts[1], parts[2], None, None, None, None


class BatchNorm(Elastic, nn.modules.batchnorm._BatchNorm):
    """Batch norm over the channels that are there; no ``nn.BatchNorm2d``, for which other tools would put their own.

    In training each sub-network is normalised by the statistics of its own part of the batch, and the running statistics of a supernet are
    those of whatever ran last: before a sub-network is used, extract it and call `recalibrate`.
    """

    def __init__(self, axis: Axis, eps: float = 1e-5, fill: float = 1.0):
        nn.modules.batchnorm._BatchNorm.__init__(self, axis.size, eps=eps)
        self.dims = dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (axis,))
        self.dims["num_batches_tracked"] = ()
        self.fill = fill

    def forward(self, x: Tensor, view: View, swish: bool = False) -> Tensor:  # type: ignore[override]
        """Normalised maps; with ``swish`` also through x * sigmoid(x)."""
        weight, bias = self.selected("weight", view), self.selected("bias", view)
        mean, var = self.statistics(view)
        out: Tensor
        if is_synced(self):
            out = synced_norm(x, weight, bias, mean, var, self.eps)
            out = F.silu(out) if swish else out
        elif swish and torch.is_grad_enabled():
            out = _NormSwish.apply(x, weight, bias, mean, var, self.training, self.eps)
        else:
            out = F.batch_norm(x.permute(0, 3, 1, 2), mean, var, weight, bias, self.training, 1.0, self.eps).permute(0, 2, 3, 1)
            out = F.silu(out, inplace=True) if swish else out
        if self.training:
            self.update(mean, var, view)
        return out

    def folded(self, conv: MapConv, view: View) -> tuple[Tensor, Tensor]:
        """The kernel and the bias of a convolution (which has none) followed by this norm, in evaluation."""
        mean, var = self.statistics(view)
        scale = self.selected("weight", view) * torch.rsqrt(var + self.eps)
        return conv.selected("weight", view) * scale.view(-1, 1, 1, 1), self.selected("bias", view) - mean * scale

    def statistics(self, view: View) -> tuple[Tensor, Tensor]:
        """Mean and variance that evaluation uses (copies)."""
        assert self.running_mean is not None
        assert self.running_var is not None
        index = self.index("weight", view)
        return gather(self.running_mean, index).clone(), gather(self.running_var, index).clone()

    @torch.no_grad()
    def update(self, mean: Tensor, var: Tensor, view: View) -> None:
        """Move the running statistics towards those of a batch."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        factor = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        for running, new in ((self.running_mean, mean), (self.running_var, var)):
            for there, here in boxes(running.shape, self.index("weight", view)):
                running[there].lerp_(new[here], factor)

    def cost(self, widths: Widths) -> Cost:
        return Cost(0, self.params(widths))

    def reset(self, generator: torch.Generator) -> None:
        self.reset_running_stats()
        nn.init.constant_(self.weight, self.fill)
        nn.init.zeros_(self.bias)


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Tensor]) -> nn.Module:
    """Estimate the statistics of all batch norms of a network anew, on batches of training pictures; it is in eval mode afterwards.

    A supernet's statistics are a mixture of its sub-networks', so every extracted network with batch norms needs this. Means and (unbiased)
    variances are averaged over the batches with equal weight; everything else runs as in evaluation. A network without batch
    norm is left as it is.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return model.eval()
    todo = iter(batches)
    first = next(todo, None)
    if first is None:
        raise SuperformerError("recalibration needs at least one batch of pictures")
    model.eval()
    before = [m.momentum for m in norms]
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
        for batch in itertools.chain([first], todo):
            model(batch)
    finally:
        for norm, momentum in zip(norms, before, strict=True):
            norm.momentum = momentum
        model.eval()
    return model
