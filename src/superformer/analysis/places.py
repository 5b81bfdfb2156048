"""Where the queries and the keys of a block's attention lie on the map.

The coordinates of the tokens go the way that the block sends the tokens themselves (padded, moved, cut into windows, summarised), by the
same functions. Lengths are in tokens of the block's stage.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from superformer.elastic import hybrid
from superformer.elastic.attention import Attention
from superformer.elastic.block import Block
from superformer.elastic.pass_ import Pass, Step
from superformer.elastic.shifted import WindowAttention, far
from superformer.elastic.spatial import GlobalAttention, LocalAttention
from superformer.elastic.windows import cut, pad, patches
from superformer.errors import SuperformerError
from superformer.families.base import Network
from superformer.families.twins import TwinsBlock

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Places:
    """Row and column of each query (windows, queries, 2) and of each key (windows, keys, 2), of which it is the middle.

    ``real``: which queries are places of the picture, not the class token or padding. ``pairs`` (windows, queries, keys): which keys are
    and may be attended to. ``side``: tokens in a row that a key stands for. One window is the whole map.
    """

    grid: tuple[int, int]
    queries: Tensor
    keys: Tensor
    real: Tensor
    pairs: Tensor
    side: int = 1

    @staticmethod
    def of(grid: tuple[int, int], queries: Tensor, keys: Tensor, allowed: Tensor | None = None, side: int = 1) -> Places:
        """From coordinates with a third number: 1 for a place of the picture."""
        real = queries[..., 2] > 0
        pairs = real[:, :, None] & (keys[..., 2] > 0)[:, None]
        return Places(grid, queries[..., :2], keys[..., :2], real, pairs if allowed is None else pairs & allowed, side)

    @property
    def distances(self) -> Tensor:
        """Of each query to each key of its window, (windows, queries, keys)."""
        return torch.cdist(self.queries, self.keys)


def places(net: Network, stage: int, step: Step, at: Pass) -> Places:
    """Those of a block that attends."""
    block, grid = step.block, net.stage_grid(stage, at.grid)
    rows, cols = (torch.arange(n, dtype=torch.float64) for n in grid)
    where = torch.stack([rows[:, None].expand(grid), cols.expand(grid), torch.ones(grid, dtype=torch.float64)], -1)[None]
    if isinstance(block, TwinsBlock):
        return _twins(block.operation(step.values).attn, grid, where)
    if isinstance(block, hybrid.TransformerCell):
        parts = round(at.arch.stages[stage].choices.int("windows") ** 0.5)
        own = hybrid._cut(where, parts).flatten(1, 2)
        return Places.of(grid, own, own)
    if isinstance(block, Block) and isinstance(block.attn, WindowAttention):
        windows = block.attn.windows(step, at)
        (cutted,) = cut(windows.cut(where.flatten(1, 2)), windows.side, 1, 1)
        forbidden = far(windows, torch.float64, CPU)
        return Places.of(grid, cutted[:, 0], cutted[:, 0], None if forbidden is None else forbidden == 0)
    if isinstance(block, Block) and type(block.attn) is Attention:
        tokens = torch.cat([where.new_zeros(1, net.prefix_tokens(stage), 3), where.flatten(1, 2)], 1)
        return Places.of(grid, tokens[:, :1] if block.attn.class_only else tokens, tokens)
    raise SuperformerError(f"where the tokens of {type(block).__name__} lie is not known: superformer/analysis/places.py has to be told")


def _twins(attn: LocalAttention | GlobalAttention, grid: tuple[int, int], where: Tensor) -> Places:
    if isinstance(attn, LocalAttention):
        (own,) = cut(pad(where, attn.side), attn.side, 1, 1)
        return Places.of(grid, own[:, 0], own[:, 0])
    keys = patches(where, attn.ratio).mean((-1, -2)).flatten(1, 2)
    return Places.of(grid, where.flatten(1, 2), keys, side=attn.ratio)
