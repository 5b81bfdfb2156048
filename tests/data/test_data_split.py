from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from superformer.data import eval_batches
from superformer.data.dataset import balanced_subset, classes_in_turn, load, split
from superformer.errors import SuperformerError
from superformer.recipes.settings import Data

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


def test_without_a_search_split_all_is_trained_on(tmp_path):
    """Pictures of files, too, which are decoded when a part is read."""
    pixels = np.random.default_rng(0).integers(0, 255, (12, 8, 8, 3), dtype=np.uint8)
    for k, picture in enumerate(pixels):
        path = tmp_path / "ab"[k % 2] / f"{k}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(picture).save(path)
    whole, parts = (load(str(tmp_path), Data(search=part, augment="none"), 8) for part in (0, 2))
    assert (len(whole.train), len(whole.search), len(parts.search)) == (len(parts.train) + 4, 0, 4)
    assert whole.fingerprint == parts.fingerprint
    assert (whole.test().labels == parts.test().labels).all()
    assert list(eval_batches(whole.search, whole.settings, 8, 4)) == []
    with pytest.raises(SuperformerError, match="greater than or equal to 0"):
        Data.read({"search": -1}, "data")


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
