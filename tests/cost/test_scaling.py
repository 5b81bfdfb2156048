"""Uniform scaling: of a network to a budget, by itself and in a space."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.strategies import spaces_with_archs
from hypothesis import given, settings
from hypothesis import strategies as st

import superformer as sf
from superformer.cost import scaling
from superformer.cost.latency_table import LatencyTable
from superformer.cost.scaling import baseline, origins, resampled
from superformer.search.problem import exact_costs
from superformer.space import Arch, Space, StageArch, Values, point
from superformer.spaces import arch as published

NAMED = ("vitas_1_3g", "vitas_1g", "twins_svt_s", "s3_tiny", "vit_resnas_tiny", "resnet50_plain", "nasvit_a1")
SPACE = sf.Space(
    "mixed",
    "vit",
    (sf.Stage({"heads": (1, 2, 4), "attn": sf.times(8, of="heads"), "mlp": (16, 32, 48, 64)}, depth=range(1, 7)),),
    {"patch_size": 16, "width": (16, 24, 32, 40, 48)},
    32,
)


def count(arch: Arch, name: str = "macs", space: Space | None = None, classes: int = 1000) -> float:
    return float(getattr(sf.cost(space or point(arch), [arch], classes), name)[0])


@pytest.mark.parametrize("which", NAMED)
def test_published_networks_come_near_any_budget(which: str) -> None:
    """Of every family, for half and twice the cost: within 3 %, deeper and wider together."""
    arch = published(which)
    assert sf.scaled(which, macs=count(arch)) == arch
    for name, share in (("macs", 0.5), ("params", 1.5)):
        budget = share * count(arch, name)
        found = sf.scaled(arch, **{name: budget})
        assert abs(count(found, name) / budget - 1) < 0.03, (name, share)
        assert (found.depth < arch.depth) == (share < 1)
        assert (found.resolution, found.options) == (arch.resolution, arch.options)
        for before, after in zip(arch.stages, found.stages, strict=True):
            kept = [{k: b[k] for k in ("window", "type") if k in b} for s in (before, after) for b in s.blocks]
            assert all(k in kept[: len(before.blocks)] for k in kept)
            sizes = [{b.int("attn") // b.int("heads") for b in s.blocks if "heads" in b} for s in (before, after)]
            assert sizes[1] <= sizes[0], "heads keep their size"


def test_deit_tiny_of_table_2() -> None:
    """ViTAS v1, table 2: DeiT-Ti at 112 pixels, 280M, "uniformly scaled" to 350M. (The table's budgets are its own.)"""
    block = Values(heads=3, attn=192, mlp=768)
    deit = sf.Arch("vit", 112, Values(patch_size=16, width=192), (StageArch((block,) * 12),))
    assert count(deit, classes=100) == pytest.approx(280e6, rel=0.05)
    larger = sf.scaled(deit, macs=350e6, num_classes=100)
    assert count(larger, classes=100) == pytest.approx(350e6, rel=0.02)
    assert larger.depth == 13
    assert larger.choices.int("width") == 208
    assert set(larger.stages[0].blocks) == {Values(heads=3, attn=192, mlp=larger.stages[0].blocks[0].int("mlp"))}


@settings(max_examples=15)
@given(spaces_with_archs(), st.sampled_from(("macs", "params")), st.floats(0.25, 3), st.floats(1, 2))
def test_laws_of_free_networks(drawn, name: str, share: float, more: float) -> None:
    """Scaled to its own cost a network is itself; a larger budget never gives a cheaper network; what comes out is a
    network that its family has, nearer to the budget than one step of its smallest numbers."""
    _, (arch,) = drawn
    own = count(arch, name, classes=10)
    assert sf.scaled(arch, **{name: own}, num_classes=10) == arch.canonical()
    found = []
    for budget in (share * own, more * share * own):
        try:
            found.append(sf.scaled(arch, **{name: budget}, num_classes=10))
        except sf.InfeasibleError as error:
            assert "the smallest has" in str(error)  # noqa: PT017
    costs = [count(a, name, classes=10) for a in found]
    assert costs == sorted(costs)
    for a in found:
        assert Arch.from_json(a.to_json()) == a, "a family's own rules hold"


@settings(max_examples=25)
@given(spaces_with_archs(), st.floats(0, 1), st.floats(0, 1))
def test_laws_in_a_space(drawn, one: float, other: float) -> None:
    space, (arch,) = drawn
    macs = exact_costs(space, space.encode([arch, space.smallest(), space.largest()]), 10)["macs"]
    assert count(sf.scaled(arch, macs=macs[0], space=space, num_classes=10), space=space, classes=10) == macs[0]
    found = []
    for share in sorted((one, other)):
        budget = macs[1] + share * (macs[2] - macs[1])
        for origin in (space.largest(), arch):
            try:
                scaled = sf.scaled(origin, macs=budget, space=space, num_classes=10)
            except sf.InfeasibleError:
                continue
            assert scaled in space
            if origin != arch:
                found.append(count(scaled, space=space, classes=10))
    assert found == sorted(found)


@pytest.mark.parametrize("which", NAMED)
def test_a_scaled_network_runs(which: str) -> None:
    small = sf.scaled(which, params=2.5e6, num_classes=7)
    net = sf.model(small, num_classes=7).eval()
    assert sum(p.numel() for p in net.parameters()) == pytest.approx(2.5e6, rel=0.05)
    with torch.no_grad():
        assert net(torch.zeros(1, 3, small.resolution, small.resolution)).shape == (1, 7)


@given(st.floats(0, 1))
def test_in_a_space_it_stays_uniform_and_comes_near(share: float) -> None:
    low, high = exact_costs(SPACE, SPACE.encode([SPACE.smallest(), SPACE.largest()]), 10)["macs"]
    budget = low + share * (high - low)
    found = sf.scaled(SPACE.largest(), macs=budget, space=SPACE, num_classes=10)
    assert len(set(found.stages[0].blocks)) == 1
    assert abs(count(found, space=SPACE, classes=10) - budget) < 0.08 * high


@given(spaces_with_archs(), st.floats(0.05, 1), st.floats(0.05, 1))
def test_a_baseline_uses_the_limits_up(drawn, one: float, other: float) -> None:
    """Within all limits, and the network of the same proportions that is a step larger is not."""
    space, _ = drawn
    costs = {n: v[1] for n, v in exact_costs(space, space.encode([space.smallest(), space.largest()]), 10).items()}
    limits = {"macs": (0.0, one * costs["macs"]), "params": (0.0, other * costs["params"])}

    def of(genes):
        return exact_costs(space, genes, 10)

    found = baseline(space, of, limits)
    smallest = of(space.encode([space.smallest()]))
    if found is None:
        assert any(smallest[n][0] > high for n, (_, high) in limits.items())
    else:
        assert all(of(space.encode([found]))[n][0] <= high for n, (_, high) in limits.items())
    if one == other == 1:
        assert found == space.largest()


def test_a_throughput_is_kept_by_a_baseline() -> None:
    def costs(genes):
        return {"throughput": 1e9 / exact_costs(SPACE, genes, 10)["macs"]}

    found = baseline(SPACE, costs, {"throughput": (3e3, math.inf)})
    assert found is not None
    rate = costs(SPACE.encode([found]))["throughput"][0]
    assert 3e3 <= rate < 3.6e3


@given(st.lists(st.sampled_from(("local", "global")), min_size=1, max_size=9), st.integers(1, 20))
def test_more_blocks_are_those_of_before_and_one_more(types: list[str], depth: int) -> None:
    blocks = [Values(type=t, mlp=k) for k, t in enumerate(types)]
    fewer, more = (sorted(map(repr, resampled(blocks, d))) for d in (depth, depth + 1))
    assert len(more) == depth + 1
    for block in fewer:
        more.remove(block)
    assert len(more) == 1
    assert list(resampled(blocks, len(blocks))) == blocks
    assert [b["type"] for b in resampled(blocks, depth)] == [types[k % len(types)] for k in range(depth)]


def test_latency_and_throughput(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a table of a space, and measured here (nobody asserts a time: the clock counts MACs)."""

    def timer(archs, seconds):
        return [1e-3 + 1e-9 * count(a, space=SPACE, classes=10) for a in archs]

    table = LatencyTable.build(SPACE, 10, networks=24, timer=timer)
    middle = float(np.mean(table.latency(SPACE, [SPACE.smallest(), SPACE.largest()])))
    found = sf.scaled(SPACE.largest(), latency=middle, space=SPACE, num_classes=10, table=table)
    assert float(table.latency(SPACE, found)[0]) == pytest.approx(middle, rel=0.05)
    assert found == sf.scaled(SPACE.largest(), throughput=1 / middle, space=SPACE, num_classes=10, table=table)

    class Timed:
        def __init__(self, net, batch):
            self.median = 1e-9 * batch * count(net.space.smallest(), classes=10)

    monkeypatch.setattr(scaling, "measure", lambda net, img_size, batch, seconds: Timed(net, batch))
    own = count(SPACE.largest(), classes=10)
    for how in ({"latency": 2e-9 * own}, {"throughput": 1e9 / (2 * own)}):
        assert count(sf.scaled(SPACE.largest(), num_classes=10, **how), classes=10) == pytest.approx(2 * own, rel=0.2)


def test_a_real_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "SECONDS", 0.01)
    monkeypatch.setattr(scaling, "MEASURED", 0.2)
    small = SPACE.smallest()
    assert sf.scaled(small, latency=2e-3, num_classes=10).family == "vit"


def test_budgets_that_are_none() -> None:
    arch = SPACE.largest()
    for given_ in ({}, {"macs": 1e6, "params": 1e5}):
        with pytest.raises(sf.SuperformerError, match="needs one budget"):
            sf.scaled(arch, **given_)
    for wrong in (0, -1, math.nan, math.inf, True, "600M"):
        with pytest.raises(sf.SuperformerError, match="give a number above 0"):
            sf.scaled(arch, macs=wrong)
    with pytest.raises(sf.InfeasibleError, match="has 10 macs: the smallest has"):
        sf.scaled(arch, macs=10)
    with pytest.raises(sf.InfeasibleError, match="in mixed: the largest has"):
        sf.scaled(arch, macs=1e12, space=SPACE)
    with pytest.raises(sf.SuperformerError, match="give space="):
        sf.scaled(arch, macs=1e6, table=object())
    with pytest.raises(sf.ArchError, match="holds swin networks"):
        sf.scaled(arch, macs=1e9, space="s3-initial")
    with pytest.raises(sf.SuperformerError, match="unknown model"):
        sf.scaled("vitas_1gg", macs=1e9)
    assert [a in SPACE for a in origins(SPACE)] == [True] * 3
