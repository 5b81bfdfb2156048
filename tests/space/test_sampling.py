from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from helpers.strategies import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import superformer as sf
from superformer.space import Space, Stage
from superformer.space.sampling import depth_weights

BLOCK = {"heads": (1, 2), "attn": 4, "mlp": (4, 8)}
SPACES = {
    "shifted": Space("shifted", "vit", (Stage(BLOCK, depth=(1, 2)),), {"patch_size": (8, 4), "width": (6, 8)}, 16),
    "free": Space(
        "free", "vit", (Stage(BLOCK, depth=3, skippable=(0, 2), skip=0.2),), {"patch_size": 8, "width": (6, 8)}, 16
    ),
    "tied": Space("tied", "vit", (Stage(BLOCK, depth=(0, 1, 3), tied=True),), {"patch_size": 8, "width": (6, 8)}, 16),
    "stages": Space(
        "stages",
        "vit_res",
        (Stage(BLOCK, 1, {"width": (4, 6)}), Stage(BLOCK, (1, 2), {"width": (6, 8)})),
        img_size=28,
        options={"stem": 4},
    ),
    "entries": Space(
        "entries",
        "resnet",
        (
            Stage({"mid1": 4, "mid2": (3, 5)}, (0, 1), {"width": (4, 8), "entry1": (3, 4), "entry2": 4}),
            Stage({"mid1": 4, "mid2": 4}, 1, {"width": (6, 9), "entry1": (2, 5), "entry2": (3, 4, 6)}),
        ),
        {"stem": (3, 4)},
        img_size=16,
    ),
}


def probabilities(space: Space, over: str) -> dict[sf.Arch, float]:
    """By enumeration, straight from the definition: every choice uniform, or every architecture."""
    grid = np.indices(space.bounds).reshape(len(space.bounds), -1).T
    archs = space.decode(grid)
    if over == "architectures":
        return dict.fromkeys(set(archs), 1 / space.size)
    out: dict[sf.Arch, float] = {}
    for arch in set(archs):
        p = 1 / np.prod([len(c.values) for c in space.choices.values()])
        for stage, own in zip(space.stages, arch.stages, strict=True):
            p /= np.prod([len(c.values) for c in stage.choices.values()])
            p *= depth_weights(stage, "choices")[stage.depths.index(len(own.blocks))] / stage.sequences(len(own.blocks))
        out[arch] = p
    return out


def fits(drawn: list[sf.Arch], expected: dict[sf.Arch, float]) -> None:
    counts = Counter(drawn)
    assert set(counts) <= set(expected)
    keys = list(expected)
    total = sum(expected.values())
    assert chisquare([counts[k] for k in keys], [len(drawn) * expected[k] / total for k in keys]).pvalue > 1e-4


def test_expected_probabilities_are_the_definition():
    """Depth first: a depth of 0 or 3 with one draw of the tied block; identities of free positions one in five."""
    assert depth_weights(SPACES["shifted"].stages[0], "choices").tolist() == [0.5, 0.5]
    assert np.allclose(depth_weights(SPACES["free"].stages[0], "choices"), [0.04, 0.32, 0.64])
    assert np.allclose(depth_weights(SPACES["shifted"].stages[0], "architectures"), [4 / 20, 16 / 20])
    for space in SPACES.values():
        assert np.isclose(sum(probabilities(space, "choices").values()), 1)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("over", ["choices", "architectures"])
def test_distribution(name, over):
    fits(SPACES[name].sample(20_000, seed=1, over=over), probabilities(SPACES[name], over))


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("over", ["choices", "architectures"])
@pytest.mark.parametrize("limited", [("macs",), ("params",), ("macs", "params")])
def test_distribution_within_limits(name, over, limited):
    space = SPACES[name]
    expected = probabilities(space, over)
    costs = sf.cost(space, list(expected), num_classes=10)
    limits = {q: tuple(np.quantile(getattr(costs, q), (0.2, 0.75)).tolist()) for q in limited}
    inside = np.all([(getattr(costs, q) >= lo) & (getattr(costs, q) <= hi) for q, (lo, hi) in limits.items()], axis=0)
    kept = {arch: p for (arch, p), ok in zip(expected.items(), inside, strict=True) if ok}
    assert 2 < len(kept) < len(expected)
    fits(space.sample(20_000, seed=2, over=over, num_classes=10, **limits), kept)


