from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superformer.data.dataset import balanced_subset, classes_in_turn, split
from superformer.errors import SuperformerError

COUNTS = st.lists(st.integers(2, 40), min_size=2, max_size=6)


def labelled(counts: list[int]) -> np.ndarray:
    return np.random.default_rng(sum(counts)).permutation(np.repeat(np.arange(len(counts)), counts))


@given(COUNTS, st.floats(0.01, 0.99))
def test_a_share_is_disjoint_complete_and_stratified(counts, share):
    labels = labelled(counts)
    rest, held = split(labels, share, "search", [str(c) for c in range(len(counts))])
    assert sorted([*rest, *held]) == list(range(len(labels)))
    for c, n in enumerate(counts):
        taken = int((labels[held] == c).sum())
        assert 1 <= taken < n
        assert abs(taken - share * n) <= 1


@given(COUNTS, st.integers(1, 10))
def test_a_number_of_each_class(counts, number):
    labels, names = labelled(counts), [str(c) for c in range(len(counts))]
    if min(counts) <= number:
        with pytest.raises(SuperformerError, match="fewer than"):
            split(labels, number, "search", names)
        return
    rest, held = split(labels, number, "search", names)
    assert (np.bincount(labels[held], minlength=len(counts)) == number).all()
    assert not set(rest) & set(held)


def test_splits_are_always_the_same_and_differ_by_purpose():
    labels, names = labelled([30, 30]), ["a", "b"]
    first, again, other = (split(labels, 0.2, p, names)[1] for p in ("search", "search", "test"))
    assert (first == again).all()
    assert (first != other).any()


def test_a_class_that_is_too_small_is_named_with_what_to_do():
    with pytest.raises(SuperformerError, match=r"'tiny' \(3\).*data.search to 2"):
        split(np.array([0] * 40 + [1] * 3), 25, "search", ["many", "tiny"])
    with pytest.raises(SuperformerError, match="neither a share"):
        split(np.array([0, 0, 0, 1, 1, 1]), 1.5, "search", ["a", "b"])


@given(COUNTS, st.integers(1, 60))
def test_a_subset_is_as_even_as_it_can_be(counts, n):
    labels = labelled(counts)
    chosen = balanced_subset(labels, n)
    assert len(set(chosen)) == len(chosen) == min(n, len(labels))
    assert (np.diff(chosen) > 0).all()
    taken = np.bincount(labels[chosen], minlength=len(counts))
    assert all(t == c or t >= taken.max() - 1 for t, c in zip(taken, counts, strict=True))


@given(COUNTS, st.integers(1, 60), st.integers(0, 3))
def test_classes_in_turn(counts, n, seed):
    """Any number of the first ones, and any stretch, has the classes as equally as can be, however they lie."""
    labels = labelled(counts)
    order = classes_in_turn(labels, seed)
    assert sorted(order) == list(range(len(labels)))
    assert (order == classes_in_turn(labels, seed)).all()
    found = np.bincount(labels[order[:n]], minlength=len(counts))
    left = np.array(counts) > found  # of the others all are there
    assert not left.any() or found[left].min() >= found.max() - 1
