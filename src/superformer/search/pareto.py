"""Fronts: which scores no other score beats in every objective, in ranks, by crowding, and as a volume.

Sorting, crowding distance and hypervolume are pymoo's, which minimises; here each objective says which way it goes.
Rows with a score that is not a number (what could not be evaluated) are on no front."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superformer.errors import SuperformerError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def minimised(scores: Any, maximise: Sequence[bool]) -> Floats:
    """Scores turned so that less is better in every objective."""
    given: Floats = np.asarray(scores, dtype=np.float64)
    if given.ndim != 2 or given.shape[1] != len(maximise):
        raise SuperformerError(f"scores must be rows of {len(maximise)} numbers, not an array of shape {given.shape}")
    return np.where(np.asarray(maximise, dtype=bool), -given, given)


def ranks(scores: Any, maximise: Sequence[bool]) -> Ints:
    """The number of the front of each row: 0 for what nothing dominates, 1 for what is then left, and so on; -1 without
    a score."""
    from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting

    turned = minimised(scores, maximise)
    valid = np.isfinite(turned).all(1)
    out = np.full(len(turned), -1, dtype=np.int64)
    if valid.any():
        out[valid] = NonDominatedSorting().do(turned[valid], return_rank=True)[1]
    return out


def front(scores: Any, maximise: Sequence[bool]) -> Ints:
    """The rows that no other row dominates (at least as good in every objective and better in one), in their order;
    equal rows all stay."""
    return np.flatnonzero(ranks(scores, maximise) == 0)


def crowding(scores: Any, maximise: Sequence[bool]) -> Floats:
    """NSGA-II's crowding distance of each row, all rows being one front: its ends are infinitely far from the
    others."""
    from pymoo.operators.survival.rank_and_crowding.metrics import get_crowding_function

    distance: Floats = get_crowding_function("cd").do(minimised(scores, maximise))
    return distance


def best(scores: Any, maximise: Sequence[bool], n: int) -> Ints:
    """The ``n`` best rows: by front, then the least crowded of their front, then the first (NSGA-II's survival)."""
    return ordered(scores, maximise, n)[0]


def ordered(scores: Any, maximise: Sequence[bool], n: int) -> tuple[Ints, Ints, Floats]:
    """The ``n`` best rows, the fronts they are on, and how far from their neighbours there."""
    given, rank = np.asarray(scores, dtype=np.float64), ranks(scores, maximise)
    by_front = np.argsort(rank, kind="stable")
    ends = np.searchsorted(rank[by_front], np.arange(rank.max(initial=-1) + 2))
    rows, distances = [by_front[:0]], [np.zeros(0)]
    for start, end in itertools.pairwise(ends):
        if start - ends[0] >= n:
            break
        members = by_front[start:end]
        distance = crowding(given[members], maximise)
        order = np.argsort(-distance, kind="stable")
        rows.append(members[order])
        distances.append(distance[order])
    kept = np.concatenate(rows)[:n]
    return kept, rank[kept], np.concatenate(distances)[:n]


def reach(known: Any, given: Any, maximise: Sequence[bool], n: int = 1) -> Floats:
    """What rows need in the first, maximised objective: with less, ``n`` of the known rows beat them in it and are no
    worse in the others. The first column of ``given`` is not looked at."""
    have, rows = minimised(known, maximise), minimised(given, maximise)
    if len(have) < n:
        return np.full(len(rows), -np.inf)
    no_worse = (have[None, :, 1:] <= rows[:, None, 1:]).all(-1)
    found: Floats = np.sort(np.where(no_worse, -have[None, :, 0], -np.inf), 1)[:, -n]
    return found


def hypervolume(scores: Any, maximise: Sequence[bool], reference: Sequence[float]) -> float:
    """The volume of what the rows dominate, up to a reference point that is worse than all of interest."""
    from pymoo.indicators.hv import HV

    turned, worst = minimised(scores, maximise), minimised([reference], maximise)[0]
    turned = turned[np.isfinite(turned).all(1)]
    turned = turned[(turned < worst).all(1)]
    return float(HV(ref_point=worst)(turned)) if len(turned) else 0.0
