"""ResNet-50 with searched widths (ViTAS v2, appendix A.7).

The appendix takes "the same search space as" BCNet and gives no table of its own; the recipe partitions every width into 10 groups. So
each convolution of ResNet-50 has ten widths, those that a residual ties together one for the whole stage; depths are not searched.
"""

from __future__ import annotations

from superformer.space import Space, Stage, tenths
from superformer.space.arch import Arch, StageArch, Values

BLOCKS = (3, 4, 6, 3)
"""Bottlenecks of each stage of ResNet-50, the first of which leads into it."""


def _stage(i: int) -> Stage:
    inner, outer = tenths(64 * 2**i), tenths(256 * 2**i)
    return Stage({"mid1": inner, "mid2": inner}, depth=BLOCKS[i] - 1, choices={"width": outer, "entry1": inner, "entry2": inner})


SPACES = (Space("vitas-resnet50", "resnet", tuple(_stage(i) for i in range(4)), {"stem": tenths(64)}),)


def network(blocks: tuple[int, ...], inner: int = 64, resolution: int = 224) -> Arch:
    """A plain ResNet of so many bottlenecks in each stage: inner widths double from stage to stage, outer widths are 256 at first."""

    def stage(i: int, n: int) -> StageArch:
        mid = inner * 2**i
        return StageArch((Values(mid1=mid, mid2=mid),) * (n - 1), Values(width=256 * 2**i, entry1=mid, entry2=mid))

    return Arch("resnet", resolution, Values(stem=64), tuple(stage(i, n) for i, n in enumerate(blocks)))


MODELS = {"resnet50_plain": network(BLOCKS)}
