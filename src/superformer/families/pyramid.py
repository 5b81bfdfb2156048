"""What families of a feature pyramid share: every stage has a width of its own and half the rows and columns of the stage before."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from functools import cached_property

from superformer.elastic.axis import Axis, fixed
from superformer.elastic.count import Count
from superformer.elastic.layers import Linear
from superformer.elastic.windows import halved
from superformer.families.base import Network
from superformer.families.rules import in_patches
from superformer.space.arch import Arch


class Pyramid(Network):
    """A network of stages whose classifier reads the last one. The choice ``width`` of each stage is that of its tokens."""

    feature_level = "stage"

    @property
    @abc.abstractmethod
    def patch(self) -> int:
        """Pixels in a row that a token of the first stage stands for."""

    @cached_property
    def widths(self) -> list[Axis]:
        """The axis of each stage's width."""
        return [Axis(f"width{i}", self.space.widths("width", i)) for i in range(len(self.space.stages))]

    def new_head(self, num_classes: int) -> Linear | None:
        return Linear(self.widths[-1], fixed("classes", num_classes)) if num_classes else None

    def bind(self, choices: Mapping[str, Count], stages: Sequence[Mapping[str, Count]]) -> dict[Axis, Count]:
        return {axis: s["width"] for axis, s in zip(self.widths, stages, strict=True)}

    def grid(self, values: Mapping[str, Count], height: Count, width: Count) -> tuple[Count, Count]:
        return in_patches(height, width, self.patch)

    def stage_grid(self, stage: int, grid: tuple[Count, Count]) -> tuple[Count, Count]:
        return halved(grid, stage)

    def feature_width(self, arch: Arch, stage: int) -> int:
        return arch.stages[stage].choices.int("width")

    def reduction(self, arch: Arch, stage: int) -> int:
        return int(self.patch * 2**stage)
