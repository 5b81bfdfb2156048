"""Which channels of a shared weight a width uses (ViTAS v2, section 4).

A supernet keeps one tensor at the largest width; a sub-network of a smaller width runs with some of its channels.
*Which* ones is a rule, and every elastic layer asks the same rule object for it:

* **ordinal** (eq. 3, AutoSlim): the first ``w`` channels;
* **bilateral** (BCNet): the first ``w`` on the *left* side, the last ``w`` on the *right* side; a forward pass takes
  one side;
* **cyclic** (eqs. 5 to 13): ``w`` consecutive channels, wrapped around, from a start chosen per width such that all
  channels are trained equally often (eq. 12) and with equal influence (eq. 13), for the widths that the axis has;
* **cyclic-groups**: cyclic, but with the mapping of all widths ``1..l`` whatever the axis has, so that eq. 12 does not
  hold where small widths are missing. Supernets that were trained before mappings were solved for lists have it.

Channels that belong together (the channels of a head) move together: a rule works on whole units of an axis.
"""

from __future__ import annotations

import bisect
import functools
import math
from dataclasses import dataclass

from superformer.elastic.axis import Axis, Selection
from superformer.errors import SuperformerError, nearest
from superformer.kernels.slices import Segments
from superformer.sharing.mappings import bilateral as bilateral
from superformer.sharing.mappings import cyclic as cyclic
from superformer.sharing.mappings import influence_gap as influence_gap
from superformer.sharing.mappings import ordinal as ordinal
from superformer.sharing.mappings import shipped, starts
from superformer.sharing.mappings import solution as solution
from superformer.sharing.mappings import solve_cyclic as solve_cyclic

RULES = ("ordinal", "bilateral", "cyclic", "cyclic-groups")
SIDES = ("left", "right")
PAPER_GROUPS, SOLVED_GROUPS = 10, range(2, 17)
"""Of ``cyclic-groups``: groups that an axis is ruled in, and numbers of groups that were solved."""


@dataclass(frozen=True)
class Sharing:
    """The rule of one supernet.

    ``joint`` names packed tensors (``"qkv.bias"``) whose parts are cut as *one* run of channels instead of part by
    part. No paper wants that; the released AutoFormer and ViTAS code does it, and their weights need it."""

    rule: str = "ordinal"
    joint: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise SuperformerError(f"unknown weight sharing {self.rule!r}: {nearest(self.rule, RULES)}")

    def select(self, axis: Axis, width: int, side: str = "left") -> Selection:
        """What a sub-network of this width uses of an axis."""
        return Selection(self.segments(axis, width, side), 1 if axis.kind == "private" else width)

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides a forward pass can take."""
        return SIDES if self.rule == "bilateral" else SIDES[:1]

    def check_side(self, side: str) -> str:
        if side not in self.sides:
            possible = "left, right" if self.rule == "bilateral" else "left (only bilateral sharing has two sides)"
            raise SuperformerError(f"side {side!r} does not exist with {self.rule} sharing; possible: {possible}")
        return side

    def segments(self, axis: Axis, width: int, side: str = "left") -> Segments:
        """The runs of channels that ``width`` channels of an axis use, in the order the sub-network has them."""
        if axis.kind == "private":
            return ((axis.widths.index(width), axis.widths.index(width) + 1),)
        if axis.kind == "centred":
            return (((axis.size - width) // 2, (axis.size + width) // 2),)
        if self.rule.startswith("cyclic") and width < axis.size:
            own = self.rule == "cyclic"
            start = _cyclic_start(axis.widths, width) if own else _group_start(axis.widths, axis.unit, width)
            end = start + width
            return ((start, end),) if end <= axis.size else ((start, axis.size), (0, end - axis.size))
        return ((axis.size - width, axis.size),) if side == "right" else ((0, width),)


@functools.lru_cache(maxsize=4096)
def _cyclic_start(widths: tuple[int, ...], width: int) -> int:
    """The channel where the run of ``width`` channels starts: as the mapping for this axis's own widths says. A width
    that the axis has not (of another space, at a warm start) begins where the next larger one does."""
    return starts(widths)[bisect.bisect_left(widths, width)]


@functools.lru_cache(maxsize=4096)
def _group_start(widths: tuple[int, ...], unit: int, width: int) -> int:
    """The same by the mapping of ``1..l`` groups. The widths of an axis are whole groups of channels if at most 16
    groups make that possible. Otherwise the axis is ruled in ten: a width takes the start of the nearest number of
    groups, rounded to a unit."""
    size, units = widths[-1], widths[-1] // unit
    groups = size // math.gcd(*widths)
    groups = groups if groups in SOLVED_GROUPS else min(units, PAPER_GROUPS)
    if groups < 2:
        return 0
    rank = min(max(round(width * groups / size), 1), groups)
    entry = shipped()[tuple(range(1, groups + 1))]
    start: int = entry.get("groups", entry["starts"])[rank - 1]  # a better one was found later
    return round(start * units / groups) % units * unit
