"""Elastic versions of the ordinary layers: each runs at any width of its axes, and knows its own cost.

An elastic layer is the torch layer at its largest size plus the *axes* its tensors lie on. From that one declaration
come the slice a pass uses, the slice an extracted network gets, and the number of parameters."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superformer.elastic.axis import Axis, Dim, Packed, View, size
from superformer.kernels.slices import Index, layer_norm, linear, take
from superformer.space.costs import Cost, Count

Widths = Mapping[Axis, Count]
"""The width of each searched axis, as a number or as an array over a population."""


def width(dim: Dim, widths: Widths) -> Count:
    """The width of a dimension."""
    if isinstance(dim, int):
        return dim
    if isinstance(dim, Packed):
        return dim.parts * width(dim.axis, widths)
    return 1 if dim.kind == "private" and dim in widths else widths.get(dim, dim.size)


class Elastic(nn.Module, abc.ABC):
    """A layer that owns tensors; ``dims`` says on which axes each of them lies."""

    dims: dict[str, tuple[Dim, ...]]

    def index(self, name: str, view: View) -> Index:
        return tuple(view.segments(dim) for dim in self.dims[name])

    def wanted(self, name: str, view: View) -> tuple[Tensor, Index]:
        """One of its tensors and the part of it that a pass uses, for `take`."""
        tensor = getattr(self, name)
        assert isinstance(tensor, Tensor)
        return tensor, self.index(name, view)

    def selected(self, view: View, *names: str) -> list[Tensor]:
        """What a pass uses of its tensors, differentiable."""
        return take(*(self.wanted(name, view) for name in names))

    def params(self, widths: Widths) -> Count:
        return sum(
            math.prod(width(d, widths) for d in dims) for name, dims in self.dims.items() if name in self._parameters
        )

    @abc.abstractmethod
    def reset(self, generator: torch.Generator) -> None:
        """Fill with initial values."""


class Linear(Elastic, nn.Linear):
    """A matrix between two axes; ``parts`` of them side by side make one packed matrix (q, k and v)."""

    def __init__(self, inp: Axis, out: Axis, bias: bool = True, parts: int = 1, tag: str = ""):
        nn.Linear.__init__(self, inp.size, parts * out.size, bias)
        rows: Dim = out if parts == 1 else Packed(out, parts, f"{tag}.weight")
        self.dims = {"weight": (rows, inp)}
        if bias:
            self.dims["bias"] = (out if parts == 1 else Packed(out, parts, f"{tag}.bias"),)

    def forward(self, x: Tensor, view: View) -> Tensor:  # type: ignore[override]
        bias_index = self.index("bias", view) if self.bias is not None else ()
        return linear(x, self.weight, self.bias, self.index("weight", view), bias_index)

    def cost(self, widths: Widths, tokens: Count) -> Cost:
        rows, cols = (width(d, widths) for d in self.dims["weight"])
        return Cost(tokens * rows * cols, self.params(widths))

    def reset(self, generator: torch.Generator) -> None:
        nn.init.trunc_normal_(self.weight, std=0.02, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Conv2d(Elastic, nn.Conv2d):
    """A convolution between two axes, as one matrix product over the pixels under the kernel.

    The few convolutions of these families have large kernels or small maps, where that is as fast as a direct
    convolution, and the weight's slice and its gradient are then those of a matrix."""

    def __init__(self, inp: Axis, out: Axis, kernel: int, stride: int, padding: int = 0, bias: bool = True):
        nn.Conv2d.__init__(self, inp.size, out.size, kernel, stride, padding, bias=bias)
        self.dims = {"weight": (out, inp, kernel, kernel)}
        if bias:
            self.dims["bias"] = (out,)
        self.kernel, self.step, self.pad = kernel, stride, padding

    def forward(self, x: Tensor, view: View) -> Tensor:  # type: ignore[override]
        """(batch, channels, height, width) to (batch, positions, channels): tokens, row by row."""
        bias_index = self.index("bias", view) if self.bias is not None else ()
        out, inp, _, _ = self.index("weight", view)
        area = self.kernel**2
        columns = None if inp is None else tuple((a * area, b * area) for a, b in inp)
        return linear(self._patches(x), self.weight, self.bias, (out, columns), bias_index)

    def _patches(self, x: Tensor) -> Tensor:
        """The pixels under the kernel at each position, channel by channel."""
        k = self.kernel
        if self.step == k and not self.pad:
            batch, channels, height, width = x.shape
            x = x.reshape(batch, channels, height // k, k, width // k, k).permute(0, 2, 4, 1, 3, 5)
            return x.reshape(batch, (height // k) * (width // k), channels * k * k)
        x = F.pad(x.permute(0, 2, 3, 1), (0, 0, self.pad, self.pad, self.pad, self.pad))
        rows, cols = ((x.shape[d] - k) // self.step + 1 for d in (1, 2))
        ends = [(i + (rows - 1) * self.step + 1, j + (cols - 1) * self.step + 1) for i in range(k) for j in range(k)]
        under = [x[:, n // k : i : self.step, n % k : j : self.step] for n, (i, j) in enumerate(ends)]
        return torch.stack(under, -1).flatten(3).flatten(1, 2)

    def cost(self, widths: Widths, positions: Count) -> Cost:
        """``positions``: the number of output positions."""
        return Cost(positions * math.prod(width(d, widths) for d in self.dims["weight"]), self.params(widths))

    def reset(self, generator: torch.Generator) -> None:
        fan_in = self.weight[0].numel()
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5), generator=generator)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in), generator=generator)


class LayerNorm(Elastic, nn.LayerNorm):
    """Layer norm over the channels that are there.

    In a masked pass this is ViT-ResNAS's masked layer norm (section 2.3, figure 6 d): mean and variance over the kept
    channels only. The variance is that of the deviations, as in the ordinary layer norm, not the difference E[x^2] -
    E[x]^2 of the released code."""

    def __init__(self, axis: Axis, eps: float = 1e-6):
        nn.LayerNorm.__init__(self, axis.size, eps=eps)
        self.dims = {"weight": (axis,), "bias": (axis,)}
        self.axis = axis

    def forward(self, x: Tensor, view: View) -> Tensor:  # type: ignore[override]
        here = view[self.axis]
        if here.mask is None or here.count is None:
            return layer_norm(x, self.weight, self.bias, self.index("weight", view), self.eps)
        weight, bias = self.selected(view, "weight", "bias")
        off = (x - x.sum(-1, keepdim=True) / here.count) * here.mask
        spread = torch.rsqrt(off.square().sum(-1, keepdim=True) / here.count + self.eps)
        return torch.addcmul(bias * here.mask, off * spread, weight)

    def cost(self, widths: Widths) -> Cost:
        return Cost(0, self.params(widths))

    def reset(self, generator: torch.Generator) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)


class Table(Elastic):
    """A learned tensor that is no layer's weight: a class token, a position table, the scales of a branch."""

    def __init__(self, *dims: Dim, fill: float | None = None):
        super().__init__()
        self.weight = nn.Parameter(torch.empty([size(d) for d in dims]))
        self.dims = {"weight": dims}
        self.fill = fill

    def forward(self, view: View) -> Tensor:
        return self.selected(view, "weight")[0]

    def cost(self, widths: Widths) -> Cost:
        return Cost(0, self.params(widths))

    def reset(self, generator: torch.Generator) -> None:
        if self.fill is None:
            nn.init.trunc_normal_(self.weight, std=0.02, generator=generator)
        else:
            nn.init.constant_(self.weight, self.fill)


class Optional(nn.Module, abc.ABC):
    """A module some of whose parts not every sub-network has."""

    @abc.abstractmethod
    def unused(self, view: View) -> tuple[str, ...]:
        """The names of the parts that a sub-network does without."""


class PerChoice(nn.ModuleDict):
    """Modules private to the values of a choice: a stem for each patch size. A stand-alone network has one of them."""

    def __init__(self, choice: str, modules: Mapping[Any, nn.Module]):
        super().__init__({str(k): m for k, m in modules.items()})
        self.choice = choice

    def key(self, values: Mapping[str, object]) -> str:
        return str(values[self.choice])
