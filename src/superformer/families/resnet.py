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

Maps are (batch, rows, columns, channels).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superformer.elastic.axis import Axis, Pass, Step, Units, View, fixed
from superformer.elastic.conv import BatchNorm, MapConv
from superformer.elastic.layers import Widths
from superformer.elastic.transformer import Cell, Phase
from superformer.families.network import Pyramid, StageModule
from superformer.kernels.attention import halved
from superformer.space.costs import Cost, Count
from superformer.space.schema import Schema


class ConvNorm(nn.Module):
    """A convolution without bias and its batch norm."""

    def __init__(self, inp: Axis, out: Axis, kernel: int, stride: int = 1):
        super().__init__()
        self.conv = MapConv(inp, out, kernel, stride)
        self.norm = BatchNorm(out)

    def forward(self, x: Tensor, view: View) -> Tensor:
        if not torch.is_grad_enabled() and not self.norm.training:
            kernel, bias = self.norm.folded(self.conv, view)
            return self.conv.convolve(
                x, kernel.contiguous(memory_format=torch.channels_last), bias
            )  # the layout of the maps
        out: Tensor = self.norm(self.conv(x, view), view)
        return out

    def cost(self, widths: Widths, positions: Count) -> Cost:
        return self.conv.cost(widths, positions) + self.norm.cost(widths)


class Bottleneck(Cell):
    """1x1, 3x3, 1x1; after another axis, ``inp``, the shortcut is a projection."""

    def __init__(
        self, width: Axis, mids: tuple[tuple[int, ...], tuple[int, ...]], inp: Axis | None = None, stride: int = 1
    ):
        super().__init__()
        self.mid1, self.mid2 = (Axis(f"mid{k}", widths) for k, widths in enumerate(mids, 1))
        self.conv1 = ConvNorm(inp or width, self.mid1, 1)
        self.conv2 = ConvNorm(self.mid1, self.mid2, 3, stride)
        self.conv3 = ConvNorm(self.mid2, width, 1)
        self.shortcut = ConvNorm(inp, width, 1) if inp is not None else None
        self.stride = stride

    def bind(self, values: Mapping[str, Count]) -> dict[Axis, Count]:
        return {self.mid1: values["mid1"], self.mid2: values["mid2"]}

    def phases(self) -> Sequence[Phase]:
        return (self.transform,)

    def transform(self, x: Tensor, view: View, step: Step | None = None, at: Pass | None = None) -> Tensor:
        y = F.relu(self.conv1(x, view), inplace=True)
        y = self.dropped(self.conv3(F.relu(self.conv2(y, view), inplace=True), view))
        if self.shortcut is not None:
            s = self.stride  # one copy, and the projection is one matrix product there and back
            x = self.shortcut(x if s == 1 else x[:, ::s, ::s].contiguous(), view)
        return F.relu(y + x, inplace=True)

    def cost(self, widths: Widths, values: Mapping[str, Count], tokens: Count, grid: tuple[Count, Count]) -> Cost:
        return self.strided_cost(widths, tokens, tokens)

    def strided_cost(self, widths: Widths, before: Count, after: Count) -> Cost:
        """For so many positions before and after the stride."""
        cost = self.conv1.cost(widths, before) + self.conv2.cost(widths, after) + self.conv3.cost(widths, after)
        return cost if self.shortcut is None else cost + self.shortcut.cost(widths, after)

    def sortable(self, heads: Sequence[int]) -> tuple[Units, ...]:
        return (Units.channels(self.mid1), Units.channels(self.mid2))


class ResNet(Pyramid):
    """A ResNet of bottlenecks (see the module)."""

    schema = Schema(
        "resnet",
        choices=frozenset({"stem"}),
        stage=frozenset({"width", "entry1", "entry2"}),
        block=frozenset({"mid1", "mid2"}),
        entry=frozenset({"entry1", "entry2"}),
    )
    patch = 4
    any_size = True

    def build(self) -> None:
        space = self.space
        self.base = Axis("stem", space.widths("stem"))
        self.stem = ConvNorm(fixed("picture", self.in_chans), self.base, 7, 2)
        for i, (inp, stage) in enumerate(zip([self.base, *self.widths], space.stages, strict=False)):
            entry = Bottleneck(
                self.widths[i], (space.widths("entry1", i), space.widths("entry2", i)), inp, 2 if i else 1
            )
            mids = [(space.widths("mid1", i, p), space.widths("mid2", i, p)) for p in range(stage.positions)]
            self.stages.append(StageModule([Bottleneck(self.widths[i], mid) for mid in mids], entry))
        self.head = self.new_head(self.num_classes)

    def entry(self, stage: int) -> Bottleneck:
        found = self.stage(stage).enter
        assert isinstance(found, Bottleneck)
        return found

    def bind(self, choices: Mapping[str, Count], stages: Sequence[Mapping[str, Count]]) -> dict[Axis, Count]:
        widths = {self.base: choices["stem"], **super().bind(choices, stages)}
        for i, values in enumerate(stages):
            widths |= self.entry(i).bind({"mid1": values["entry1"], "mid2": values["entry2"]})
        return widths

    def cells(self) -> list[Cell]:
        return [
            cell
            for i, s in enumerate(self.space.stages)
            for cell in (self.entry(i), *map(self.stage(i).block, range(s.positions)))
        ]

    # --- the pass ---

    def grid(self, values: Mapping[str, Count], height: Count, width: Count) -> tuple[Count, Count]:
        return halved((height, width), 2)

    def shared(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)

    def embed(self, x: Tensor, at: Pass) -> Tensor:
        y = F.relu(self.stem(x.permute(0, 2, 3, 1), at.view), inplace=True)
        return F.max_pool2d(y.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1)

    def enter(self, stage: int, x: Tensor, at: Pass) -> Tensor:
        return self.entry(stage).transform(x, at.view)

    def finish(self, x: Tensor, at: Pass) -> Tensor:
        return x

    def pool(self, x: Tensor) -> Tensor:
        return x.mean((1, 2))

    # --- cost ---

    def enter_cost(self, stage: int, widths: Widths, values: Mapping[str, Count], size: tuple[Count, Count]) -> Cost:
        before, after = (math.prod(self.cost_grid(i, values, size)) for i in (max(stage - 1, 0), stage))
        cost = self.entry(stage).strided_cost(widths, before, after)
        return cost if stage else cost + self.stem.cost(widths, math.prod(halved(size)))

    def exit_cost(self, widths: Widths, values: Mapping[str, Count], size: tuple[Count, Count]) -> Cost:
        return self.head_cost(widths)
