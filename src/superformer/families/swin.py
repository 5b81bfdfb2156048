"""Swin transformers and the S3 space (Chen et al., "Searching the Search Space of Vision Transformer", section 2.2).

Patches of 4 x 4 pixels, then stages of transformer blocks with attention in windows; between two stages a patch merging halves the grid.
For each stage its width; for each block the window, the number of heads, the Q-K-V dimension (``attn``: the width of q, of k and of v) and
the hidden width of the MLP. "We do not force the blocks in one stage to be identical."

A space lists windows that fit the stage's map at its resolution: a larger one would be the same network as the map's own size. At other
picture sizes windows stay as they are, but never exceed the map.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from superformer.elastic.axis import Axis, Packed, fixed
from superformer.elastic.block import Mlp
from superformer.elastic.count import Cost, Count
from superformer.elastic.layers import Conv2d, LayerNorm, Linear, Widths
from superformer.elastic.pass_ import Pass
from superformer.elastic.shifted import WindowAttention, WindowBlock
from superformer.elastic.windows import halved
from superformer.families.base import StageModule
from superformer.families.pyramid import Pyramid
from superformer.families.rules import undivided_heads, undivided_pictures
from superformer.families.schema import Schema
from superformer.space import Space

PATCH = 4
"""Pixels of a patch in a row."""

OPTIONS: dict[str, Any] = {
    "eps": 1e-5,  # of the layer norms
}


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
                yield (
                    f"a window of {windows[-1]} is larger than the map of stage {i}, {side} x {side} tokens at {smallest} pixels, "
                    f"and so the same as a window of {side}: write {side} instead"
                )
    yield from undivided_heads(space)


class Stem(nn.Module):
    """Patches as tokens, and their norm."""

    def __init__(self, pixels: Axis, out: Axis, eps: float):
        super().__init__()
        self.proj = Conv2d(pixels, out, PATCH, PATCH)
        self.norm = LayerNorm(out, eps)

    def forward(self, x: Tensor, at: Pass) -> Tensor:
        out: Tensor = self.norm(self.proj(x, at.view), at.view)
        return out

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


class PatchMerging(nn.Module):
    """Four neighbours become one token: their channels side by side, a layer norm, a matrix. Odd maps are padded with zeros."""

    def __init__(self, inp: Axis, out: Axis, eps: float):
        super().__init__()
        self.norm = FourNorm(inp, eps)
        self.reduction = FourLinear(inp, out)

    def forward(self, x: Tensor, at: Pass, grid: tuple[int, int]) -> Tensor:
        x = x.view(x.shape[0], *grid, -1)
        if grid[0] % 2 or grid[1] % 2:
            x = F.pad(x, (0, 0, 0, grid[1] % 2, 0, grid[0] % 2))
        batch, rows, cols, channels = x.shape
        four = x.view(batch, rows // 2, 2, cols // 2, 2, channels).permute(0, 1, 3, 4, 2, 5)  # first column first
        out: Tensor = self.reduction(self.norm(four.reshape(batch, rows * cols // 4, 4 * channels), at.view), at.view)
        return out

    def cost(self, widths: Widths, tokens: Count) -> Cost:
        """``tokens``: after merging."""
        return self.norm.cost(widths) + self.reduction.cost(widths, tokens)


class Swin(Pyramid):
    """A Swin transformer (see the module)."""

    schema = Schema(
        "swin",
        choices=frozenset(),
        stage=frozenset({"width"}),
        block=frozenset({"window", "heads", "attn", "mlp"}),
        options=OPTIONS,
        rules=rules,
    )
    patch = PATCH

    def build(self) -> None:
        space, self.eps = self.space, float(self.option("eps"))
        self.stem = Stem(fixed("pixels", self.in_chans), self.widths[0], self.eps)
        for i, stage in enumerate(space.stages):
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

    # --- the pass ---

    def embed(self, x: Tensor, at: Pass) -> Tensor:
        out: Tensor = self.stem(x, at)
        return out

    def enter(self, stage: int, x: Tensor, at: Pass) -> Tensor:
        merging = self.stage(stage).enter
        if merging is None:
            return x
        out: Tensor = merging(x, at, self.stage_grid(stage - 1, at.grid))
        return out

    def finish(self, x: Tensor, at: Pass) -> Tensor:
        out: Tensor = self.norm(x, at.view)
        return out

    def pool(self, x: Tensor) -> Tensor:
        return x.mean(1)

    # --- cost ---

    def enter_cost(self, stage: int, widths: Mapping[Axis, Count], values: Mapping[str, Count], size: tuple[Count, Count]) -> Cost:
        rows, cols = self.cost_grid(stage, values, size)
        merging = self.stage(stage).enter
        return (merging if isinstance(merging, PatchMerging) else self.stem).cost(widths, rows * cols)

    def exit_cost(self, widths: Mapping[Axis, Count], values: Mapping[str, Count], size: tuple[Count, Count]) -> Cost:
        return self.norm.cost(widths) + self.head_cost(widths)
