"""S3's space evolution: the E-T error, the line, the step."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import superformer as sf
from superformer.recipes import space_of
from superformer.recipes.searching import SpaceEvolution
from superformer.search.space_evolution import (
    Dimension,
    by_lot,
    dimensions,
    et_error,
    evolved,
    measurable,
    subspaces,
    trend,
)


def test_the_dimensions_of_s3():
    """Section 2.3: stages times search dimensions; heads follow from the Q-K-V dimension, and the last stage has one
    window."""
    found = dimensions(sf.space("s3-initial"))
    assert len(found) == 4 * 4 + 3
    assert {d.name for d in found} == {"depth", "width", "window", "attn", "mlp"}
    assert Dimension(2, "depth", (2.0, 3.0, 4.0)) in found
    assert Dimension(2, "attn", (224.0, 256.0, 288.0)) in found  # section 4.1
    assert {d.name for d in dimensions(space_of(sf.recipe("s3-laptop")))} == {"depth", "width", "window", "attn", "mlp"}


def test_the_q_k_v_dimension_moves_by_64_and_heads_follow():
    """Section 4.1: the step of the Q-K-V dimension is 64, two heads of 32 channels."""
    space, gamma = sf.space("s3-initial"), SpaceEvolution().gamma["attn"]
    up = trend(Dimension(2, "attn", (224.0, 256.0, 288.0)), (20.4, 20.2, 20), gamma)
    new, (done,) = evolved(space, [up], "next")
    assert done.after == (288, 320, 352)
    assert [new.widths("attn", i) for i in range(4)] == [(224, 256, 288)] * 2 + [(288, 320, 352), (224, 256, 288)]
    assert new.widths("heads", 2) == (9, 10, 11)
    assert all(b["attn"] == 32 * b["heads"] for a in new.sample(20) for s in a.stages for b in s.blocks)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=200))
def test_et_error_lies_between_the_best_and_the_mean(errors):
    found = et_error(errors)
    assert min(errors) - 1e-9 <= found <= np.mean(errors) + 1e-9


def test_et_error_by_hand():
    errors = [10.0] * 50 + [20.0] * 950
    assert et_error(errors) == pytest.approx((19.5 + 10) / 2)  # eq. 5 and the top 50
    with pytest.raises(sf.SuperformerError, match="no architecture"):
        et_error([])


@pytest.mark.parametrize(
    ("errors", "rounding", "steps", "after"),
    [
        ((20, 20, 20), "floor", 0, (2, 3, 4)),
        ((20, 19.9, 19.8), "floor", -1, (3, 4, 5)),  # floor(-0.1 / 0.4): any fall moves it up
        ((20, 19.9, 19.8), "symmetric", 0, (2, 3, 4)),
        ((20, 20.1, 20.2), "floor", 0, (2, 3, 4)),
        ((20, 20.5, 21), "floor", 1, (1, 2, 3)),
        ((20, 21, 22), "floor", 2, (1, 2)),  # 0 is removed
        ((20, 40, 60), "floor", 50, (2, 3, 4)),  # nothing would be left
        ((20, 19, 18), "symmetric", -2, (4, 5, 6)),
    ],
)
def test_equation_8(errors, rounding, steps, after):
    found = trend(Dimension(0, "depth", (2.0, 3.0, 4.0)), errors, gamma=1, rounding=rounding)
    assert (found.steps, found.after) == (steps, after)


def test_a_space_moves_dimension_by_dimension():
    space = sf.space("s3-initial")
    deeper = trend(Dimension(2, "depth", (2.0, 3.0, 4.0)), (21, 20.5, 20), gamma=1)
    wider = trend(Dimension(0, "width", (224.0, 256.0, 288.0)), (21, 21.3, 21.6), gamma=64)
    ratios = trend(Dimension(1, "mlp", (3.0, 3.5, 4.0)), (21, 20.8, 20.6), gamma=0.5)
    new, done = evolved(space, [deeper, wider, ratios], "next")
    assert new.name == "next"
    assert new.stages[2].depths == (4, 5, 6)
    assert [s.depths for i, s in enumerate(new.stages) if i != 2] == [(2, 3, 4)] * 3
    assert new.widths("width", 0) == (160, 192, 224)
    assert new.widths("width", 1) == (224, 256, 288)
    assert [float(v) for v in new.stages[1].blocks[0]["mlp"].values] == [3.5, 4.0, 4.5]
    assert [t.after for t in done] == [(4, 5, 6), (160, 192, 224), (3.5, 4.0, 4.5)]
    assert sf.Space.from_json(new.to_json()) == new


def test_moves_by_lot_are_as_large():
    """With both directions, and lists that would end at nothing stay."""
    depth = trend(Dimension(2, "depth", (2.0, 3.0, 4.0)), (21, 20.5, 20), gamma=1)
    wide = trend(Dimension(0, "width", (64.0, 128.0)), (10, 40), gamma=64)
    settings, found = SpaceEvolution(), set()
    for seed in range(20):
        one, two = by_lot([depth, wide], settings, np.random.default_rng(seed))
        assert (abs(one.steps), abs(two.steps)) == (abs(depth.steps), abs(wide.steps))
        assert one.after in ((4, 5, 6), (1, 2))
        found.add((one.steps, two.steps))
    assert len(found) == 4


def test_what_a_family_cannot_have_is_left_out():
    """Windows larger than the map; attention widths that heads do not divide."""
    space = space_of(sf.recipe("s3-laptop"))
    up = trend(Dimension(1, "window", (2.0, 4.0)), (20, 10), gamma=2)
    new, done = evolved(space, [up], "next")
    assert done[0].after != up.after
    assert max(new.widths("window", 1)) <= 4
    deit = space_of(sf.recipe("vitas-deit-laptop"))
    odd = trend(Dimension(0, "attn", (48.0, 64.0, 80.0, 96.0)), (20, 19, 18, 17), gamma=3)
    kept, done = evolved(deit, [odd], "next")
    assert kept.widths("attn") == tuple(int(v) for v in done[0].after)


@given(st.integers(0, 18), st.lists(st.floats(0, 60), min_size=3, max_size=3))
def test_every_step_gives_a_space(which, errors):
    space = sf.space("s3-initial")
    own = dimensions(space)[which]
    gamma = SpaceEvolution().gamma[own.name]
    new, _ = evolved(space, [trend(own, errors[: len(own.values)], gamma)], "next")
    assert new.size > 0
    assert new.smallest() in new


def test_a_space_never_leaves_its_limit():
    """However often every dimension wants to grow, each sub-space that is measured next has networks within it."""
    recipe, most = sf.recipe("s3-laptop"), 4.4e6
    space, gamma = space_of(recipe), recipe.evolve.gamma
    within = functools.partial(measurable, num_classes=10, macs_max=most)
    for t in range(3):
        up = [trend(d, range(len(d.values), 0, -1), gamma[d.name]) for d in dimensions(space)]
        assert any(own.steps < 0 for own in up)
        space, _ = evolved(space, up, f"{t}", within)
        for part in [space, *(part for _, parts in subspaces(space) for part in parts.values())]:
            assert part.sample(2, macs=(None, most), num_classes=10)
