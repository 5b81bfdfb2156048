"""Which sub-networks a step trains: rules, limits, warm-up, the probability of identities."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.released import FIXTURES
from helpers.samplers import SKIPPED, SMALL, sampler
from helpers.strategies import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import superformer as sf
from superformer.train import sampling
from superformer.train.sampling import Turn

# --- rules ---


@given(
    spaces,
    st.sampled_from(("single", "sandwich", "multi")),
    st.integers(0, 3),
    st.integers(0, 300),
    st.sampled_from((0.0, 0.5)),
)
def test_the_rules_need_no_state(space, rule, seed, step, share):
    """A step's networks depend on the seed and its number alone, in whatever order steps are asked for."""
    given = {"rule": rule, "networks": 2, "warmup": share}
    one, other = (sampler(space, seed=seed, steps=250, **given) for _ in range(2))
    for k in (0, 299, step + 1):
        other.turns(k)
    turns = one.turns(step)
    assert turns == other.turns(step) == one.turns(step)
    for turn in turns:
        assert all(arch in space for arch in turn.archs)
    assert {"single": [1], "sandwich": [1, 1, 1, 1], "multi": [2]}[rule] == [len(t.archs) for t in turns]


def test_seeds_and_steps_differ():
    archs = [sampler(sf.space("vitas-v1"), seed=seed).turns(step)[0].archs[0] for seed in (0, 1) for step in (0, 1, 64)]
    assert len(set(archs)) == 6


def test_the_sandwich():
    """S3, algorithm 2: the largest, the smallest and two random ones; the largest first, as it teaches (NASViT)."""
    turns = sampler(SMALL, rule="sandwich", networks=2).turns(7)
    assert [t.role for t in turns] == ["largest", "subnet", "subnet", "subnet"]
    assert [t.archs[0] for t in turns[:2]] == [SMALL.largest(), SMALL.smallest()]
    assert [len(sampler(SMALL, rule="sandwich", networks=n).turns(0)) for n in (0, 1, 5)] == [2, 3, 7]


@pytest.mark.parametrize("rule", ["single", "multi"])
def test_every_choice_is_uniform(rule):
    own = sampler(SMALL, rule=rule, networks=3, steps=4000)
    archs = [arch for step in range(2000) for arch in own.turns(step)[0].archs]
    blocks = [b for a in archs for b in a.stages[0].blocks]
    for values in (
        [a.choices["width"] for a in archs],
        [a.depth for a in archs],
        [b["heads"] for b in blocks],
        [b["mlp"] for b in blocks],
    ):
        assert chisquare(list(Counter(values).values())).pvalue > 1e-3


def test_some_networks_are_even():
    """They differ in depth alone (and in the size of pictures); all else is the largest. The others are as ever."""
    own, plain = sampler(SMALL, rule="multi", networks=4, even=0.5), sampler(SMALL, rule="multi", networks=4)
    most, pairs = SMALL.largest(), [(a, b) for s in range(200) for a, b in
                                    zip(own.turns(s)[0].archs, plain.turns(s)[0].archs, strict=True)]  # fmt: skip
    even = [a for a, b in pairs if a != b]
    assert 0.3 < len(even) / len(pairs) < 0.55
    assert all(a.depth == b.depth for a, b in pairs)
    assert {a.choices["width"] for a in even} == {most.choices["width"]}
    assert all(b == most.stages[0].blocks[0] for a in even for b in a.stages[0].blocks)
    with pytest.raises(sf.SuperformerError, match="even=0"):
        sampler(SMALL, even=0.5, macs=(0, 1e6))


def test_uniform_over_architectures():
    own = sampler(SMALL, over="architectures")
    counts = Counter(own.turns(step)[0].archs[0] for step in range(8400))
    assert len(counts) == SMALL.size == 84
    assert chisquare(list(counts.values())).pvalue > 1e-3


def test_the_networks_of_a_batch_are_independent():
    """As the paper says; the released code never gives two networks of one device the same value of a list."""
    own = sampler(SMALL, rule="multi", networks=2)
    pairs = Counter(tuple(a.choices["width"] for a in own.turns(step)[0].archs) for step in range(2000))
    assert len(pairs) == 4
    assert chisquare(list(pairs.values())).pvalue > 1e-3


def test_sides_of_bilateral_sharing():
    assert [sampler(SMALL, "bilateral", sides=s).turns(0)[0].sides for s in ("left", "both")] == [
        ("left",),
        ("left", "right"),
    ]
    drawn = [sampler(SMALL, "bilateral", sides="random", rule="sandwich").turns(k) for k in range(40)]
    assert {t[0].sides for t in drawn} == {("left",), ("right",)}
    assert all(len({turn.sides for turn in t}) == 1 for t in drawn)
    with pytest.raises(sf.SuperformerError, match="bilateral"):
        sampler(SMALL, "cyclic", sides="both")


def test_what_covers_all_weights():
    """The largest network uses every weight, unless some are private to other choices."""
    assert sampler(SMALL, rule="sandwich").covers_all()
    assert sampler(sf.space("vit-resnas-tiny"), rule="sandwich").covers_all()
    assert not sampler(SMALL).covers_all()
    assert sampler(SMALL.point(SMALL.largest())).covers_all()
    for private in ("vitas-v1", "nasvit-released"):
        assert not sampler(sf.space(private), rule="sandwich").covers_all()


@given(spaces)
@settings(max_examples=20)
def test_covering_shows_in_the_gradients(space):
    """If the largest network covers all, every weight gets a gradient from it; if not, some weight gets none."""
    net = sf.supernet(space, 10).double()
    generator = torch.Generator().manual_seed(0)
    for p in net.parameters():
        p.data += 0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    x = torch.randn(3, 3, space.img_size, space.img_size, generator=generator, dtype=torch.float64)
    net(x, space.largest()).square().sum().backward()
    if sampler(space, rule="sandwich").covers_all():
        assert all(p.grad is not None for p in net.parameters())
    else:
        assert any(p.grad is None or (p.grad == 0).any() for p in net.parameters())


