"""Relative position bias: a number for each head and each distance of two positions of a map (Swin; NASViT, appendix B.1).

The lookup's gradient is a sum over all pairs of equal distance. Autograd's own (an indexed sum over every pair) is slow; here the pairs of
equal distance are brought into one column by a skewed view, once for the columns of the map and once for its rows, and summed.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Grid = tuple[int, int]


@functools.lru_cache(maxsize=64)
def _pairs(grid: Grid) -> Tensor:
    """Where the distance of each pair (query, key) lies in a table of all distances: query minus key."""
    rows, cols = grid
    a = torch.arange(rows)[:, None] - torch.arange(rows) + rows - 1
    b = torch.arange(cols)[:, None] - torch.arange(cols) + cols - 1
    return (a[:, None, :, None] * (2 * cols - 1) + b[None, :, None, :]).flatten()


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, grid: Grid) -> Tensor:
        ctx.grid = grid
        tokens = grid[0] * grid[1]
        flat = table.flatten(0, 1).t().contiguous()
        return flat.index_select(1, _pairs(grid).to(table.device)).view(-1, tokens, tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        heads, (rows, cols) = len(grad), ctx.grid
        wide = grad.new_zeros(heads, rows, cols, rows, 2 * cols - 1)
        h, i, j, k, _ = wide.stride()
        wide.as_strided((heads, rows, cols, rows, cols), (h, i, j - 1, k, 1), cols - 1).copy_(grad.view(heads, rows, cols, rows, cols))
        by_col = wide.sum(2)  # heads, query row, key row, key column - query column
        tall = grad.new_zeros(heads, rows, 2 * rows - 1, 2 * cols - 1)
        h, i, k, _ = tall.stride()
        tall.as_strided((heads, rows, rows, 2 * cols - 1), (h, i - k, k, 1), (rows - 1) * k).copy_(by_col)
        return tall.sum(1).flip(1, 2).permute(1, 2, 0), None


def lookup(table: Tensor, grid: Grid, native: Grid | None = None) -> Tensor:
    """The bias (heads, positions, positions) from a table (distances of rows, of columns, heads).

    A table of more distances than the map has gives its middle. If the map has another size than the table was learned for (``native``),
    the table is stretched.
    """
    if native is not None and native != grid:
        size = [2 * n - 1 for n in grid]
        table = F.interpolate(table.permute(2, 0, 1)[None], size=size, mode="bicubic", align_corners=False)[0].permute(1, 2, 0)
    for dim, n in enumerate(grid):
        spare = table.shape[dim] - (2 * n - 1)
        table = table.narrow(dim, spare // 2, 2 * n - 1) if spare else table
    out: Tensor = _Lookup.apply(table, grid) if table.requires_grad and torch.is_grad_enabled() else _plain(table, grid)
    return out


def _plain(table: Tensor, grid: Grid) -> Tensor:
    tokens = grid[0] * grid[1]
    return table.flatten(0, 1).t()[:, _pairs(grid).to(table.device)].reshape(-1, tokens, tokens)
