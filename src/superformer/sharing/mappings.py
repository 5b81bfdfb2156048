"""Which groups of channels a width uses: the mappings of ViTAS v2, section 4, and their fairness.

The cyclic mapping is the solution of an integer program (eqs. 5 to 13) for the widths that an axis really has. Those of
all published spaces and recipes are solved and shipped; others are found on the spot (`superformer.sharing.solve`)."""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from importlib import resources
from typing import Any

from superformer.errors import SuperformerError
from superformer.sharing.solve import bound, place

GroupMap = Mapping[int, Iterable[int]]
"""For each width, counted in groups of channels, the groups it uses."""
NEAR = 1e-8
"""Of gaps that are the same but for rounding."""


def ordinal(groups: int) -> dict[int, frozenset[int]]:
    """Eq. 3: width ``j`` uses the first ``j`` groups."""
    return {j: frozenset(range(j)) for j in range(1, groups + 1)}


def bilateral(groups: int) -> dict[int, tuple[int, ...]]:
    """BCNet: width ``j`` uses the first ``j`` groups and, in a second pass, the last ``j``."""
    return {j: (*range(j), *range(groups - j, groups)) for j in range(1, groups + 1)}


def cyclic(widths: int | Sequence[int]) -> dict[int, frozenset[int]]:
    """The cyclic mapping (ViTAS v2, eqs. 5 to 13; continuous runs as in appendix A.11).

    For each width the set of channel groups it uses: for the widths ``1..n`` of a number, as in the paper, or for the
    widths that a list really has."""
    return mapping_of(as_list(widths), starts(widths))


def mapping_of(widths: Sequence[int], first: Sequence[int]) -> dict[int, frozenset[int]]:
    """Runs from their starts, around the circle of the largest width."""
    size = widths[-1]
    return {j: frozenset((s + k) % size for k in range(j)) for j, s in zip(widths, first, strict=True)}


def as_list(widths: int | Sequence[int]) -> tuple[int, ...]:
    """A list of widths, ascending; a number stands for all up to it."""
    given = range(1, widths + 1) if isinstance(widths, int) else widths
    if not all(isinstance(w, int) and w >= 1 for w in given) or not len(given):
        raise SuperformerError(f"widths are whole numbers of channel groups, at least one, not {widths!r}")
    return tuple(sorted(set(given)))


def influence(mapping: GroupMap | Iterable[Iterable[int]]) -> list[Fraction]:
    """Eqs. 10 and 11: the total influence of each channel group, the sum of psi = 1/j over the widths ``j`` that use
    it."""
    items = mapping.items() if isinstance(mapping, Mapping) else enumerate(mapping, 1)
    used = {j: Counter(groups) for j, groups in items}
    count = 1 + max(max(c) for c in used.values() if c)
    return [sum((Fraction(c[i], j) for j, c in used.items()), Fraction(0)) for i in range(count)]


def influence_gap(mapping: GroupMap | Iterable[Iterable[int]]) -> float:
    """Eq. 13: the sum over (ordered) pairs of channels of the squared difference of their total influence."""
    total = influence(mapping)
    return float(2 * (len(total) * sum(a * a for a in total) - sum(total) ** 2))


@functools.cache
def shipped() -> dict[tuple[int, ...], dict[str, Any]]:
    """The solved lists. The starts of a list never change any more: supernets were trained with them."""
    text = resources.files("superformer.sharing").joinpath("cyclic.json").read_text()
    return {tuple(entry["widths"]): entry for entry in json.loads(text)}