def test_mistakes():
    with pytest.raises(sf.SuperformerError, match="networks of at least 1"):
        sampler(SMALL, rule="multi", networks=0)
    with pytest.raises(sf.SuperformerError, match="from 0"):
        sampler(SMALL).turns(-1)
    assert Turn((SMALL.largest(),)) == Turn((SMALL.largest(),), ("left",), "subnet")


# --- limits ---


@given(spaces, st.floats(0.2, 0.8), st.sampled_from((0.0, 0.5)), st.sampled_from(("single", "sandwich", "multi")))
@settings(max_examples=20)
def test_limits_hold(space, at, share, rule):
    """All random networks lie within the limits, at every step of a warm-up, too."""
    costs = np.sort(sf.cost(space, space.sample(200, 1), 10).macs)
    low, high = int(costs[int(at * 100)]), int(costs[int(at * 100) + 99])
    own = sampler(space, rule=rule, networks=2, macs=(low, high), warmup=share, steps=200)
    for step in (0, 30, 99, 150):
        archs = [a for t in own.turns(step)[2 if rule == "sandwich" else 0 :] for a in t.archs]
        macs = sf.cost(space, archs, 10).macs
        assert ((low <= macs) & (macs <= high)).all()


def test_limits_of_a_sandwich_leave_its_ends():
    low, high = np.quantile(sf.cost(SMALL, SMALL.sample(100, 0), 10).params, (0.4, 0.6))
    turns = sampler(SMALL, rule="sandwich", networks=2, params=(low, high)).turns(0)
    assert [t.archs[0] for t in turns[:2]] == [SMALL.largest(), SMALL.smallest()]
    assert all(low <= p <= high for p in sf.cost(SMALL, [t.archs[0] for t in turns[2:]], 10).params)


# --- warm-up ---


def test_the_released_warm_up_schedule():
    schedule = json.loads((FIXTURES / "vit_resnas" / "warmup_schedule.json").read_text())["schedule"]
    for n, epochs in schedule.items():
        assert [sampling.enabled(int(n), epoch, 30) for epoch in range(33)] == [count for count, _ in epochs]
    stage = sf.space("vit-resnas-tiny").stages[0]
    assert [sampling.skip_probability(stage, epoch, 30) for epoch in (0, 19, 20, 29, 30)] == pytest.approx(
        [0, 0, 1 / 3, 1 / 3, 1 / 2]
    )


@given(spaces, st.integers(1, 50), st.data())
def test_the_warm_up_admits_only_the_largest(space, length, data):
    """Every choice and every depth is among the largest ones that are enabled; the whole space at the end."""
    step = data.draw(st.integers(0, length))
    part = sampling.warmup_space(space, step, length)
    if step == 0:
        assert part.size == 1
        assert part.largest() == space.largest()
    if step == length:
        assert part is space
    genes = space.encode(part.sample(20, 0))
    population = space.population(genes)
    free = {column for where in space.layout.stages for column in where.on.values()}
    idle = np.zeros(genes.shape, dtype=bool)
    for stage, where in zip(population.stages, space.layout.stages, strict=True):
        for p, columns in enumerate(where.blocks):
            for column in columns.values():
                idle[:, column] |= ~stage.active.any(1) if stage.stage.tied else ~stage.active[:, p]
    for column, bound in enumerate(space.bounds):
        if column in free:
            assert sampling.enabled(4, step, length) > 2 or genes[:, column].all()
        else:
            lowest = bound - sampling.enabled(bound, step, length)
            assert (genes[~idle[:, column], column] >= lowest).all()


@given(spaces)
def test_the_warm_up_grows(space):
    sizes = [sampling.warmup_space(space, step, 20).size for step in range(21)]
    assert sizes == sorted(sizes)
    assert sizes[-1] == space.size


def test_skippable_blocks_in_the_warm_up():
    """Half the final odds first: 1/3 on the way to 1/2, 1/9 on the way to 1/5."""
    for final, between in ((1 / 2, 1 / 3), (1 / 5, 1 / 9)):
        space = replace(SKIPPED, stages=(replace(SKIPPED.stages[0], depth=2, skip=final),))
        assert [sampling.skip_probability(space.stages[0], step, 30) for step in (19, 20, 30)] == pytest.approx(
            [0, between, final]
        )
        own = sampler(space, warmup=0.5, steps=6000)
        skipped = 2 - np.mean([own.turns(step)[0].archs[0].depth for step in range(2000, 2900)])
        assert skipped / 2 == pytest.approx(between, abs=0.04)


def test_a_run_passes_through_the_warm_up():
    own = sampler(SMALL, rule="sandwich", networks=1, warmup=0.25, steps=400)
    assert {t.archs[0] for t in own.turns(0)} == {SMALL.largest()}
    assert own.turns(100)[1].archs[0] == SMALL.smallest()
    assert own.space_at(100) is SMALL
    seen = [own.turns(step)[1].archs[0] for step in range(101)]
    assert len(set(seen)) == 3  # two lists of two values open together, at the end, and one of three half way


def test_a_warm_up_within_limits_begins_where_they_can_be_met():
    costs = np.sort(sf.cost(SMALL, SMALL.sample(300, 0), 10).macs)
    own = sampler(SMALL, warmup=0.5, macs=(None, int(costs[60])), steps=100)
    assert SMALL.largest() not in own.space_at(0) or own.space_at(0).size > 1
    assert sf.cost(SMALL, [own.turns(0)[0].archs[0]], 10).macs[0] <= costs[60]
