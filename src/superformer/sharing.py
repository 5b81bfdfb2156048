"""Which channels of a shared weight a width uses (ViTAS v2, section 4).

A supernet keeps one tensor at the largest width; a sub-network of a smaller width runs with some of its channels.
*Which* ones is a rule, and every elastic layer asks the same rule object for it:

* **ordinal** (eq. 3, AutoSlim): the first ``w`` channels;
* **bilateral** (BCNet): the first ``w`` on the *left* side, the last ``w`` on the *right* side; a forward pass takes
  one side;
* **cyclic** (eqs. 5 to 13): ``w`` consecutive channels, wrapped around, from a start chosen per width such that all
  channels are trained equally often (eq. 12) and with equal influence (eq. 13).

Channels that belong together (the channels of a head) move together: a rule works on whole units of an axis.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from importlib import resources
from typing import Any

from superformer.elastic.axis import Axis, Selection
from superformer.errors import SuperformerError, nearest
from superformer.kernels.slices import Segments

RULES = ("ordinal", "bilateral", "cyclic")
SIDES = ("left", "right")
PAPER_GROUPS, SOLVED_GROUPS = 10, range(2, 17)

GroupMap = Mapping[int, Iterable[int]]
"""For each width, counted in groups of channels, the groups it uses."""


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
        if self.rule == "cyclic" and width < axis.size:
            start = _cyclic_start(axis.widths, axis.unit, width)
            end = start + width
            return ((start, end),) if end <= axis.size else ((start, axis.size), (0, end - axis.size))
        return ((axis.size - width, axis.size),) if side == "right" else ((0, width),)


@functools.cache
def _cyclic_start(widths: tuple[int, ...], unit: int, width: int) -> int:
    """The channel where the run of ``width`` channels starts.

    The widths of an axis are whole groups of channels if at most 16 groups make that possible; each then starts where
    the mapping says. Otherwise (384 channels are not ten whole groups) the axis is ruled in ten, as in the paper: a
    width takes the start of the nearest number of groups, rounded to a unit, and keeps its exact number of channels."""
    size, units = widths[-1], widths[-1] // unit
    groups = size // math.gcd(*widths)
    groups = groups if groups in SOLVED_GROUPS else min(units, PAPER_GROUPS)
    if groups < 2:
        return 0
    rank = min(max(round(width * groups / size), 1), groups)
    start: int = solution(groups)["starts"][rank - 1]
    return round(start * units / groups) % units * unit


def ordinal(groups: int) -> dict[int, frozenset[int]]:
    """Eq. 3: width ``j`` uses the first ``j`` groups."""
    return {j: frozenset(range(j)) for j in range(1, groups + 1)}


def bilateral(groups: int) -> dict[int, tuple[int, ...]]:
    """BCNet: width ``j`` uses the first ``j`` groups and, in a second pass, the last ``j``."""
    return {j: (*range(j), *range(groups - j, groups)) for j in range(1, groups + 1)}


def cyclic(groups: int) -> dict[int, frozenset[int]]:
    """The cyclic mapping (ViTAS v2, eqs. 5 to 13; continuous runs as in appendix A.11).

    For each width ``1..groups`` the set of channel groups it uses. Solved once for 2 to 16 groups and shipped; other
    numbers are solved on the spot (needs ortools)."""
    starts = solution(groups)["starts"]
    return {j: frozenset((starts[j - 1] + k) % groups for k in range(j)) for j in range(1, groups + 1)}


@functools.cache
def solution(groups: int) -> dict[str, Any]:
    """The solved mapping of a number of groups: the first group of each width ``1..groups``, the gap that remains and
    whether it is proven optimal."""
    if groups < 1:
        raise SuperformerError(f"{groups} groups of channels were asked for; at least one is needed")
    if groups == 1:
        return {"starts": [0], "proven": True}
    shipped = json.loads(resources.files("superformer").joinpath("cyclic_mappings.json").read_text())
    return shipped[str(groups)] if str(groups) in shipped else solve_cyclic(groups)


def influence_gap(mapping: GroupMap | Iterable[Iterable[int]]) -> float:
    """Eq. 13: the sum over (ordered) pairs of channels of the squared difference of their total influence: the sum of
    psi = 1/j over the widths ``j`` that use a channel (eqs. 10 and 11)."""
    items = mapping.items() if isinstance(mapping, Mapping) else enumerate(mapping, 1)
    used = {j: Counter(groups) for j, groups in items}
    count = 1 + max(max(c) for c in used.values() if c)
    total = [sum((Fraction(c[i], j) for j, c in used.items()), Fraction(0)) for i in range(count)]
    return float(sum((a - b) ** 2 for a in total for b in total))


def solve_cyclic(groups: int, seconds: float = 60.0, workers: int = 2) -> dict[str, Any]:
    """Eqs. 12 and 13 as an integer program over the starts (CP-SAT); says whether the optimum was proven.

    Influences are scaled to integers by the least common multiple of the widths. Their sum is fixed, so the gap of eq.
    13 is ``2 l sum_i I_i^2`` up to a constant and the sum of squares is what is minimised."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:  # pragma: no cover - depends on the installation
        what = f"the cyclic mapping of {groups} groups is not shipped (2 to 16 are) and solving it needs ortools"
        raise SuperformerError(f"{what}: pip install 'superformer[solver]'") from error
    scale = math.lcm(*range(1, groups + 1))
    model = cp_model.CpModel()
    starts = {j: [model.new_bool_var(f"start_{j}_{s}") for s in range(groups)] for j in range(1, groups)}
    for j, options in starts.items():
        model.add_exactly_one(options)
        if j == groups - 1:  # turning everything around changes nothing: fix one start
            model.add(options[0] == 1)
    times, squares = [], []
    bound = scale * sum(Fraction(1, j) for j in range(1, groups + 1))
    low = model.new_int_var(0, groups, "fewest")
    for i in range(groups):
        used = {j: [starts[j][(i - k) % groups] for k in range(j)] for j in starts}
        times.append(sum(v for options in used.values() for v in options))
        total = model.new_int_var(0, int(bound), f"influence_{i}")
        model.add(total == scale // groups + sum(scale // j * v for j, options in used.items() for v in options))
        off = model.new_int_var(-scale, int(bound), f"off_{i}")
        model.add(off == total - scale)
        square = model.new_int_var(0, int(bound) ** 2, f"square_{i}")
        model.add_multiplication_equality(square, [off, off])
        squares.append(square)
    for t in times:
        model.add(t >= low)
        model.add(t <= low + 1)
    model.minimize(sum(squares))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 0
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise SuperformerError(f"no cyclic mapping of {groups} groups was found in {seconds:g} s; allow more seconds")
    found = [next(s for s in range(groups) if solver.value(starts[j][s])) for j in range(1, groups)] + [0]
    mapping = {j: [(found[j - 1] + k) % groups for k in range(j)] for j in range(1, groups + 1)}
    return {"starts": found, "gap": influence_gap(mapping), "proven": status == cp_model.OPTIMAL}
