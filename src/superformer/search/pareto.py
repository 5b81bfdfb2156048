"""Fronts: which scores no other score beats in every objective, in ranks, by crowding, and as a volume.

Sorting, crowding distance and hypervolume are pymoo's, which minimises; here each objective says which way it goes. Rows with a score that
is not a number (what could not be evaluated) are on no front.
"""

from __future__ import annotations

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
    """The number of the front of each row: 0 for what nothing dominates, 1 for what is then left, and so on; -1 without a score."""
    from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting

    turned = minimised(scores, maximise)
    valid = np.isfinite(turned).all(1)
    out = np.full(len(turned), -1, dtype=np.int64)
    if valid.any():
        out[valid] = NonDominatedSorting().do(turned[valid], return_rank=True)[1]
    return out


def front(scores: Any, maximise: Sequence[bool]) -> Ints:
    """The rows that no other row dominates (at least as good in every objective and better in one), in their order; equal rows all stay."""
    return np.flatnonzero(ranks(scores, maximise) == 0)


def crowding(scores: Any, maximise: Sequence[bool]) -> Floats:
    """NSGA-II's crowding distance of each row within its own front: the ends of a front are infinitely far from all others."""
    from pymoo.operators.survival.rank_and_crowding.metrics import get_crowding_function

    turned, rank = minimised(scores, maximise), ranks(scores, maximise)
    out = np.zeros(len(turned))
    distance = get_crowding_function("cd")
    for number in range(int(rank.max(initial=-1)) + 1):
        rows = rank == number
        out[rows] = distance.do(turned[rows])
    return out


def best(scores: Any, maximise: Sequence[bool], n: int) -> Ints:
    """The ``n`` best rows: by front, then the least crowded, then the first (NSGA-II's survival)."""
    rank = ranks(scores, maximise)
    order = np.lexsort((-crowding(scores, maximise), rank))
    return order[rank[order] >= 0][:n]


def hypervolume(scores: Any, maximise: Sequence[bool], reference: Sequence[float]) -> float:
    """The volume of what the rows dominate, up to a reference point that is worse than all of interest."""
    from pymoo.indicators.hv import HV

    turned, worst = minimised(scores, maximise), minimised([reference], maximise)[0]
    turned = turned[np.isfinite(turned).all(1)]
    turned = turned[(turned < worst).all(1)]
    return float(HV(ref_point=worst)(turned)) if len(turned) else 0.0
