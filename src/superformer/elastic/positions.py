"""Positions: tables for pictures of another size, biases of relative positions; and windows of maps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from superformer.kernels import remembered
from superformer.space.costs import Count

Grid = tuple[int, int]


def resized(table: Tensor, old: Grid, new: Grid, prefix: int, antialias: bool = False) -> Tensor:
    """A table of (prefix + rows * columns, channels) for another grid, bicubic; the first entries (class token) stay.
    Plain as in DeiT and ViT-ResNAS, or with ``antialias`` as in timm: another cubic, also where the grid grows."""
    if old == new:
        return table
    first, patches = table[:prefix], table[prefix:]
    picture = patches.t().reshape(1, -1, *old)  # (1, channels, rows, columns)
    wide = picture if picture.dtype == torch.float64 else picture.float()  # no bicubic of half precision
    stretched = F.interpolate(wide, size=new, mode="bicubic", align_corners=False, antialias=antialias)
    stretched = stretched[0].flatten(1).t().to(table.dtype)
    return torch.cat([first, stretched]) if prefix else stretched


def at_size(x: Tensor, size: Grid) -> Tensor:
    """Pictures (batch, channels, height, width) at another size, as pictures are prepared: bicubic, antialiased."""
    if tuple(x.shape[-2:]) == size:
        return x
    return F.interpolate(x, size=size, mode="bicubic", align_corners=False, antialias=True)


# --- relative position bias: a number for each head and each distance (Swin; NASViT, appendix B.1) ---


@remembered
def _pairs(grid: Grid, device: torch.device) -> Tensor:
    """Where each pair (query, key) of positions finds its distance, query minus key, in a table of all distances."""
    rows, cols = (torch.arange(n, device=device)[:, None] - torch.arange(n, device=device) + n - 1 for n in grid)
    return (rows[:, None, :, None] * (2 * grid[1] - 1) + cols[:, None]).flatten()


def relative_bias(table: Tensor, grid: Grid, native: Grid | None = None) -> Tensor:
    """The bias (heads, positions, keys) of a map or window from a table (distances of rows, of columns, heads), or from
    its middle. In a direction that is longer than what the table was learned for (``native``), the table is stretched.
    Reading the table head by head makes the gradient four times as fast as reading all heads of each pair."""
    if native is not None and (grid[0] > native[0] or grid[1] > native[1]):
        size, picture = [2 * max(pair) - 1 for pair in zip(grid, native, strict=True)], table.permute(2, 0, 1)[None]
        # (1, heads, rows, columns)
        table = F.interpolate(picture, size=size, mode="bicubic", align_corners=False)[0].permute(1, 2, 0)
    for dim, n in enumerate(grid):
        if spare := table.shape[dim] - (2 * n - 1):
            table = table.narrow(dim, spare // 2, 2 * n - 1)
    by_head = table.flatten(0, 1).t().contiguous()  # (heads, distances)
    tokens = grid[0] * grid[1]
    return by_head.index_select(1, _pairs(grid, table.device)).view(-1, tokens, tokens)


def halved(grid: tuple[Count, Count], times: int = 1) -> tuple[Count, Count]:
    """Rows and columns of a map after so many halvings; odd ones are rounded up."""
    for _ in range(times):
        grid = (grid[0] + 1) // 2, (grid[1] + 1) // 2
    return grid


def padded(length: Count, side: int) -> Count:
    """The next multiple of a window's side."""
    return -(-length // side) * side


def pad_to_windows(x: Tensor, side: int) -> Tensor:
    """Zeros after the last row and the last column of a map, until windows of this side fit."""
    rows, cols = x.shape[1:3]
    below, right = padded(rows, side) - rows, padded(cols, side) - cols
    return F.pad(x, (0, 0, 0, right, 0, below)) if below or right else x


def in_windows(x: Tensor, rows: int, cols: int) -> Tensor:
    """A map in windows of so many rows and columns: (batch * windows, rows, columns, channels)."""
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height // rows, rows, width // cols, cols, channels).transpose(2, 3)
    return x.reshape(-1, rows, cols, channels)


def lengths(length: int, parts: int) -> list[tuple[slice, int]]:
    """A row of tokens in so many windows whose lengths differ by one at most: stretches of windows of one length."""
    parts = min(parts, length)
    short, longer = divmod(length, parts)
    cut = longer * (short + 1)
    both = ((slice(0, cut), short + 1), (slice(cut, length), short))
    return [(where, side) for where, side in both if where.start < where.stop]


def out_of_windows(x: Tensor, down: int, across: int) -> Tensor:
    """The opposite of `in_windows`: so many windows below each other and side by side."""
    _, rows, cols, channels = x.shape
    x = x.reshape(-1, down, across, rows, cols, channels).transpose(2, 3)
    return x.reshape(-1, down * rows, across * cols, channels)


def split_windows(packed: Tensor, side: int, parts: int, heads: int) -> tuple[Tensor, ...]:
    """A map (batch, rows, columns, channels) with ``parts`` (q, k, v) times ``heads`` side by side in its channels, as
    ``parts`` tensors of windows (batch * windows, heads, side * side, width)."""
    batch, rows, cols, channels = packed.shape
    shape = (batch, rows // side, side, cols // side, side, parts, heads, channels // (parts * heads))
    apart = packed.reshape(shape).permute(5, 0, 1, 3, 6, 2, 4, 7).contiguous()
    return apart.flatten(5, 6).flatten(1, 3).unbind(0)


def join_windows(windows: Tensor, side: int, rows: int, cols: int) -> Tensor:
    """Windows (batch * windows, heads, side * side, width) as a map (batch, rows, columns, heads * width); rows and
    columns that were padded are left out."""
    down, across = padded(rows, side) // side, padded(cols, side) // side
    x = windows.view(-1, down, across, windows.shape[1], side, side, windows.shape[3]).permute(0, 1, 4, 2, 5, 3, 6)
    return x.reshape(x.shape[0], down * side, across * side, -1)[:, :rows, :cols]


@dataclass(frozen=True)
class Places:
    """Where the queries and the keys of a block's attention lie on the map: row and column of each query (windows,
    queries, 2) and of each key (windows, keys, 2), of which it is the middle.

    ``real``: which queries are places of the picture, not the class token or padding. ``pairs`` (windows, queries,
    keys): which keys are and may be attended to. ``side``: tokens in a row that a key stands for. One window is the
    whole map."""

    grid: tuple[int, int]
    queries: Tensor
    keys: Tensor
    real: Tensor
    pairs: Tensor
    side: int = 1

    @staticmethod
    def coordinates(grid: tuple[int, int]) -> Tensor:
        """Row and column of each token of a map, and 1: (1, rows, columns, 3)."""
        rows, cols = (torch.arange(n, dtype=torch.float64) for n in grid)
        ones = torch.ones(grid, dtype=torch.float64)
        return torch.stack([rows[:, None].expand(grid), cols.expand(grid), ones], -1)[None]

    @staticmethod
    def of(grid: Grid, queries: Tensor, keys: Tensor, allowed: Tensor | None = None, side: int = 1) -> Places:
        """From coordinates with a third number: 1 for a place of the picture."""
        real = queries[..., 2] > 0
        pairs = real[:, :, None] & (keys[..., 2] > 0)[:, None]
        return Places(grid, queries[..., :2], keys[..., :2], real, pairs if allowed is None else pairs & allowed, side)

    @property
    def distances(self) -> Tensor:
        """Of each query to each key of its window, (windows, queries, keys)."""
        return torch.cdist(self.queries, self.keys)
