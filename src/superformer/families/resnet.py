"""ResNet with bottleneck blocks (He et al.) whose widths are searched: the CNN of ViTAS v2, appendix A.7.

A 7x7 convolution and a max pool, then stages of bottlenecks: 1x1, 3x3 and 1x1 convolutions, each with a batch norm, the
stride in the 3x3. All blocks of a stage end in the same width, which the residual ties (``width``); the two inner
widths of each block are its own (``mid1``, ``mid2``). The first bottleneck of a stage has a projection as its shortcut,
and so depends on the width before: it is what leads into the stage, its inner widths (``entry1``, ``entry2``) are
choices of the stage, and a stage's depth counts the blocks after it (ResNet-50 has the depths 2, 3, 5, 2). With the
usual widths this is torchvision's and timm's network.

Batch norm: in training every sub-network is normalised by its own part of a mixed batch, from the stem on. The running
statistics of a supernet are a mixture of its sub-networks', so an extracted network needs `superformer.recalibrate`
before it is used.

Maps are (batch, rows, columns, channels)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch.nn.functional as F
from torch import Tensor

from superformer.elastic.axis import Axis, Pass, Units, View, Visit, fixed
from superformer.elastic.conv import BatchNorm, MapConv
from superformer.elastic.layers import Cell, Layer
from superformer.elastic.positions import at_size, halved
from superformer.families.network import Numbers, Pyramid, Size, StageModule, Widths
from superformer.kernels.convolution import channels_last
from superformer.space.costs import Cost, Count
from superformer.space.schema import Schema


class ConvNorm(Layer):
    """A convolution without bias and its batch norm."""

    def __init__(self, inp: Axis, out: Axis, kernel: int, stride: int = 1):
        super().__init__()
        self.conv = MapConv(inp, out, kernel, stride)
        self.norm = BatchNorm(out)

    def forward(self, x: Tensor, view: View) -> Tensor:
        return self.norm.after(self.conv, x, view)

    def cost(self, widths: Widths, positions: Count) -> Cost:
        return self.conv.cost(widths, positions) + self.norm.cost(widths)


class Bottleneck(Cell):
    """1x1, 3x3, 1x1; after another axis, ``inp``, the shortcut is a projection."""

    def __init__(self, width: Axis, mids: Sequence[tuple[int, ...]], inp: Axis | None = None, stride: int = 1):
        super().__init__()
        self.mid1, self.mid2 = (Axis(f"mid{k}", widths) for k, widths in enumerate(mids, 1))
        self.conv1 = ConvNorm(inp or width, self.mid1, 1)
        self.conv2 = ConvNorm(self.mid1, self.mid2, 3, stride)
        self.conv3 = ConvNorm(self.mid2, width, 1)
        self.shortcut = ConvNorm(inp, width, 1) if inp is not None else None
        self.hop = stride

    def bind(self, values: Numbers) -> dict[Axis, Count]:
        return {self.mid1: values["mid1"], self.mid2: values["mid2"]}

    def forward(self, x: Tensor, visit: Visit | None, at: Pass) -> Tensor:
        view = at.view
        y = F.relu(self.conv1(x, view), inplace=True)
        y = self.dropped(self.conv3(F.relu(self.conv2(y, view), inplace=True), view))
        if self.shortcut is not None:
            s = self.hop  # one copy, and the projection is one matrix product there and back
            x = self.shortcut(x if s == 1 else x[:, ::s, ::s].contiguous(), view)
        return F.relu(y + x, inplace=True)

    def sortable(self, heads: Sequence[int]) -> tuple[Units, ...]:
        return tuple(Units((axis,), axis.size) for axis in (self.mid1, self.mid2))

    def cost(self, widths: Widths, values: Numbers, tokens: Count, grid: Size) -> Cost:
        return self.strided_cost(widths, tokens, tokens)

    def strided_cost(self, widths: Widths, before: Count, after: Count) -> Cost:
        """For so many positions before and after the stride."""
        cost = self.conv1.cost(widths, before) + self.conv2.cost(widths, after) + self.conv3.cost(widths, after)
        return cost if self.shortcut is None else cost + self.shortcut.cost(widths, after)


class ResNet(Pyramid):
    """A ResNet of bottlenecks (see the module)."""

    schema = Schema(
        "resnet",
        choices=frozenset({"stem"}),
        stage=frozenset({"width", "entry1", "entry2"}),
        block=frozenset({"mid1", "mid2"}),
        entry=frozenset({"entry1", "entry2"}),
        widths=dict.fromkeys(("stem", "width", "entry1", "entry2", "mid1", "mid2"), 1),
        opens=1,
    )
    patch = 4
    any_size = True

    def token_channels(self) -> Sequence[Axis]:
        return (self.base, *self.widths)

    def build(self) -> None:
        space = self.space
        self.base = Axis("stem", space.widths("stem"))
        self.stem = ConvNorm(fixed("picture", self.in_chans), self.base, 7, 2)
        for i, (inp, stage) in enumerate(zip([self.base, *self.widths], space.stages, strict=False)):
            entries = (space.widths("entry1", i), space.widths("entry2", i))
            entry = Bottleneck(self.widths[i], entries, inp, 2 if i else 1)
            mids = [(space.widths("mid1", i, p), space.widths("mid2", i, p)) for p in range(stage.positions)]
            self.stages.append(StageModule([Bottleneck(self.widths[i], mid) for mid in mids], entry))
        self.head = self.new_head(self.num_classes)

    def entry(self, stage: int) -> Bottleneck:
        return cast(Bottleneck, self.stage(stage).enter)

    def bind(self, choices: Numbers, stages: Sequence[Numbers]) -> dict[Axis, Count]:
        widths = {self.base: choices["stem"], **super().bind(choices, stages)}
        for i, values in enumerate(stages):
            widths |= self.entry(i).bind({"mid1": values["entry1"], "mid2": values["entry2"]})
        return widths

    def cells(self) -> list[Cell]:
        out: list[Cell] = []
        for i, stage in enumerate(self.space.stages):
            out += self.entry(i), *map(self.stage(i).block, range(stage.positions))
        return out

    def grid(self, values: Numbers, height: Count, width: Count) -> Size:
        return halved((height, width), 2)

    def shared(self, x: Tensor) -> Tensor:
        return channels_last(x)

    def embed(self, x: Tensor, at: Pass) -> Tensor:
        y = F.relu(self.stem(at_size(x, at.canvas).permute(0, 2, 3, 1), at.view), inplace=True)
        return F.max_pool2d(y.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1)

    def enter(self, stage: int, x: Tensor, at: Pass) -> Tensor:
        return self.entry(stage)(x, None, at)  # type: ignore[no-any-return]

    def finish(self, x: Tensor, at: Pass) -> Tensor:
        return x

    def pool(self, x: Tensor) -> Tensor:
        return x.mean((1, 2))

    def enter_cost(self, stage: int, widths: Widths, values: Numbers, size: Size) -> Cost:
        before, after = (math.prod(self.cost_grid(i, values, size)) for i in (max(stage - 1, 0), stage))
        cost = self.entry(stage).strided_cost(widths, before, after)
        return cost if stage else cost + self.stem.cost(widths, math.prod(halved(size)))

    def exit_cost(self, widths: Widths, values: Numbers, size: Size) -> Cost:
        return self.head_cost(widths)
