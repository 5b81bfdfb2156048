"""Axes: the dimensions of weights that run at several widths; and a pass: what it uses of them, which blocks run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor, nn

from superformer.kernels.slices import Segments
from superformer.space.arch import Arch, Values

if TYPE_CHECKING:
    from superformer.elastic.layers import Cell


@dataclass(frozen=True, eq=False)
class Axis:
    """A dimension shared by the layers that read and write it: the tokens' width, a block's hidden or attention width.

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
    """Several parts of one axis after one another: q, k and v in one matrix. ``tag`` names it for ``Sharing.joint``."""

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
    """Axes whose channels can be put in another order together, as so many equal units (heads; on one axis alone its
    channels): what a module's ``sortable`` answers, for axes that begin and end within it."""

    axes: tuple[Axis, ...]
    count: int


@dataclass(frozen=True)
class Selection:
    """What one pass uses of an axis: the channels in ``segments``, ``width`` in all."""

    segments: Segments
    width: int


class View:
    """What one pass uses of every axis; one that is not named runs at its full width. ``joint``, ``side``: see
    `superformer.sharing.Sharing`."""

    def __init__(self, selections: Mapping[Axis, Selection], joint: frozenset[str] = frozenset(), side: str = "left"):
        self.selections, self.joint, self.side = dict(selections), joint, side

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

    def run(self, layer: nn.Module, x: Tensor, *more: Any, **words: Any) -> Tensor:
        """A layer, as it is written. (Several architectures at once run otherwise: `superformer.elastic.masked`.)"""
        out: Tensor = nn.Module.__call__(layer, x, self, *more, **words)
        return out

    def widened(self, x: Tensor, inp: Axis, out: Axis) -> Tensor:
        """Tokens of one axis on a wider one: zero channels after the last."""
        return F.pad(x, (0, self[out].width - x.shape[-1]))


EMPTY = View({})


@dataclass(frozen=True)
class Visit:
    """One block of a pass, with its values."""

    block: Cell
    values: Values


@dataclass(frozen=True)
class Pass:
    """A pass of one architecture. ``grid``: rows and columns of tokens now; ``native``: at its own resolution.
    ``canvas``: rows and columns of pixels at which pictures run."""

    arch: Arch
    view: View
    stages: tuple[tuple[Visit, ...], ...]
    grid: tuple[int, int] = (0, 0)
    native: tuple[int, int] = (0, 0)
    canvas: tuple[int, int] = (0, 0)
