"""Axes: the dimensions of weights that can run at several widths, and what one pass uses of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from superformer.space.arch import Arch, Values

if TYPE_CHECKING:
    from superformer.elastic.transformer import Cell

Segments = tuple[tuple[int, int], ...]
"""Runs ``(start, stop)`` of channels, in the order in which a sub-network has them."""


@dataclass(frozen=True, eq=False)
class Axis:
    """A dimension shared by the layers that read and write it: the tokens' width, a block's hidden width, its attention
    width.

    ``widths`` are all the widths it may run at, ascending. ``unit`` channels move together (the channels of one head).

    ``kind``: of a ``"shared"`` axis the sharing rule picks the channels; of a ``"centred"`` one a width uses the middle
    (kernels, tables of distances); of a ``"private"`` one every value of ``widths`` has one entry of its own, and a
    pass uses that one."""

    name: str
    widths: tuple[int, ...]
    unit: int = 1
    kind: str = "shared"

    @property
    def size(self) -> int:
        return len(self.widths) if self.kind == "private" else self.widths[-1]

    def __repr__(self) -> str:
        return f"Axis({self.name}: {', '.join(map(str, self.widths))})"


def fixed(name: str, size: int) -> Axis:
    """An axis that is not searched."""
    return Axis(name, (size,))


@dataclass(frozen=True)
class Packed:
    """A dimension that holds several parts of one axis after one another: q, k and v in one matrix.

    ``tag`` names the tensor for ``Sharing.joint``.
    """

    axis: Axis
    parts: int
    tag: str = ""


Dim = Axis | Packed | int
"""A dimension of a tensor: elastic, packed, or a plain size."""


def size(dim: Dim) -> int:
    """The largest size of a dimension."""
    if isinstance(dim, int):
        return dim
    return dim.parts * dim.axis.size if isinstance(dim, Packed) else dim.size


@dataclass(frozen=True)
class Units:
    """Axes whose channels move together, as so many equal units (heads; on one axis alone: its channels): what a module
    that has axes which begin and end within it offers to be sorted (`superformer.train.channel_sort`)."""

    axes: tuple[Axis, ...]
    count: int

    @staticmethod
    def channels(dim: Dim) -> Units:
        """Every channel by itself."""
        assert isinstance(dim, Axis)
        return Units((dim,), dim.size)

    @staticmethod
    def heads(axes: tuple[Axis, ...], heads: Sequence[int]) -> Units:
        """The most parts of an attention width, the first axis, that are whole heads, whatever the number of heads."""
        inner = axes[0]
        return Units(axes, inner.size // inner.unit if inner.unit > 1 else math.gcd(*heads))


@dataclass(frozen=True)
class Selection:
    """What one pass uses of an axis.

    *Sliced*: the channels in ``segments``; tensors have ``width`` channels. *Masked* (ViT-ResNAS, section 2.3 and
    figure 6): tensors keep the full width, ``mask`` of shape (batch, 1, channels) is one where an example's sub-network
    has a channel, and ``count`` is how many it has."""

    segments: Segments
    width: int
    mask: Tensor | None = None
    count: Tensor | None = None

    def keep(self, x: Tensor) -> Tensor:
        """Zero the channels that are not there (masked pass); nothing to do in a sliced pass."""
        return x if self.mask is None else x * self.mask

    def place(self, x: Tensor, size: int) -> Tensor:
        """Put the selected channels of ``x`` back where they lie in a tensor of full width; zero elsewhere."""
        out = x.new_zeros(*x.shape[:-1], size)
        at = 0
        for start, stop in self.segments:
            out[..., start:stop] = x[..., at : at + stop - start]
            at += stop - start
        return out


class View:
    """What one pass uses of every axis. An axis that is not named runs at its full width.

    ``joint`` and ``side``: see `superformer.sharing.Sharing`.
    """

    def __init__(
        self,
        selections: Mapping[Axis, Selection] | None = None,
        joint: frozenset[str] = frozenset(),
        side: str = "left",
    ):
        self.selections = dict(selections or {})
        self.joint = joint
        self.side = side

    def __getitem__(self, axis: Axis) -> Selection:
        found = self.selections.get(axis)
        return found if found is not None else Selection(((0, axis.size),), axis.size)

    def segments(self, dim: Dim) -> Segments | None:
        """The runs used of a dimension; None means all of it."""
        if isinstance(dim, int):
            return None
        axis = dim.axis if isinstance(dim, Packed) else dim
        found = self.selections.get(axis)
        if found is None or found.width == axis.size:
            return None
        if isinstance(dim, Axis):
            return found.segments
        if dim.tag in self.joint:
            total, used = dim.parts * axis.size, dim.parts * found.width
            return ((total - used, total),) if self.side == "right" else ((0, used),)
        return tuple((p * axis.size + a, p * axis.size + b) for p in range(dim.parts) for a, b in found.segments)

    def replace(self, other: Mapping[Axis, Selection]) -> View:
        return View({**self.selections, **other}, self.joint, self.side)


EMPTY = View()


def masked(axis: Axis, parts: list[Segments | None], part_size: int, like: Tensor) -> Selection:
    """The selection of a masked pass: one row of channels for each part of the batch; None leaves a part without any
    channel."""
    rows = torch.zeros(len(parts), axis.size, dtype=like.dtype, device=like.device)
    for row, segments in zip(rows, parts, strict=True):
        for start, stop in segments or ():
            row[start:stop] = 1
    mask = rows.repeat_interleave(part_size, 0).unsqueeze(1)
    return Selection(((0, axis.size),), axis.size, mask, mask.sum(-1, keepdim=True))


# One pass through a network: which blocks run, with which values, on which part of the batch.


@dataclass(frozen=True)
class Part:
    """One sub-network's part of a masked batch: its rows, its own (sliced) view, and its values in a block (None: it
    skips it)."""

    rows: slice
    view: View
    values: Values | None = None


@dataclass(frozen=True)
class Step:
    """One block of a pass. In a masked pass ``parts`` says what each part of the batch does, and ``gate`` is zero where
    it skips."""

    block: Cell
    values: Values
    parts: tuple[Part, ...] | None = None
    gate: Tensor | None = None


@dataclass(frozen=True)
class Pass:
    """A pass: one architecture (sliced), or several at once (masked; ``parts`` has an entry for each).

    ``grid`` is the number of rows and columns of tokens now, ``native`` what they are at the architecture's own
    resolution."""

    arch: Arch
    view: View
    stages: tuple[tuple[Step, ...], ...]
    parts: tuple[Part, ...] | None = None
    grid: tuple[int, int] = (0, 0)
    native: tuple[int, int] = (0, 0)
    steps: tuple[Step, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(s for stage in self.stages for s in stage))
