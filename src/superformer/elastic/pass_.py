"""One pass through a network: which blocks run, with which values, on which part of the batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from superformer.elastic.axis import View
from superformer.space.arch import Arch, Values

if TYPE_CHECKING:
    from superformer.elastic.block import Cell


@dataclass(frozen=True)
class Part:
    """One sub-network's part of a masked batch: its rows, its own (sliced) view, and its values in a block (None: it skips it)."""

    rows: slice
    view: View
    values: Values | None = None


@dataclass(frozen=True)
class Step:
    """One block of a pass. In a masked pass ``parts`` says what each part of the batch does, and ``gate`` is zero where it skips."""

    block: Cell
    values: Values
    parts: tuple[Part, ...] | None = None
    gate: Tensor | None = None


@dataclass(frozen=True)
class Pass:
    """A pass: one architecture (sliced), or several at once (masked; ``parts`` has an entry for each).

    ``grid`` is the number of rows and columns of tokens now, ``native`` what they are at the architecture's own resolution.
    """

    arch: Arch
    view: View
    stages: tuple[tuple[Step, ...], ...]
    parts: tuple[Part, ...] | None = None
    grid: tuple[int, int] = (0, 0)
    native: tuple[int, int] = (0, 0)
    steps: tuple[Step, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(s for stage in self.stages for s in stage))
