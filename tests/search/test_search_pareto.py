"""Fronts: what nothing dominates, the best by front and crowding, volumes, and what is needed to reach a front."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from superformer.errors import SuperformerError
from superformer.search.problem import best, front, hypervolume, minimised, ordered, ranks, reach

few = st.integers(1, 3).flatmap(
    lambda k: st.tuples(
        arrays.arrays(
            np.float64, st.tuples(st.integers(0, 12), st.just(k)), elements=st.sampled_from((0.0, 1, 2, 3, 4, np.nan))
        ),
        st.lists(st.booleans(), min_size=k, max_size=k),
    )
)


def dominates(a, b, maximise):
    better = [x > y if up else x < y for x, y, up in zip(a, b, maximise, strict=True)]
    worse = [x < y if up else x > y for x, y, up in zip(a, b, maximise, strict=True)]
    return any(better) and not any(worse)


@given(few)
def test_the_front_is_what_nothing_dominates(case):
    scores, maximise = case
    valid = [k for k in range(len(scores)) if not np.isnan(scores[k]).any()]
    expected = [k for k in valid if not any(dominates(scores[j], scores[k], maximise) for j in valid)]
    assert front(scores, maximise).tolist() == expected
    rank = ranks(scores, maximise)
    assert (rank >= 0).tolist() == [k in valid for k in range(len(scores))]
    for a, b in itertools.permutations(valid, 2):
        if dominates(scores[a], scores[b], maximise):
            assert rank[a] < rank[b]
    for b in valid:
        if rank[b]:
            assert any(rank[a] == rank[b] - 1 and dominates(scores[a], scores[b], maximise) for a in valid)


@given(few, st.integers(0, 14))
def test_the_best_go_front_by_front_and_the_ends_of_a_front_first(case, n):
    scores, maximise = case
    rows, rank, distance = ordered(scores, maximise, n)
    every_rank = ranks(scores, maximise)
    assert len(rows) == min(n, (every_rank >= 0).sum()) == len(set(rows.tolist()))
    assert (rank == np.sort(every_rank[every_rank >= 0])[: len(rows)]).all()
    assert (best(scores, maximise, n) == rows).all()
    for number in set(rank.tolist()):
        assert (np.diff(distance[rank == number][np.isfinite(distance[rank == number])]) <= 0).all()


@given(few)
def test_hypervolume_counts_the_cells_that_are_dominated(case):
    scores, maximise = case
    reference = [-1.0 if up else 5.0 for up in maximise]
    turned = minimised(scores, maximise)
    worst = minimised([reference], maximise)[0]
    valid = turned[~np.isnan(turned).any(1)]
    axes = [np.arange(low - 6, low) for low in worst]  # unit cells by their lower corners
    cells = np.stack([g.ravel() for g in np.meshgrid(*axes, indexing="ij")], -1)
    inside = sum(bool((valid <= cell).all(1).any()) for cell in cells)
    assert hypervolume(scores, maximise, reference) == pytest.approx(inside)
    assert hypervolume(scores[:-1], maximise, reference) <= inside + 1e-9


def test_scores_need_their_directions():
    with pytest.raises(SuperformerError, match="rows of 2 numbers"):
        front(np.zeros((3, 1)), (True, False))


@given(few, few, st.integers(1, 4))
def test_less_than_the_reach_is_dominated_by_so_many(known, case, n):
    """Racing stops what cannot reach it: that must be right whatever the score would have been."""
    (have, maximise), (rows, _) = known, case
    have, rows = have[~np.isnan(have).any(1)], rows[:, :1]
    maximise = [True, *maximise[1:]]
    rows = np.tile(np.nan_to_num(rows), (1, len(maximise)))
    needed = reach(have, rows, maximise, n)
    for row, least in zip(rows, needed, strict=True):
        for first in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0):
            score = np.asarray([first, *row[1:]])
            beaten = sum(
                bool(h[0] > first and not dominates(score, h, maximise) and _no_worse(h, score, maximise)) for h in have
            )
            assert (first < least) == (beaten >= n)


def _no_worse(a, b, maximise):
    return all(x >= y if up else x <= y for x, y, up in zip(a, b, maximise, strict=True))
