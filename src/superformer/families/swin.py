"""Swin transformers and the S3 space (Chen et al., "Searching the Search Space of Vision Transformer", section 2.2).

Patches of 4 x 4 pixels, then stages of transformer blocks with attention in windows that move by half a window in every
second block; between two stages a patch merging halves the grid. For each stage its width; for each block the window,
the number of heads, the Q-K-V dimension (``attn``: the width of q, of k and of v) and the hidden width of the MLP. "We
do not force the blocks in one stage to be identical."

A space lists windows that fit the stage's map at its resolution: a larger one would be the same network as the map's
own size. At other picture sizes windows stay as they are, but never exceed the map. Maps that do not divide into
windows are padded below and to the right, as Swin does for detection; padded tokens are never attended to."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superformer.elastic.axis import Axis, Packed, Pass, Units, View, Visit, fixed
from superformer.elastic.layers import Conv2d, Layer, LayerNorm, Linear, PerChoice, Table, width
from superformer.elastic.positions import (
    Places,
    at_size,
    halved,
    join_windows,
    pad_to_windows,
    padded,
    relative_bias,
    split_windows,
)
from superformer.elastic.transformer import Attention, Block, Mlp, in_heads, whole_heads
from superformer.families.network import Network, Numbers, Pyramid, Size, StageModule, Widths
from superformer.kernels import remembered
from superformer.kernels.attention import attention, split_heads
from superformer.space import Arch, Space, StageArch, Values
from superformer.space.costs import Cost, Count
from superformer.space.schema import Schema, undivided_heads, undivided_pictures

PATCH = 4
"""Pixels of a patch in a row."""
FAR = -100.0
"""Added to the logits of tokens that are neighbours in a moved window only: Swin's number, with which released weights
were trained."""
OPTIONS: dict[str, Any] = {"eps": 1e-5}  # of the layer norms
BLOCK_CHOICES = frozenset({"window", "heads", "attn", "mlp"})


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

    def cut(self, x: Tensor) -> Tensor:
        """Tokens (batch, tokens, channels) as a map (batch, rows, columns, channels) that is padded and moved."""
        x = pad_to_windows(x.view(x.shape[0], *self.grid, -1), self.side)
        return x.roll((-self.shift, -self.shift), (1, 2)) if self.shift else x

    def join(self, windows: Tensor) -> Tensor:
        """The tokens of windows (batch * windows, heads, side * side, width)."""
        rows, cols = (padded(n, self.side) for n in self.grid)
        x = join_windows(windows, self.side, rows, cols)
        if self.shift:
            x = x.roll((self.shift, self.shift), (1, 2))
        return x[:, : self.grid[0], : self.grid[1]].flatten(1, 2)

    def far(self, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """What is added to the logits of each window, (windows, tokens, keys): tokens from opposite edges of the map,
        and padded keys."""
        if not self.shift and self.grid[0] % self.side == self.grid[1] % self.side == 0:
            return None
        return _far(self, dtype, device)


@remembered
def _far(windows: Windows, dtype: torch.dtype, device: torch.device) -> Tensor:
    def by_window(grid: Tensor) -> Tensor:  # (rows, columns) to (windows, side * side)
        side, (rows, cols) = windows.side, grid.shape
        return grid.view(rows // side, side, cols // side, side).transpose(1, 2).reshape(-1, side * side)

    edges, real = [], []
    for length in windows.grid:
        size = padded(length, windows.side)
        at = torch.arange(size, device=device)
        edges.append((at >= size - windows.shift).long())
        real.append((at + windows.shift) % size < length)
    label, there = by_window(2 * edges[0][:, None] + edges[1]), by_window(real[0][:, None] & real[1])
    out = torch.zeros(1, dtype=dtype, device=device).masked_fill(label[:, :, None] != label[:, None], FAR)
    return out.masked_fill(~there[:, None], -torch.inf)


class WindowAttention(Attention):
    """Window-based multi-head self-attention, the WSA of S3 (section 2.2): window, heads and Q-K-V dimension are
    searched.

    Each window size has a table of relative positions of its own. Head counts share its columns by the sharing rule,
    the same heads whose q, k and v they share, if the Q-K-V dimension is a multiple of the head count. In a map smaller
    than the window the middle of the table is used."""

    def __init__(self, embed: Axis, inner: Axis, heads: Axis, windows: tuple[int, ...], stage: int):
        super().__init__(embed, inner, heads.widths)
        self.columns, self.stage = heads, stage
        self.relative_bias = PerChoice("window", {w: Table(2 * w - 1, 2 * w - 1, heads) for w in windows})

    def windows(self, visit: Visit, at: Pass) -> Windows:
        """Every second block of the stage, counting those that run, has its windows moved."""
        position = next(k for k, other in enumerate(at.stages[self.stage]) if other is visit)
        return Windows.of(halved(at.grid, self.stage), visit.values.int("window"), position % 2 == 1)

    def forward(self, x: Tensor, view: View, visit: Visit, at: Pass) -> Tensor:
        heads, windows = visit.values.int("heads"), self.windows(visit, at)
        assert self.qkv is not None
        if windows.whole:
            q, k, v = split_heads(in_heads(self.qkv(x, view), 3, heads))
        else:
            q, k, v = split_windows(self.qkv(windows.cut(x), view), windows.side, 3, heads)
        # q, k, v: (batch * windows, heads, side * side, width)
        table = self.relative_bias[self.relative_bias.key(visit.values)]
        bias = relative_bias(table(view), (windows.side, windows.side)).to(q.dtype)
        mask = windows.far(q.dtype, q.device)
        if mask is not None:
            bias = bias + mask[:, None]
        y = attention(q, k, v, self.factor(view[self.embed].width, view[self.inner].width, heads), bias)
        return self.proj(y.transpose(1, 2).flatten(2) if windows.whole else windows.join(y), view)

    def alike(self, visit: Visit, at: Pass) -> Hashable:
        columns = at.view[self.columns].segments
        return super().alike(visit, at), columns, visit.values.int("window"), self.windows(visit, at)

    def sortable(self, heads: Sequence[int]) -> tuple[Units, ...]:
        return (Units((self.inner, self.columns), whole_heads(self.inner, self.heads)),)

    def places(self, net: Network, stage: int, visit: Visit, at: Pass) -> Places:
        windows, where = self.windows(visit, at), Places.coordinates(grid := net.stage_grid(stage, at.grid))
        (own,) = split_windows(windows.cut(where.flatten(1, 2)), windows.side, 1, 1)
        far = windows.far(torch.float64, where.device)
        return Places.of(grid, own[:, 0], own[:, 0], None if far is None else far == 0)

    def cost(self, widths: Widths, heads: Count, tokens: Count, grid: Size, window: Count = 1) -> Cost:
        """``window``: the size that was chosen."""
        side = np.minimum(window, np.minimum(*grid))
        seen = padded(grid[0], side) * padded(grid[1], side)
        assert self.qkv is not None
        cost = self.qkv.cost(widths, seen) + self.proj.cost(widths, tokens)
        return cost + Cost(2 * seen * side * side * width(self.inner, widths), (2 * window - 1) ** 2 * heads)


class WindowBlock(Block):
    """x + WSA(LN(x)), then x + FFN(LN(x)) (S3, section 2.2)."""

    attn: WindowAttention

    def bind(self, values: Numbers) -> dict[Axis, Count]:
        return {**super().bind(values), self.attn.columns: values["heads"]}

    def cost(self, widths: Widths, values: Numbers, tokens: Count, grid: Size) -> Cost:
        cost = self.norm1.cost(widths) + self.norm2.cost(widths) + self.mlp.cost(widths, tokens)
        return cost + self.attn.cost(widths, values["heads"], tokens, grid, values["window"])


def rules(space: Space) -> Iterable[str]:
    yield from undivided_pictures(space.widths("resolution"), PATCH)
    smallest = space.widths("resolution")[0]
    for i, stage in enumerate(space.stages):
        side = halved((smallest // PATCH, smallest // PATCH), i)[0]
        for p in range(stage.positions):
            windows = space.widths("window", i, p)
            if windows[0] < 1:
                yield f"a window has one token or more in a row, not {windows[0]} (stage {i}, block {p})"
            if windows[-1] > side:
                where = f"the map of stage {i}, {side} x {side} tokens at {smallest} pixels"
                same = f"and so the same as a window of {side}: write {side} instead"
                yield f"a window of {windows[-1]} is larger than {where}, {same}"
    yield from undivided_heads(space)


class Stem(Layer):
    """Patches as tokens, and their norm."""

    def __init__(self, pixels: Axis, out: Axis, eps: float):
        super().__init__()
        self.proj = Conv2d(pixels, out, PATCH, PATCH)
        self.norm = LayerNorm(out, eps)

    def forward(self, x: Tensor, view: View) -> Tensor:
        return self.norm(self.proj(x, view), view)

    def cost(self, widths: Widths, tokens: Count) -> Cost:
        return self.proj.cost(widths, tokens) + self.norm.cost(widths)


class FourNorm(LayerNorm):
    """Layer norm over the channels of four neighbours."""

    def __init__(self, axis: Axis, eps: float):
        nn.LayerNorm.__init__(self, 4 * axis.size, eps=eps)
        self.axis = axis
        self.dims = dict.fromkeys(("weight", "bias"), (Packed(axis, 4),))


class FourLinear(Linear):
    """A matrix from the channels of four neighbours, without bias."""

    def __init__(self, inp: Axis, out: Axis):
        nn.Linear.__init__(self, 4 * inp.size, out.size, bias=False)
        self.dims = {"weight": (out, Packed(inp, 4))}


class PatchMerging(Layer):
    """Four neighbours become one token: their channels side by side, a layer norm, a matrix; odd maps are padded."""

    def __init__(self, inp: Axis, out: Axis, eps: float):
        super().__init__()
        self.norm = FourNorm(inp, eps)
        self.reduction = FourLinear(inp, out)

    def forward(self, x: Tensor, view: View, grid: tuple[int, int]) -> Tensor:
        x = x.view(x.shape[0], *grid, -1)
        if grid[0] % 2 or grid[1] % 2:
            x = F.pad(x, (0, 0, 0, grid[1] % 2, 0, grid[0] % 2))
        batch, rows, cols, channels = x.shape
        four = x.view(batch, rows // 2, 2, cols // 2, 2, channels).permute(0, 1, 3, 4, 2, 5)  # first column first
        return self.reduction(self.norm(four.reshape(batch, rows * cols // 4, 4 * channels), view), view)

    def cost(self, widths: Widths, tokens: Count) -> Cost:
        """``tokens``: after merging."""
        return self.norm.cost(widths) + self.reduction.cost(widths, tokens)


class Swin(Pyramid):
    """A Swin transformer (see the module)."""

    schema = Schema(
        "swin", choices=frozenset(), stage=frozenset({"width"}), block=BLOCK_CHOICES, options=OPTIONS, rules=rules
    )
    patch = PATCH

    def token_channels(self) -> Sequence[Axis]:
        return self.widths

    def build(self) -> None:
        self.eps = float(self.option("eps"))
        self.stem = Stem(fixed("pixels", self.in_chans), self.widths[0], self.eps)
        for i, stage in enumerate(self.space.stages):
            enter = PatchMerging(self.widths[i - 1], self.widths[i], self.eps) if i else None
            self.stages.append(StageModule([self._block(i, p) for p in range(stage.positions)], enter))
        self.norm = LayerNorm(self.widths[-1], self.eps)
        self.head = self.new_head(self.num_classes)

    def _block(self, stage: int, position: int) -> WindowBlock:
        space, width = self.space, self.widths[stage]
        inner = Axis("attn", space.widths("attn", stage, position), space.unit("attn", stage, position))
        heads = Axis("heads", space.widths("heads", stage, position))
        attn = WindowAttention(width, inner, heads, space.widths("window", stage, position), stage)
        return WindowBlock(width, attn, Mlp(width, Axis("mlp", space.widths("mlp", stage, position))), self.eps)

    @classmethod
    def rescaled(cls, arch: Arch, size: int) -> Arch:
        """Windows grow with the pictures, as S3's for 384 pixels did (7 became 12, 14 became 24)."""

        def scaled(block: Values) -> Values:
            return Values({**block, "window": max(1, round(int(block["window"]) * size / arch.resolution))})

        stages = tuple(StageArch(tuple(map(scaled, s.blocks)), s.choices, s.at) for s in arch.stages)
        return arch if size == arch.resolution else replace(arch, resolution=size, stages=stages)

    def embed(self, x: Tensor, at: Pass) -> Tensor:
        return self.stem(at_size(x, at.canvas), at.view)

    def enter(self, stage: int, x: Tensor, at: Pass) -> Tensor:
        merging: PatchMerging | None = self.stage(stage).enter
        return x if merging is None else merging(x, at.view, self.stage_grid(stage - 1, at.grid))

    def finish(self, x: Tensor, at: Pass) -> Tensor:
        return self.norm(x, at.view)

    def pool(self, x: Tensor) -> Tensor:
        return x.mean(1)

    def enter_cost(self, stage: int, widths: Widths, values: Numbers, size: Size) -> Cost:
        rows, cols = self.cost_grid(stage, values, size)
        entry: PatchMerging | Stem = self.stage(stage).enter or self.stem
        return entry.cost(widths, rows * cols)

    def exit_cost(self, widths: Widths, values: Numbers, size: Size) -> Cost:
        return self.norm.cost(widths) + self.head_cost(widths)
