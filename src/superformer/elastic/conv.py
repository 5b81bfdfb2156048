"""Batch norm over the pictures of all processes: two processes with half a batch each then compute what one does with
the whole.

torch's own synchronised batch norm does not run on CPUs. Here sums travel instead, forwards and backwards. (For each
norm two messages forwards and two backwards: where a process has enough pictures by itself, statistics of its own are
cheaper.)"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from superformer.elastic.axis import Axis, View, fixed
from superformer.elastic.layers import Elastic, Widths, width
from superformer.errors import SuperformerError
from superformer.kernels.convolution import depthwise
from superformer.kernels.memory import scratch
from superformer.kernels.slices import boxes, gather, linear, take
from superformer.space.costs import Cost, Count

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
    """Let all batch norms of a network take the pictures of all processes; or, for what one process does by itself,
    not."""
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            setattr(module, SYNCED, on)


def is_synced(norm: nn.Module) -> bool:
    return bool(getattr(norm, SYNCED, False)) and norm.training and dist.is_initialized() and dist.get_world_size() > 1


def synced_norm(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """Batch norm of (..., channels); ``mean`` and ``var`` are set to the statistics of all processes (the variance
    unbiased)."""
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


# Convolutions of maps, (batch, rows, columns, channels).
#
# Channels come last as in token families: a 1x1 convolution is then a matrix product, and torch's convolutions are
# fastest in that layout.


def kernel_axis(name: str, sizes: Iterable[int]) -> Axis:
    """Kernels of several sizes share the middle of the largest."""
    return Axis(name, tuple(sorted(sizes)), kind="centred")


class MapConv(Elastic, nn.Conv2d):
    """A convolution between two axes, padded by half its kernel; with ``depthwise`` each channel by itself (then
    ``inp`` is ``out``)."""

    def __init__(
        self, inp: Axis, out: Axis, kernel: int | Axis, stride: int = 1, bias: bool = False, depthwise: bool = False
    ):
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
        kernel, *bias = self.selected(view, *self.dims)
        return self.convolve(x, kernel, bias[0] if bias else None)

    def convolve(self, x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
        """With this kernel and bias, in place of its own."""
        if self.depthwise:
            return depthwise(x, kernel, bias, self.step)
        if kernel.shape[-1] == 1:
            return F.linear(x if self.step == 1 else x[:, :: self.step, :: self.step], kernel.flatten(1), bias)
        return F.conv2d(x.permute(0, 3, 1, 2), kernel, bias, self.step, kernel.shape[-1] // 2).permute(0, 2, 3, 1)

    def cost(self, widths: Widths, positions: Count) -> Cost:
        """``positions``: the number of output positions."""
        return Cost(positions * math.prod(width(d, widths) for d in self.dims["weight"]), self.params(widths))

    def reset(self, generator: torch.Generator) -> None:
        bound = 1 / math.sqrt(self.weight[0].numel())
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5), generator=generator)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound, generator=generator)


# Batch norm on maps, (batch, rows, columns, channels).


def unbiased(var: Tensor, count: int) -> Tensor:
    """The variance as running statistics have it, from that of ``count`` numbers."""
    return var * (count / max(count - 1, 1))


class Normed(NamedTuple):
    """How a map was normalised, for the backward pass: with the scale and the shift, and the batch's or the given mean
    and deviation."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    mean: Tensor
    spread: Tensor

    @classmethod
    def run(
        cls, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, training: bool, eps: float, out: Tensor
    ) -> Normed:
        """Write the normalised map to ``out``; in training ``mean`` and ``var`` are set to the batch's (the variance
        unbiased)."""
        own, spread = torch.empty_like(mean), torch.empty_like(var)
        there = out.permute(0, 3, 1, 2)
        torch.ops.aten.native_batch_norm.out(
            x.permute(0, 3, 1, 2),
            weight,
            bias,
            mean,
            var,
            training,
            1.0,
            eps,
            out=there,
            save_mean=own,
            save_invstd=spread,
        )
        return cls(x, weight, bias, own, spread) if training else cls(x, weight, bias, mean, torch.rsqrt(var + eps))

    def again(self) -> Tensor:
        """The normalised map, in scratch memory."""
        scale = self.weight * self.spread
        return torch.addcmul(self.bias - self.mean * scale, self.x, scale, out=scratch("wide", self.x.shape, self.x))

    def backward(self, grad: Tensor, training: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the map, the scale and the shift."""
        x, weight, _, mean, spread = self
        dx, dweight, dbias = torch.ops.aten.native_batch_norm_backward(
            grad.permute(0, 3, 1, 2),
            x.permute(0, 3, 1, 2),
            weight,
            mean,
            spread.pow(-2),
            mean,
            spread,
            training,
            0.0,
            [True, True, True],
        )
        return dx.permute(0, 2, 3, 1), dweight, dbias


class _NormSwish(torch.autograd.Function):
    """Batch norm and swish of a map; kept for the backward pass is only what was normalised."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, training: bool, eps: float
    ) -> Tensor:
        out = torch.empty_like(x)
        ctx.save_for_backward(*Normed.run(x, weight, bias, mean, var, training, eps, out))
        ctx.training = training
        return F.silu(out, inplace=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        normed = Normed(*ctx.saved_tensors)
        y = normed.again()
        torch.ops.aten.silu_backward.grad_input(grad, y, grad_input=y)
        return *normed.backward(y, ctx.training), None, None, None, None


class BatchNorm(Elastic, nn.modules.batchnorm._BatchNorm):
    """Batch norm over the channels that are there; no ``nn.BatchNorm2d``, for which other tools would put their own.

    In training each sub-network is normalised by the statistics of its own part of the batch, and the running
    statistics of a supernet are those of whatever ran last: before a sub-network is used, extract it and call
    `recalibrate`."""

    def __init__(self, axis: Axis, eps: float = 1e-5, fill: float = 1.0):
        nn.modules.batchnorm._BatchNorm.__init__(self, axis.size, eps=eps)
        self.dims = dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (axis,))
        self.dims["num_batches_tracked"] = ()
        self.fill = fill

    def forward(self, x: Tensor, view: View, swish: bool = False) -> Tensor:  # type: ignore[override]
        """Normalised maps; with ``swish`` also through x * sigmoid(x)."""
        weight, bias = self.selected(view, "weight", "bias")
        mean, var = self.statistics(view)
        out: Tensor
        if is_synced(self):
            out = synced_norm(x, weight, bias, mean, var, self.eps)
            out = F.silu(out) if swish else out
        elif swish and torch.is_grad_enabled() and self.by_hand(x):
            out = _NormSwish.apply(x, weight, bias, mean, var, self.training, self.eps)
        else:
            out = F.batch_norm(x.permute(0, 3, 1, 2), mean, var, weight, bias, self.training, 1.0, self.eps).permute(
                0, 2, 3, 1
            )
            out = F.silu(out, inplace=True) if swish else out
        if self.training:
            self.update(mean, var, view)
        return out

    def by_hand(self, x: Tensor) -> bool:
        """Whether operations may be put together with this norm: not with other processes' pictures, not in mixed
        precision."""
        return not is_synced(self) and not torch.is_autocast_enabled(x.device.type)

    def over(self, parts: Iterable[Tensor], view: View) -> Iterator[Tensor]:
        """In training, without gradients: each part of a batch normalised, in its own memory, by the statistics of all
        of them."""
        kept, each = [], []
        for part in parts:
            kept.append(part)
            each.append(torch.batch_norm_update_stats(part.permute(0, 3, 1, 2), None, None, 0.0))
        sizes = torch.tensor([float(part.numel() // part.shape[-1]) for part in kept]).to(kept[0])
        share, (means, variances) = sizes / sizes.sum(), (torch.stack(m) for m in zip(*each, strict=True))
        mean = share @ means
        var = share @ (variances + (means - mean).square())
        self.update(mean, unbiased(var, int(sizes.sum())), view)
        weight, bias = self.selected(view, "weight", "bias")
        scale = weight * torch.rsqrt(var + self.eps)
        for part in kept:
            yield torch.addcmul(bias - mean * scale, part, scale, out=part)

    def folded(
        self, conv: MapConv, view: View, statistics: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The kernel and the bias of a convolution (which has none) followed by this norm, with its own mean and
        variance or others."""
        mean, var = statistics or self.statistics(view)
        kernel, weight, bias = take(conv.wanted("weight", view), self.wanted("weight", view), self.wanted("bias", view))
        scale = weight * torch.rsqrt(var + self.eps)
        return kernel * scale.view(-1, 1, 1, 1), bias - mean * scale

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
    """Estimate the statistics of all batch norms of a network anew, on batches of training pictures; it is in eval mode
    afterwards.

    A supernet's statistics are a mixture of its sub-networks', so every extracted network with batch norms needs this.
    Means and (unbiased) variances are averaged over the batches with equal weight; everything else runs as in
    evaluation. A network without batch norm is left as it is."""
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
