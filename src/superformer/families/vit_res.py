"""ViT-Res and the ViT-ResNAS spaces (Liao, Karaman, Sze): a multi-stage transformer with residual spatial reduction.

A convolutional stem (section 2.4; ``stem=0``: none), then stages of transformer blocks; between two stages a residual
spatial reduction (section 2.2, figure 3) halves the grid and widens the tokens. For each stage its width; for each
block the number of heads (of a width fixed by the stage) and the hidden width. A second classifier on the patch tokens
serves token labelling (section 2.4); it is used in training only, and a network has it only if it was asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superformer.elastic.axis import Axis, Pass, View, fixed
from superformer.elastic.conv import BatchNorm2d
from superformer.elastic.layers import Conv2d, Layer, LayerNorm, Linear, Table
from superformer.elastic.positions import halved, resized
from superformer.elastic.transformer import Attention, Block, Mlp
from superformer.errors import SuperformerError
from superformer.families.network import Numbers, Pyramid, Size, StageModule, Widths
from superformer.kernels.convolution import channels_last, channels_last_back
from superformer.space import Space
from superformer.space.costs import NOTHING, Cost, Count
from superformer.space.schema import Schema, many_resolutions, undivided_heads, undivided_pictures

PATCH = 14
"""Pixels of a patch in a row: 2 (the stem's stride) times 7."""

BLOCK_CHOICES = frozenset({"heads", "attn", "mlp"})
OPTIONS: dict[str, Any] = {
    "stem": 24,  # channels of the stem's convolutions; 0: no stem, patches are embedded as in a ViT (an ablation)
    "eps": 1e-6,  # of the layer norms
    "residual": True,  # the skip of the spatial reduction (off: the ablation of table 1)
}


def rules(space: Space) -> Iterable[str]:
    yield from many_resolutions(space)
    yield from undivided_pictures(space.widths("resolution"), PATCH)
    for i in range(1, len(space.stages)):
        before, here = space.widths("width", i - 1), space.widths("width", i)
        if VitRes.schema.option(space.options, "residual") and here[0] < before[-1]:
            found = f"stage {i} may be {here[0]} wide after {before[-1]}"
            yield f"residual spatial reduction cannot narrow the tokens: {found}"
    yield from undivided_heads(space)


class ConvBnRelu(nn.Sequential):
    def __init__(self, inp: int, out: int, stride: int):
        super().__init__(nn.Conv2d(inp, out, 3, stride, 1, bias=False), BatchNorm2d(out), nn.ReLU(inplace=True))


class ConvStem(nn.Module):
    """Three 3x3 convolutions, the first of stride 2, with a skip from the first to the third. Not searched."""

    def __init__(self, inp: int, channels: int):
        super().__init__()
        self.conv1 = ConvBnRelu(inp, channels, 2)
        self.conv2 = ConvBnRelu(channels, channels, 1)
        self.conv3 = ConvBnRelu(channels, channels, 1)
        self.channels = (inp, channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(channels_last(x))
        return channels_last_back(self.conv3(self.conv2(x)) + x)

    def cost(self, positions: Count) -> Cost:
        inp, channels = self.channels
        weights = 9 * channels * (inp + 2 * channels)
        return Cost(positions * weights, weights + 6 * channels)


class SpatialReduction(Layer):
    """Residual spatial reduction (section 2.2, figure 3).

    Residual branch: one layer norm, then a 3x3 convolution of stride 2 with new positions for the patches and a matrix
    for the class token. Main branch: the patches average-pooled, the class token as it is, both widened with zero
    channels. The figure draws a layer norm for the patches and one for the class token; the released networks, and so
    this one, share it."""

    def __init__(self, inp: Axis, out: Axis, positions: int, eps: float, residual: bool):
        super().__init__()
        self.inp, self.out, self.residual = inp, out, residual
        self.norm = LayerNorm(inp, eps)
        self.reduce = Conv2d(inp, out, 3, 2, 1)
        self.token = Linear(inp, out)
        self.pos_embed = Table(positions, out, prefix=0)

    def forward(self, x: Tensor, view: View, grid: tuple[int, int], native: tuple[int, int]) -> Tensor:
        (rows, cols), normed = grid, self.norm(x, view)
        picture = normed[:, 1:].transpose(1, 2).reshape(x.shape[0], -1, rows, cols)  # (batch, channels, rows, columns)
        patches = self.reduce(picture, view)  # (batch, rows * columns / 4, channels)
        patches = patches + resized(self.pos_embed(view), halved(native), halved(grid), 0)
        y = torch.cat([self.token(normed[:, :1], view), patches], 1)
        if self.residual:
            picture = x[:, 1:].transpose(1, 2).reshape(x.shape[0], -1, rows, cols)
            pooled = F.avg_pool2d(picture, 2, ceil_mode=True, count_include_pad=False).flatten(2).transpose(1, 2)
            y = y + view.widened(torch.cat([x[:, :1], pooled], 1), self.inp, self.out)
        return y

    def cost(self, widths: Widths, positions: Count) -> Cost:
        cost = self.norm.cost(widths) + self.reduce.cost(widths, positions) + self.token.cost(widths, 1)
        return cost + self.pos_embed.cost(widths)


class VitRes(Pyramid):
    """A multi-stage vision transformer (see the module)."""

    schema = Schema(
        "vit_res", choices=frozenset(), stage=frozenset({"width"}), block=BLOCK_CHOICES, options=OPTIONS, rules=rules,
        kinds={"stem": (bool, int)}, rising=frozenset({"width"}),
    )  # fmt: skip
    patch = PATCH
    maskable = True
    training_only = ("patch_head.",)
    patch_head_possible = True

    def __init__(self, space: Space, num_classes: int = 1000, *settings: Any, patch_head: bool = False, **more: Any):
        self.with_patch_head = patch_head
        super().__init__(space, num_classes, *settings, **more)

    def build(self) -> None:
        space, eps = self.space, self.option("eps")
        side = space.widths("resolution")[-1] // PATCH
        channels = self.option("stem")
        self.stem = ConvStem(self.in_chans, channels) if channels else None
        inp, kernel = (channels, PATCH // 2) if channels else (self.in_chans, PATCH)
        self.proj = Conv2d(fixed("stem", inp), self.widths[0], kernel, kernel)
        self.cls_token = Table(1, self.widths[0])
        self.pos_embed = Table(side * side + 1, self.widths[0], prefix=1)
        for i, stage in enumerate(space.stages):
            enter, residual = None, bool(self.option("residual"))
            if i:
                side = (side + 1) // 2
                enter = SpatialReduction(self.widths[i - 1], self.widths[i], side * side, eps, residual)
            self.stages.append(StageModule([self._block(i, p) for p in range(stage.positions)], enter))
        self.norm = LayerNorm(self.widths[-1], eps)
        self.head = self.new_head(self.num_classes)
        self.patch_head = self.new_head(self.num_classes) if self.with_patch_head else None

    def _block(self, stage: int, position: int) -> Block:
        space, width = self.space, self.widths[stage]
        inner = Axis("attn", space.widths("attn", stage, position), space.unit("attn", stage, position))
        attn = Attention(width, inner, space.widths("heads", stage, position))
        return Block(width, attn, Mlp(width, Axis("mlp", space.widths("mlp", stage, position))), self.option("eps"))

    def shared(self, x: Tensor) -> Tensor:
        return x if self.stem is None else cast(Tensor, self.stem(x))

    def embed(self, x: Tensor, at: Pass) -> Tensor:
        tokens = self.proj(x, at.view)
        tokens = torch.cat([self.cls_token(at.view).expand(tokens.shape[0], 1, -1), tokens], 1)
        return tokens + resized(self.pos_embed(at.view), at.native, at.grid, 1)

    def enter(self, stage: int, x: Tensor, at: Pass) -> Tensor:
        reduction: SpatialReduction | None = self.stage(stage).enter
        if reduction is None:
            return x
        return reduction(x, at.view, self.stage_grid(stage - 1, at.grid), self.stage_grid(stage - 1, at.native))

    def finish(self, x: Tensor, at: Pass) -> Tensor:
        return self.norm(x, at.view)

    def pool(self, x: Tensor) -> Tensor:
        return x[:, 0]

    def classify(self, x: Tensor, at: Pass, patches: bool = False) -> Any:
        """Logits of the picture; with ``patches`` also those of every patch of the last stage, for token labelling."""
        logits = super().classify(x, at)
        if not patches:
            return logits
        if self.patch_head is None:
            raise SuperformerError("this network has no patch head; build it with patch_head=True")
        return logits, self.patch_head(x[:, 1:], at.view)

    def prefix_tokens(self, stage: int) -> int:
        return 1

    def enter_cost(self, stage: int, widths: Widths, values: Numbers, size: Size) -> Cost:
        rows, cols = self.cost_grid(stage, values, size)
        reduction = self.stage(stage).enter
        if isinstance(reduction, SpatialReduction):
            return reduction.cost(widths, rows * cols)
        cost = self.proj.cost(widths, rows * cols)
        if self.stem is not None:
            cost = cost + self.stem.cost(math.prod(halved(size)))
        return cost + self.cls_token.cost(widths) + self.pos_embed.cost(widths)

    def exit_cost(self, widths: Widths, values: Numbers, size: Size) -> Cost:
        cost = self.norm.cost(widths) + self.head_cost(widths)
        return cost + (Cost(0, self.patch_head.params(widths)) if self.patch_head is not None else NOTHING)
