"""Convolutions and batch norms of maps, (batch, rows, columns, channels)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from superformer.elastic.axis import Axis, View, fixed
from superformer.elastic.layers import Elastic, Layer, Widths, reset_conv, width
from superformer.errors import SuperformerError
from superformer.kernels.convolution import Norm, batch_norm, conv, conv_norm, norm_swish
from superformer.kernels.slices import boxes, gather
from superformer.space.costs import Cost, Count


def kernel_axis(name: str, sizes: Iterable[int]) -> Axis:
    """Kernels of several sizes share the middle of the largest."""
    return Axis(name, tuple(sorted(sizes)), kind="centred")


class MapConv(Layer, Elastic, nn.Conv2d):
    """A convolution between two axes, padded by half its kernel; with ``depthwise`` (``inp`` is ``out``) by channel."""

    def __init__(
        self, inp: Axis, out: Axis, kernel: int | Axis, stride: int = 1, bias: bool = False, depthwise: bool = False
    ):
        sizes = kernel if isinstance(kernel, Axis) else fixed("kernel", kernel)
        nn.Conv2d.__init__(self, inp.size, out.size, sizes.size, stride, groups=out.size if depthwise else 1, bias=bias)
        self.dims = {"weight": (out, 1 if depthwise else inp, sizes, sizes)}
        if bias:
            self.dims["bias"] = (out,)
        self.hop, self.depthwise = stride, depthwise

    def forward(self, x: Tensor, view: View) -> Tensor:  # type: ignore[override]
        bias = None if self.bias is None else self.wanted("bias", view)
        return conv(x, self.wanted("weight", view), bias, self.hop, self.depthwise)

    def cost(self, widths: Widths, positions: Count) -> Cost:
        """``positions``: the number of output positions."""
        return Cost(positions * math.prod(width(d, widths) for d in self.dims["weight"]), self.params(widths))

    def reset(self, generator: torch.Generator) -> None:
        reset_conv(self, generator)


class BatchNorm(Layer, Elastic, nn.modules.batchnorm._BatchNorm):
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
        norm = self.norm(view)
        return self.moved((norm_swish if swish else batch_norm)(x, norm), norm, view)

    def after(self, layer: MapConv, x: Tensor, view: View, swish: bool = False) -> Tensor:
        """A convolution, then this norm; with ``swish`` also through x * sigmoid(x)."""
        norm = self.norm(view)
        return self.moved(conv_norm(x, layer.wanted("weight", view), norm, layer.hop, swish), norm, view)

    def norm(self, view: View) -> Norm:
        """This norm in one pass, with copies of its running statistics."""
        index = self.index("weight", view)
        assert self.running_mean is not None
        assert self.running_var is not None
        mean, var = (gather(t, index).clone() for t in (self.running_mean, self.running_var))
        joined = joined_by(self) or (None, 1)
        return Norm((self.weight, index), (self.bias, index), mean, var, self.training, self.eps, *joined)

    @torch.no_grad()
    def moved(self, y: Tensor, norm: Norm, view: View) -> Tensor:
        """What was normalised; in training the running statistics move towards those of its batch."""
        if self.training:
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            factor = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            for running, new in ((self.running_mean, norm.mean), (self.running_var, norm.var)):
                for there, here in boxes(running.shape, self.index("weight", view)).pairs:
                    running[there].lerp_(new[here], factor)
        return y

    def cost(self, widths: Widths) -> Cost:
        return Cost(0, self.params(widths))

    def reset(self, generator: torch.Generator) -> None:
        self.reset_running_stats()
        nn.init.constant_(self.weight, self.fill)
        nn.init.zeros_(self.bias)


def averaged(norms: Sequence[nn.modules.batchnorm._BatchNorm], batches: Iterable[Tensor]) -> Iterator[Tensor]:
    """Batches, of which norms are to average their statistics with equal weight. (Without a momentum torch does so,
    too, and waits for the device to tell how many there were.)"""
    for k, batch in enumerate(batches, 1):
        for norm in norms:
            norm.momentum = 1 / k
        yield batch


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
            norm.train()
        for batch in averaged(norms, itertools.chain([first], todo)):
            model(batch)
    finally:
        for norm, momentum in zip(norms, before, strict=True):
            norm.momentum = momentum
        model.eval()
    return model


# Batch norm over the pictures of all processes: two processes with half a batch each then compute what one does with
# the whole. torch's own synchronised batch norm does not run on CPUs. Here sums travel instead, forwards and backwards.
# (For each norm a message forwards and one backwards, off the CPU two: where a process has enough pictures by itself,
# statistics of its own are cheaper.)

JOINED = "joined"
"""The attribute of a norm that takes all processes' pictures."""


class Joined(NamedTuple):
    """What adds up a tensor over all processes, in place, and how many there are."""

    add_up: Callable[[Tensor], None]
    processes: int


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, joined: Joined) -> Tensor:
        ctx.joined = joined
        x = x.clone()
        joined.add_up(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous().clone()
        ctx.joined.add_up(grad)
        return grad, None


def joined_by(norm: nn.Module) -> tuple[Callable[[Tensor], Tensor], int] | None:
    """Sums over all processes, differentiable, and how many there are, of a norm that takes all processes' pictures."""
    joined: Joined | None = getattr(norm, JOINED, None)
    if joined is None or not norm.training:
        return None
    return (lambda x: cast(Tensor, _Sum.apply(x, joined))), joined.processes


class BatchNorm2d(nn.BatchNorm2d):
    """torch's batch norm of (batch, channels, rows, columns), which can take the pictures of all processes."""

    def forward(self, x: Tensor) -> Tensor:
        joined = joined_by(self)
        if joined is None:
            return super().forward(x)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        norm = Norm(
            (self.weight, (None,)), (self.bias, (None,)), self.running_mean.clone(), self.running_var.clone(),
            True, self.eps, *joined,
        )  # fmt: skip
        out = batch_norm(x.permute(0, 2, 3, 1), norm)
        self.num_batches_tracked.add_(1)
        factor = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(norm.mean, factor)
        self.running_var.lerp_(norm.var, factor)
        return out.permute(0, 3, 1, 2)
