"""Attention within windows that move by half a window in every second block (Swin), with a learned bias of relative positions.

Maps that do not divide into windows are padded below and to the right, as Swin does for detection; padded tokens are never attended to.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from superformer.elastic.attend import attend, unpack
from superformer.elastic.attention import Attention
from superformer.elastic.axis import Axis, View
from superformer.elastic.bias import lookup, remembered
from superformer.elastic.block import Block, Mlp
from superformer.elastic.count import Cost, Count
from superformer.elastic.layers import PerChoice, Table, Widths, width
from superformer.elastic.pass_ import Pass, Step
from superformer.elastic.windows import cut, halved, join, pad, padded

FAR = -100.0
"""Added to the logits of tokens that are neighbours in a moved window only: Swin's number, with which released weights were trained."""


@dataclass(frozen=True)
class Windows:
    """How a map is cut: windows of ``side`` x ``side`` tokens, moved by ``shift`` tokens down and to the right."""

    grid: tuple[int, int]
    side: int
    shift: int

    @staticmethod
    def of(grid: tuple[int, int], window: int, odd: bool) -> Windows:
        """A window as large as the map, or larger, is the map's shorter side, and does not move."""
        if min(grid) <= window:
            return Windows(grid, min(grid), 0)
        return Windows(grid, window, window // 2 if odd else 0)

    @property
    def whole(self) -> bool:
        return self.grid == (self.side, self.side)

    @property
    def even(self) -> bool:
        return self.grid[0] % self.side == self.grid[1] % self.side == 0

    def cut(self, x: Tensor) -> Tensor:
        """Tokens (batch, tokens, channels) as a map that is padded and moved."""
        x = pad(x.view(x.shape[0], *self.grid, -1), self.side)
        return x.roll((-self.shift, -self.shift), (1, 2)) if self.shift else x

    def join(self, windows: Tensor) -> Tensor:
        """The tokens of windows (batch * windows, heads, tokens, width)."""
        rows, cols = (padded(n, self.side) for n in self.grid)
        x = join(windows, self.side, rows, cols)
        if self.shift:
            x = x.roll((self.shift, self.shift), (1, 2))
        return x[:, : self.grid[0], : self.grid[1]].flatten(1, 2)


def far(windows: Windows, like: torch.dtype, device: torch.device) -> Tensor | None:
    """What is added to the logits of each window, (windows, tokens, keys): tokens from opposite edges of the map, and padded keys."""
    if not windows.shift and windows.even:
        return None
    return _far(windows, like, device)


@remembered
def _far(windows: Windows, like: torch.dtype, device: torch.device) -> Tensor:
    edges, real = [], []
    for length in windows.grid:
        size = padded(length, windows.side)
        at = torch.arange(size, device=device)
        edges.append((at >= size - windows.shift).long())
        real.append((at + windows.shift) % size < length)
    label = _by_window(2 * edges[0][:, None] + edges[1], windows.side)
    there = _by_window(real[0][:, None] & real[1], windows.side)
    out = torch.zeros(1, dtype=like, device=device).masked_fill(label[:, :, None] != label[:, None], FAR)
    return out.masked_fill(~there[:, None], -torch.inf)


def _by_window(grid: Tensor, side: int) -> Tensor:
    rows, cols = grid.shape
    return grid.view(rows // side, side, cols // side, side).transpose(1, 2).reshape(-1, side * side)


class WindowAttention(Attention):
    """Window-based multi-head self-attention, the WSA of S3 (section 2.2): window, heads and Q-K-V dimension are searched.

    Each window size has a table of relative positions of its own. Head counts share its columns by the sharing rule, the same heads whose
    q, k and v they share, if the Q-K-V dimension is a multiple of the head count. In a map smaller than the window the middle of the table
    is used.
    """

    def __init__(self, embed: Axis, inner: Axis, heads: Axis, windows: tuple[int, ...], stage: int):
        super().__init__(embed, inner, heads.widths)
        self.columns, self.stage = heads, stage
        self.relative_bias = PerChoice("window", {w: Table(2 * w - 1, 2 * w - 1, heads) for w in windows})

    def windows(self, step: Step, at: Pass) -> Windows:
        """Every second block of the stage, counting those that run, has its windows moved."""
        position = next(k for k, other in enumerate(at.stages[self.stage]) if other is step)
        return Windows.of(halved(at.grid, self.stage), step.values.int("window"), position % 2 == 1)

    def alike(self, view: View, step: Step, at: Pass) -> Hashable:
        return super().alike(view, step, at), view[self.columns].segments, step.values.int("window"), self.windows(step, at)

    def look(self, x: Tensor, view: View, step: Step, at: Pass) -> list[Tensor]:
        windows = self.windows(step, at)
        assert self.qkv is not None
        return [self.qkv(x if windows.whole else windows.cut(x), view)]

    def attend(self, looks: list[Tensor], view: View, step: Step, at: Pass) -> Tensor:
        heads, windows = step.values.int("heads"), self.windows(step, at)
        if windows.whole:
            q, k, v = unpack(looks[0].view(*looks[0].shape[:2], 3, heads, -1))
        else:
            q, k, v = cut(looks[0], windows.side, 3, heads)
        table = self.relative_bias[self.relative_bias.key(step.values)]
        bias = lookup(table(view), (windows.side, windows.side)).to(q.dtype)
        mask = far(windows, q.dtype, q.device)
        if mask is not None:
            bias = bias + mask[:, None]
        y = attend(q, k, v, self._factor(view[self.embed].width, view[self.inner].width, heads), bias)
        return self._project(y.transpose(1, 2).flatten(2) if windows.whole else windows.join(y), view)

    def cost(self, widths: Widths, heads: Count, tokens: Count, grid: tuple[Count, Count], window: Count = 1) -> Cost:
        """``window``: the size that was chosen."""
        side = np.minimum(window, np.minimum(*grid))
        seen = padded(grid[0], side) * padded(grid[1], side)
        assert self.qkv is not None
        cost = self.qkv.cost(widths, seen) + self.proj.cost(widths, tokens)
        return cost + Cost(2 * seen * side * side * width(self.inner, widths), (2 * window - 1) ** 2 * heads)


class WindowBlock(Block):
    """x + WSA(LN(x)), then x + FFN(LN(x)) (S3, section 2.2)."""

    attn: WindowAttention

    def __init__(self, embed: Axis, attn: WindowAttention, mlp: Mlp, eps: float):
        super().__init__(embed, attn, mlp, eps)

    def bind(self, values: Mapping[str, Count]) -> dict[Axis, Count]:
        return {**super().bind(values), self.attn.columns: values["heads"]}

    def cost(self, widths: Widths, values: Mapping[str, Count], tokens: Count, grid: tuple[Count, Count]) -> Cost:
        cost = self.norm1.cost(widths) + self.norm2.cost(widths) + self.mlp.cost(widths, tokens)
        return cost + self.attn.cost(widths, values["heads"], tokens, grid, values["window"])