def test_paths_of_free_positions_are_uniform_given_the_depth():
    space = SPACES["free"]
    for limits in ({}, {"macs": (0, 1e9)}):
        genes = space.sample_genes(20_000, seed=3, **limits)
        on = genes[:, [space.gene_names.index(f"stage0.block{p}.on") for p in (0, 2)]]
        assert abs(on.mean() - 0.8) < 0.01
        assert abs((on[:, 0] * on[:, 1]).mean() - 0.64) < 0.015


@given(spaces, st.integers(0, 99), st.sampled_from(("choices", "architectures")))
@settings(max_examples=25)
def test_samples_lie_within_limits(space, seed, over):
    some = sf.cost(space, space.sample(20, seed=seed, over=over), 5)
    lo, hi = sorted((int(some.macs[0]), int(some.macs[1])))
    cost = sf.cost(space, space.sample_genes(30, seed, macs=(lo, hi), num_classes=5, over=over), 5)
    assert lo <= cost.macs.min() <= cost.macs.max() <= hi
    both = {"macs": (lo, hi), "params": (min(some.params), max(some.params))}
    cost = sf.cost(space, space.sample_genes(30, seed, **both, num_classes=5, over=over), 5)
    assert cost.params.max() <= max(some.params)
    assert cost.macs.max() <= hi


def test_one_exact_value_can_be_asked_for():
    space = sf.space("vit-resnas-tiny")
    cost = sf.cost(space, [space.smallest()])
    assert space.sample(3, macs=(cost.macs[0], cost.macs[0])) == [space.smallest()] * 3


@pytest.mark.parametrize("space", ["vit-resnas-tiny", "vitas-v1", "autoformer-small", "vitas-deit-tiny"])
def test_narrow_windows_of_published_spaces(space):
    space = sf.space(space)
    macs = sf.cost(space, space.sample_genes(2000, 0)).macs
    for q in (5, 50, 95):
        target = float(np.percentile(macs, q))
        found = sf.cost(space, space.sample_genes(50, 1, macs=(0.99 * target, 1.01 * target))).macs
        assert 0.99 * target <= found.min() <= found.max() <= 1.01 * target


def test_sampling_is_reproducible():
    space = sf.space("vitas-v1")
    assert space.sample(5, seed=7) == space.sample(5, seed=7) != space.sample(5, seed=8)
    assert space.sample(5, seed=7, macs=(0, 1e9)) == space.sample(5, seed=7, macs=1e9)
    assert space.sample(0) == []
    rng = np.random.default_rng(0)
    assert space.sample(2, rng) != space.sample(2, rng)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"macs": (1, 2)}, "reachable: 752,489,984 to 3,497,553,920 macs"),
        ({"macs": (1e12, None)}, "reachable: 752,489,984 to 3,497,553,920 macs"),
        ({"params": 10}, "reachable: 15,492,576 to 84,814,464 params"),
        ({"macs": (0, 0.8e9), "params": (8e7, 9e7)}, "together"),
        ({"macs": (2e9, 1e9)}, "leaves nothing"),
        ({"macs": "much"}, "not a limit"),
        ({"macs": (752_489_985, 752_489_986)}, "nearest seen"),
    ],
)
def test_limits_nobody_can_meet(limits, says):
    with pytest.raises(sf.SuperformerError, match=says):
        sf.space("vit-resnas-tiny").sample(5, **limits)


def test_unknown_way_of_sampling():
    with pytest.raises(sf.SuperformerError, match="did you mean 'architectures'"):
        sf.space("vitas-v1").sample(5, over="architecture")
