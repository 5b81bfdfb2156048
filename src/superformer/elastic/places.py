"""Where the queries and the keys of a block's attention lie on the map.

The coordinates of the tokens go the way that the block sends the tokens themselves (padded, moved, cut into windows,
summarised), by the same functions: every block that attends has a method ``places``. Lengths are in tokens of the
block's stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


class TokenLayout(Protocol):
    """What a network knows of the tokens of a stage."""

    def stage_grid(self, stage: int, grid: Any) -> Any:
        """Rows and columns of its map, from those of the first one."""

    def prefix_tokens(self, stage: int) -> int:
        """Tokens before those of the map, such as the class token."""


def coordinates(grid: tuple[int, int]) -> Tensor:
    """Row, column and a 1 (for a place of the picture) of each token of a map: (1, rows, columns, 3)."""
    rows, cols = (torch.arange(n, dtype=torch.float64) for n in grid)
    return torch.stack([rows[:, None].expand(grid), cols.expand(grid), torch.ones(grid, dtype=torch.float64)], -1)[None]


@dataclass(frozen=True)
class Places:
    """Row and column of each query (windows, queries, 2) and of each key (windows, keys, 2), of which it is the middle.

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
    def of(
        grid: tuple[int, int], queries: Tensor, keys: Tensor, allowed: Tensor | None = None, side: int = 1
    ) -> Places:
        """From `coordinates`, whose third number is 0 for what is no place of the picture."""
        real = queries[..., 2] > 0
        pairs = real[:, :, None] & (keys[..., 2] > 0)[:, None]
        return Places(grid, queries[..., :2], keys[..., :2], real, pairs if allowed is None else pairs & allowed, side)

    @property
    def distances(self) -> Tensor:
        """Of each query to each key of its window, (windows, queries, keys)."""
        return torch.cdist(self.queries, self.keys)