def starts(widths: int | Sequence[int]) -> list[int]:
    """The first group of each width. It depends on the list alone, not on the machine or what is installed there: a
    stored supernet has the same channels everywhere."""
    listed = as_list(widths)
    step = math.gcd(*listed)
    groups = tuple(w // step for w in listed)
    return [step * s for s in (shipped()[groups]["starts"] if groups in shipped() else place(groups)[0])]


@functools.lru_cache(maxsize=1024)
def _told(widths: tuple[int, ...]) -> dict[str, Any]:
    if widths in shipped():
        return {k: v for k, v in shipped()[widths].items() if k not in ("widths", "groups")}
    found, best = place(widths)
    gap = influence_gap(mapping_of(widths, found))
    return _judged(found, gap, gap if best else bound(widths))


def _judged(found: list[int], gap: float, least: float) -> dict[str, Any]:
    proven = gap - least <= NEAR * max(1.0, gap)
    return {"starts": found, "gap": gap, "bound": gap if proven else least, "proven": proven}


def solution(widths: int | Sequence[int]) -> dict[str, Any]:
    """The mapping of a list of widths: ``starts``, the ``gap`` that remains (eq. 13), a ``bound`` below which none can
    get for which eq. 12 holds, and whether the gap is ``proven`` to be the smallest.

    Widths with a common divisor are those of whole groups, with the same gap."""
    listed = as_list(widths)
    step = math.gcd(*listed)
    return {**_told(tuple(w // step for w in listed)), "starts": starts(listed)}


# --- proving it ---

EXACT = 2**20
"""Influences are counted in whole numbers: in their common unit, if it is not smaller than one of so many parts."""


def solve_cyclic(widths: int | Sequence[int], seconds: float = 60.0, workers: int = 2) -> dict[str, Any]:
    """Eqs. 12 and 13 as an integer program over the starts (CP-SAT), from the mapping that is known; the same as
    `solution`, with a better mapping or bound if there is one. (What it finds in its time is not the same everywhere:
    supernets use `starts`.)

    Influences are scaled to integers. Their sum is fixed, so the gap of eq. 13 is ``2 l sum_i I_i^2`` up to a constant
    and the sum of squares is what is minimised."""
    listed = as_list(widths)
    step = math.gcd(*listed)
    if step > 1:
        found = solve_cyclic([w // step for w in listed], seconds, workers)
        return {**found, "starts": [step * s for s in found["starts"]]}
    known, size = solution(listed), listed[-1]
    if len(listed) < 3:
        return known
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:  # pragma: no cover - depends on the installation
        raise SuperformerError("proving a mapping needs ortools: pip install 'superformer[solver]'") from error
    common = math.lcm(*listed)
    scale = common if common <= EXACT else EXACT
    weights = {j: round(scale / j) for j in listed[:-1]}
    model = cp_model.CpModel()
    options = {j: [model.new_bool_var(f"start_{j}_{s}") for s in range(size)] for j in listed[:-1]}
    turned = known["starts"][-2]  # turning everything around changes nothing: the last but one starts at 0
    for own, hint in zip(options.values(), known["starts"], strict=False):
        model.add_exactly_one(own)
        for s, option in enumerate(own):
            model.add_hint(option, s == (hint - turned) % size)
    model.add(options[listed[-2]][0] == 1)
    mean = sum(j * w for j, w in weights.items()) // size
    most, low, squares = sum(weights.values()), model.new_int_var(0, len(listed), "fewest"), []
    for i in range(size):
        used = {j: [own[(i - k) % size] for k in range(j)] for j, own in options.items()}
        times = sum(v for own in used.values() for v in own)
        model.add(times >= low)
        model.add(times <= low + 1)
        off = model.new_int_var(-mean, most - mean, f"off_{i}")
        model.add(off == sum(weights[j] * v for j, own in used.items() for v in own) - mean)
        square = model.new_int_var(0, max(mean, most - mean) ** 2, f"square_{i}")
        model.add_multiplication_equality(square, [off, off])
        squares.append(square)
    model.minimize(sum(squares))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 0
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return known
    found_starts = [next(s for s in range(size) if solver.value(own[s])) for own in options.values()] + [0]
    gap = influence_gap(mapping_of(listed, found_starts))
    if gap >= known["gap"] - NEAR:
        found_starts, gap = known["starts"], known["gap"]
    least = known["bound"]
    if scale == common:  # rounded influences prove nothing about the exact ones
        rest = sum(j * w for j, w in weights.items()) - size * mean
        least = max(least, 2 * (size * solver.best_objective_bound - rest**2) / scale**2)
    return _judged(found_starts, gap, least)
