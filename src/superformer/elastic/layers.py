"""Elastic versions of the ordinary layers: each runs at any width of its axes, and knows its own cost.

An elastic layer is the torch layer at its largest size plus the *axes* its tensors lie on. From that one declaration
come the slice a pass uses, the slice an extracted network gets, and the number of parameters."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superformer.elastic.axis import Axis, Dim, Packed, Pass, View, Visit, size
from superformer.errors import SuperformerError
from superformer.kernels.slices import Index, Wanted, layer_norm, linear, take
from superformer.space.costs import Cost, Count

if TYPE_CHECKING:
    from superformer.elastic.positions import Places
    from superformer.families.network import Network

Widths = Mapping[Axis, Count]
"""The width of each searched axis, as a number or as an array over a population."""


def width(dim: Dim, widths: Widths) -> Count:
    """The width of a dimension."""
    if isinstance(dim, int):
        return dim
    if isinstance(dim, Packed):
        return dim.parts * width(dim.axis, widths)
    return 1 if dim.kind == "private" and dim in widths else widths.get(dim, dim.size)


class Layer(nn.Module):
    """Something that a pass runs on tokens: ``layer(x, view)``."""

    def __call__(self, x: Tensor, view: View, *more: Any, **words: Any) -> Tensor:
        return view.run(self, x, *more, **words)


class Elastic(nn.Module, abc.ABC):
    """What owns tensors; ``dims`` says on which axes each of them lies."""

    dims: dict[str, tuple[Dim, ...]]

    def index(self, name: str, view: View) -> Index:
        return tuple(view.segments(dim) for dim in self.dims[name])

    def wanted(self, name: str, view: View) -> Wanted:
        """One of its tensors and the part of it that a pass uses."""
        tensor = getattr(self, name)
        assert isinstance(tensor, Tensor)
        return tensor, self.index(name, view)

    def params(self, widths: Widths) -> Count:
        own = [dims for name, dims in self.dims.items() if name in self._parameters]
        return sum(math.prod(width(d, widths) for d in dims) for dims in own)

    @abc.abstractmethod
    def reset(self, generator: torch.Generator) -> None:
        """Fill with initial values."""


class Linear(Layer, Elastic, nn.Linear):
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


class Conv2d(Layer, Elastic, nn.Conv2d):
    """A convolution between two axes, as one matrix product over the pixels under the kernel.

    The few convolutions of these families have large kernels or small maps, where that is as fast as a direct
    convolution, and the weight's slice and its gradient are then those of a matrix."""

    def __init__(self, inp: Axis, out: Axis, side: int, stride: int, padding: int = 0, bias: bool = True):
        nn.Conv2d.__init__(self, inp.size, out.size, side, stride, padding, bias=bias)
        self.dims = {"weight": (out, inp, side, side)}
        if bias:
            self.dims["bias"] = (out,)
        self.side, self.hop, self.pad = side, stride, padding

    def forward(self, x: Tensor, view: View) -> Tensor:  # type: ignore[override]
        """(batch, channels, height, width) to (batch, positions, channels): tokens, row by row."""
        bias_index = self.index("bias", view) if self.bias is not None else ()
        out, inp, _, _ = self.index("weight", view)
        columns = None if inp is None else tuple((a * self.side**2, b * self.side**2) for a, b in inp)
        return linear(self.under_kernel(x), self.weight, self.bias, (out, columns), bias_index)

    def under_kernel(self, x: Tensor) -> Tensor:
        """The pixels under the kernel at each position, channel by channel: (batch, positions, channels * side**2)."""
        k, s = self.side, self.hop
        if s == k and not self.pad:
            batch, channels, height, width = x.shape
            # (batch, channels, rows, k, columns, k) to (batch, rows, columns, channels, k, k)
            x = x.reshape(batch, channels, height // k, k, width // k, k).permute(0, 2, 4, 1, 3, 5)
            return x.reshape(batch, (height // k) * (width // k), channels * k * k)
        x = F.pad(x.permute(0, 2, 3, 1), (0, 0, *(self.pad,) * 4))  # (batch, height, width, channels)
        rows, cols = ((x.shape[d] - k) // s + 1 for d in (1, 2))
        ends = [(i + (rows - 1) * s + 1, j + (cols - 1) * s + 1) for i in range(k) for j in range(k)]
        # k * k times (batch, rows, columns, channels)
        under = [x[:, n // k : i : s, n % k : j : s] for n, (i, j) in enumerate(ends)]
        return torch.stack(under, -1).flatten(3).flatten(1, 2)

    def cost(self, widths: Widths, positions: Count) -> Cost:
        """``positions``: the number of output positions."""
        return Cost(positions * math.prod(width(d, widths) for d in self.dims["weight"]), self.params(widths))

    def reset(self, generator: torch.Generator) -> None:
        reset_conv(self, generator)


def reset_conv(conv: nn.Conv2d, generator: torch.Generator) -> None:
    """torch's initial values of a convolution, from a generator."""
    bound = 1 / math.sqrt(conv.weight[0].numel())
    nn.init.kaiming_uniform_(conv.weight, a=math.sqrt(5), generator=generator)
    if conv.bias is not None:
        nn.init.uniform_(conv.bias, -bound, bound, generator=generator)


class LayerNorm(Layer, Elastic, nn.LayerNorm):
    """Layer norm over the channels that are there."""

    def __init__(self, axis: Axis, eps: float = 1e-6):
        nn.LayerNorm.__init__(self, axis.size, eps=eps)
        self.dims = {"weight": (axis,), "bias": (axis,)}
        self.axis = axis

    def forward(self, x: Tensor, view: View) -> Tensor:  # type: ignore[override]
        return layer_norm(x, self.weight, self.bias, self.index("weight", view), self.eps)

    def cost(self, widths: Widths) -> Cost:
        return Cost(0, self.params(widths))

    def reset(self, generator: torch.Generator) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)


class Table(Elastic):
    """A learned tensor that is no layer's weight: a class token, a position table, the scales of a branch. ``prefix``:
    of a table of positions, how many entries come before those of a square map."""

    def __init__(self, *dims: Dim, fill: float | None = None, prefix: int | None = None):
        super().__init__()
        self.weight = nn.Parameter(torch.empty([size(d) for d in dims]))
        self.dims, self.fill, self.prefix = {"weight": dims}, fill, prefix

    def forward(self, view: View) -> Tensor:
        return take(self.wanted("weight", view))[0]

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
    """Modules private to the values of a choice: a stem for each patch size. A stand-alone network has one of them, or,
    where it is ``bare``, that module in its place."""

    def __init__(self, choice: str, modules: Mapping[Any, nn.Module], bare: bool = False):
        super().__init__({str(k): m for k, m in modules.items()})
        self.choice, self.bare = choice, bare

    def key(self, values: Mapping[str, object]) -> str:
        return str(values[self.choice])


class Branch(NamedTuple):
    """A residual branch of a block with its skip, from tokens to tokens. Sub-networks of which ``alike`` says the same
    compute the same there."""

    run: Callable[[Tensor, Visit, Pass], Tensor]
    alike: Callable[[Visit, Pass], Hashable] | None = None


class Cell(nn.Module, abc.ABC):
    """One block of a stage, of any family: ``block(x, visit, at)``."""

    drop_path: float = 0.0

    def bind(self, values: Mapping[str, Count]) -> dict[Axis, Count]:
        """The widths of this block's own axes."""
        return {}

    @abc.abstractmethod
    def forward(self, x: Tensor, visit: Visit, at: Pass) -> Tensor:
        """Tokens to tokens."""

    def branches(self) -> Sequence[Branch]:
        """The same as residual branches, one after another."""
        return (Branch(self.forward),)

    @abc.abstractmethod
    def cost(self, widths: Widths, values: Mapping[str, Count], tokens: Count, grid: tuple[Count, Count]) -> Cost:
        """MACs and parameters on so many tokens, the patches among them in rows and columns."""

    def dropped(self, y: Tensor) -> Tensor:
        """A branch of this block with stochastic depth: for some pictures nothing, for the others more."""
        if not self.drop_path or not self.training:
            return y
        kept = 1 - self.drop_path
        return y * y.new_empty(y.shape[0], *(1,) * (y.ndim - 1)).bernoulli_(kept).div_(kept or 1)

    def places(self, net: Network, stage: int, visit: Visit, at: Pass) -> Places:
        """Where the queries and the keys of its attention lie on the map."""
        what = f"where the tokens of {type(self).__name__} lie is not known"
        raise SuperformerError(f"{what}: a block that attends has a method places")
