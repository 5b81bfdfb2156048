"""Convolutions of maps, (batch, rows, columns, channels).

Channels come last as in token families: a 1x1 convolution is then a matrix product, and torch's convolutions are fastest in that layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superformer.elastic.axis import Axis, View, fixed
from superformer.elastic.count import Cost, Count
from superformer.elastic.depthwise import depthwise
from superformer.elastic.layers import Elastic, Widths, width
from superformer.elastic.take import linear


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
