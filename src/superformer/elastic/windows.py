"""Maps, (batch, rows, columns, channels), cut into square windows and put together again; and into the patches under a kernel.

Cutting and separating q, k and v are one copy, and so are their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from superformer.elastic.count import Count


def halved(grid: tuple[Count, Count], times: int = 1) -> tuple[Count, Count]:
    """Rows and columns of a map after so many halvings; odd ones are rounded up."""
    for _ in range(times):
        grid = (grid[0] + 1) // 2, (grid[1] + 1) // 2
    return grid


def padded(length: Count, side: int) -> Count:
    """The next multiple of a window's side."""
    return -(-length // side) * side


def pad(x: Tensor, side: int) -> Tensor:
    """Zeros after the last row and the last column of a map, until windows of this side fit."""
    rows, cols = x.shape[1:3]
    below, right = padded(rows, side) - rows, padded(cols, side) - cols
    return F.pad(x, (0, 0, 0, right, 0, below)) if below or right else x


def _in_windows(packed: Tensor, side: int, parts: int, heads: int) -> Tensor:
    """A view (parts, batch, rows of windows, columns, heads, side, side, width) of a map."""
    batch, rows, cols, channels = packed.shape
    shape = (batch, rows // side, side, cols // side, side, parts, heads, channels // (parts * heads))
    return packed.view(shape).permute(5, 0, 1, 3, 6, 2, 4, 7)


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, side: int, parts: int, heads: int) -> tuple[Tensor, ...]:
        ctx.shape, ctx.form = packed.shape, (side, parts, heads)
        return _cut(packed, side, parts, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        packed = grads[0].new_empty(ctx.shape)
        for into, grad in zip(_in_windows(packed, *ctx.form), grads, strict=True):
            into.copy_(grad.view(into.shape))
        return packed, None, None, None


def _cut(packed: Tensor, side: int, parts: int, heads: int) -> tuple[Tensor, ...]:
    return _in_windows(packed, side, parts, heads).contiguous().flatten(5, 6).flatten(1, 3).unbind(0)


def cut(packed: Tensor, side: int, parts: int, heads: int) -> tuple[Tensor, ...]:
    """A map with ``parts`` (q, k, v) times ``heads`` side by side in its channels, as ``parts`` tensors of windows."""
    if torch.is_grad_enabled() and packed.requires_grad:
        out: tuple[Tensor, ...] = _Cut.apply(packed.contiguous(), side, parts, heads)
        return out
    return _cut(packed.contiguous(), side, parts, heads)


def join(windows: Tensor, side: int, rows: int, cols: int) -> Tensor:
    """The opposite of `cut`, for one part; rows and columns that were padded are left out."""
    down, across = padded(rows, side) // side, padded(cols, side) // side
    x = windows.view(-1, down, across, windows.shape[1], side, side, windows.shape[3]).permute(0, 1, 4, 2, 5, 3, 6)
    return x.reshape(x.shape[0], down * side, across * side, -1)[:, :rows, :cols]


LARGE = 8
"""The side of a patch from which on one copy of all its pixels at once is faster than one for each pixel of a patch."""


def _as_patches(x: Tensor, side: int) -> Tensor:
    """A view (batch, rows, columns, channels, side, side) of a map."""
    rows, cols = x.shape[1] // side, x.shape[2] // side
    x = x[:, : rows * side, : cols * side]
    return x.unflatten(1, (rows, side)).unflatten(3, (cols, side)).permute(0, 1, 3, 5, 2, 4)  # type: ignore[no-untyped-call, no-any-return]


def _patch_pairs(x: Tensor, out: Tensor, side: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Views of a map and of its patches (batch, rows, columns, channels, side, side) that hold the same numbers."""
    if side >= LARGE:
        yield _as_patches(x, side), out
        return
    x = x[:, : out.shape[1] * side, : out.shape[2] * side]
    for i, j in product(range(side), repeat=2):
        yield x[:, i::side, j::side], out[..., i, j]


class _Patches(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, side: int) -> Tensor:
        ctx.shape, ctx.side = x.shape, side
        batch, rows, cols, channels = x.shape
        out = x.new_empty(batch, rows // side, cols // side, channels, side, side)
        for here, there in _patch_pairs(x, out, side):
            there.copy_(here)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        whole = not (ctx.shape[1] % ctx.side or ctx.shape[2] % ctx.side)
        back = grad.new_empty(ctx.shape) if whole else grad.new_zeros(ctx.shape)
        for here, there in _patch_pairs(back, grad, ctx.side):
            here.copy_(there)
        return back, None


def patches(x: Tensor, side: int) -> Tensor:
    """(batch, rows, columns, channels, side, side): the map in patches; rows and columns that do not fill a patch are left out."""
    if torch.compiler.is_compiling():
        return _as_patches(x, side)
    out: Tensor = _Patches.apply(x, side)
    return out
