"""Relative position bias: a number for each head and each distance of two positions of a map (Swin; NASViT, appendix
B.1)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Grid = tuple[int, int]


def remembered(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Tensors made once for the same arguments, but not in a trace (export, compilation), whose tensors must not be
    kept."""
    kept = functools.lru_cache(maxsize=64)(make)

    @functools.wraps(make)
    def wrapper(*args: Any) -> Tensor:
        if torch.compiler.is_compiling():
            return make(*args)
        with torch.inference_mode(False):
            return kept(*args)

    return wrapper


@remembered
def _pairs(grid: Grid, device: torch.device) -> Tensor:
    """Where each pair (query, key) of positions finds its distance, query minus key, in a table of all distances."""
    rows, cols = (torch.arange(n, device=device)[:, None] - torch.arange(n, device=device) + n - 1 for n in grid)
    return (rows[:, None, :, None] * (2 * grid[1] - 1) + cols[:, None]).flatten()


def lookup(table: Tensor, grid: Grid, native: Grid | None = None) -> Tensor:
    """The bias (heads, positions, keys) of a map or window from a table (distances of rows, of columns, heads), or from
    its middle.

    If the map has another size than the table was learned for (``native``), the table is stretched. Reading the table
    head by head makes the gradient four times as fast as reading all heads of each pair."""
    if native is not None and native != grid:
        size = [2 * n - 1 for n in grid]
        table = F.interpolate(table.permute(2, 0, 1)[None], size=size, mode="bicubic", align_corners=False)[0].permute(
            1, 2, 0
        )
    for dim, n in enumerate(grid):
        if spare := table.shape[dim] - (2 * n - 1):
            table = table.narrow(dim, spare // 2, 2 * n - 1)
    by_head = table.flatten(0, 1).t().contiguous()
    tokens = grid[0] * grid[1]
    return by_head.index_select(1, _pairs(grid, table.device)).view(-1, tokens, tokens)


# Position tables for pictures of another size.


def resized(table: Tensor, old: tuple[int, int], new: tuple[int, int], prefix: int) -> Tensor:
    """A table of (prefix + rows * columns, channels) for another grid, bicubic as in DeiT and ViT-ResNAS; the first
    entries (class token) stay."""
    if old == new:
        return table
    first, patches = table[:prefix], table[prefix:]
    picture = patches.t().reshape(1, -1, *old)
    stretched = F.interpolate(picture, size=new, mode="bicubic", align_corners=False)[0].flatten(1).t()
    return torch.cat([first, stretched]) if prefix else stretched
