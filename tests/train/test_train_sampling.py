"""Which sub-networks a step trains: rules, limits, warm-up, the probability of identities."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from helpers.released import FIXTURES
from helpers.strategies import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import superformer as sf
from superformer.cost.latency_table import LatencyTable
from superformer.recipes import Recipe
from superformer.recipes.settings import Identity, Sampling
from superformer.runs.storage import load_supernet
from superformer.train import loop, sampling
from superformer.train.loop import train
from superformer.train.sampling import Sampler, Turn

SMALL = sf.Space(
    "small",
    "vit",
    (sf.Stage({"heads": (1, 2), "attn": sf.times(8, of="heads"), "mlp": (16, 32, 48)}, depth=(1, 2)),),
    {"patch_size": 16, "width": (16, 24)},
    32,
)
"""2 widths x (6 + 36) = 84 architectures."""
SKIPPED = replace(SMALL, name="skipped", stages=(replace(SMALL.stages[0], depth=2, skippable=(0, 1), skip=0.5),))


def sampler(space: sf.Space, sharing: str = "ordinal", seed: int = 0, steps: int = 1000, **given: object) -> Sampler:
    return Sampler(space, recipe_with(sharing, seed, **given), num_classes=10, total_steps=steps)


def recipe_with(sharing: str = "ordinal", seed: int = 0, **given: object) -> Recipe:
    return Recipe.read(
        {"name": "small", "space": {}, "train": {"epochs": 1}, "sharing": sharing, "seed": seed, "sampling": given},
        "tests",
    )


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


# --- the probability of identities ---


def released_flops(patch: int, width: int, blocks: list[tuple[int, int]]) -> int:
    """The released counter: the classifier once for each patch, the class token never."""
    n = (224 // patch) ** 2
    inner = sum(3 * n * width * a + 2 * n * n * a + n * a * width + 2 * n * width * f for a, f in blocks)
    return 3 * width * n * patch**2 + inner + n * width * 1000


def released_sample(rng: random.Random, probability: float) -> tuple[list[int], list[float], int]:
    """A network as the released code draws it: operation genes, ratios, FLOPs."""
    ratios = [i / 10 for i in range(1, 11)]
    genes, widths = [rng.randint(0, 2)], [rng.choice(ratios)]
    for _ in range(16):
        genes.append(4 if rng.random() < probability else rng.randint(0, 3))
        widths += [rng.choice(ratios), rng.choice(ratios)]
    own = [(round(a * 1440) // 3, round(f * 1440)) for a, f in zip(widths[1::2], widths[2::2], strict=True)]
    blocks = [b for b, gene in zip(own, genes[1:], strict=True) if gene != 4]
    return [*genes, 0, 0], widths, released_flops((14, 16, 32)[genes[0]], round(widths[0] * 384), blocks)


@pytest.fixture(scope="module")
def released() -> dict:
    return json.loads((FIXTURES / "vitas" / "identity_probability.json").read_text())


def test_the_released_sampling(released):
    """Our reading of how the released code samples and counts gives its very samples."""
    rng = random.Random(3)
    for genes, widths, flops in released["samples"]:
        ours = released_sample(rng, 0.5)
        assert (ours[0], ours[2]) == (genes, flops)
        assert ours[1] == pytest.approx(widths)


def test_the_released_probabilities(released):
    """0.50, 0.54 and 0.36, with the released random numbers and counter."""
    for case in released["id_prop"].values():
        rng = random.Random(0)

        def mean(probability: float, rng: random.Random = rng) -> float:
            return sum(released_sample(rng, probability)[2] for _ in range(sampling.SAMPLES)) / sampling.SAMPLES

        assert sampling.search_probability(mean, case["flops_min"], case["flops_constraint"]) == case["id_prop"]


def test_our_draws_cost_what_theirs_do(released):
    """The space with another ``skip`` has the released curve of mean FLOPs."""
    space = sf.space("vitas-v1")
    for probability, (theirs, *_) in released["curve"].items():
        archs = sampling.with_identities(space, float(probability)).sample(1000, 5)
        ours = [
            released_flops(
                a.choices.int("patch_size"),
                a.choices.int("width"),
                [(b.int("attn"), b.int("mlp")) for b in a.stages[0].blocks],
            )
            for a in archs
        ]
        assert np.mean(ours) == pytest.approx(theirs, abs=4 * 2**0.5 * np.std(ours) / 1000**0.5)


def test_expected_macs_lie_in_the_window():
    space = sf.space("vitas-v1")
    own = Sampler(space, recipe_with(identity=(6e8, 7e8)), num_classes=1000, total_steps=10)
    assert own.space.stages[0].skip > 0.5
    assert 5.8e8 < sf.cost(own.space, own.space.sample(4000, 9)).macs.mean() < 7.2e8
    assert own.turns(0)[0].archs[0] in space


def test_windows_that_cannot_be_met():
    with pytest.raises(sf.InfeasibleError, match="nothing beyond; lower the window"):
        sampler(SKIPPED, identity=(1e15, None))
    with pytest.raises(sf.InfeasibleError, match="nothing beyond; raise the window"):
        sampler(SKIPPED, identity=(None, 1))
    with pytest.raises(sf.InfeasibleError, match="widen the window"):
        sampling.search_probability(lambda p: 1000 - 1000 * p, 444.1, 444.2)
    with pytest.raises(sf.SuperformerError, match="give the limits as macs"):
        sampler(SMALL, identity=(1, 2))
    with pytest.raises(sf.SuperformerError, match="over=architectures"):
        sampler(SKIPPED, identity=(1, None), over="architectures")


# --- the probability for other budgets than MACs ---


def clock(space: sf.Space, seconds: float = 1e-9) -> LatencyTable:
    """A table of a machine whose time is its MACs."""

    def timer(archs, _):
        return [1e-4 + seconds * m for m in sf.cost(space, archs, 10).macs]

    return LatencyTable.build(space, 10, networks=24, batch=4, timer=timer)


@given(st.sampled_from(("params", "latency", "throughput")), st.integers(20, 80))
@settings(max_examples=12)
def test_the_expected_cost_lies_in_the_window(name: str, hundredths: int) -> None:
    """B = E[B(alpha)], for every kind of budget: the expected cost of some probability is met by it or a neighbour."""
    table, other = clock(SKIPPED), sampling.with_identities(SKIPPED, hundredths / 100)
    genes = other.sample_genes(sampling.SAMPLES, np.random.default_rng([0, 3]))
    time = table.latency(SKIPPED, genes).mean()
    value = {"params": sf.cost(SKIPPED, genes, 10).params.mean(), "latency": time, "throughput": table.batch / time}
    wanted = Identity(**{name: (0.999 * value[name], 1.001 * value[name])})
    own = sampling.with_budget(SKIPPED, wanted, [0, 3], 10, None, None if name == "params" else table)
    assert next(s.skip for s in own.stages if s.free) == pytest.approx(hundredths / 100, abs=0.011)


def test_a_pair_still_means_macs_and_a_number_a_probability() -> None:
    pair = sampler(SKIPPED, identity=(1.0, None)).space
    assert pair == sampler(SKIPPED, identity=Identity(macs=(1.0, None))).space
    assert {s.skip for s in sampler(SKIPPED, identity=0.25).space.stages if s.free} == {0.25}
    read = recipe_with(identity={"throughput": [900, 1000], "batch": 256})
    again = type(read).model_validate(read.model_dump(mode="json"))
    assert again.sampling == read.sampling
    assert again.sampling.identity == Identity(throughput=(900, 1000), batch=256)
    for wrong, told in (
        ({"throughput": [1, 2], "macs": [1, 2]}, "one of macs, params, latency, throughput"),
        ({"thruput": [1, 2]}, "did you mean 'throughput'"),
        (1.5, "between 0 and 1"),
        ("much", "or a probability is needed"),
        (True, "or a probability is needed"),
    ):
        with pytest.raises(sf.SuperformerError, match=told):
            Sampling.read({"identity": wrong}, "sampling")
    with pytest.raises(sf.SuperformerError, match="needs a table of times"):
        sampler(SKIPPED, identity=Identity(latency=(0, 1)))
    with pytest.raises(sf.InfeasibleError, match=r"pictures a second.*lower the window"):
        sampling.with_budget(SKIPPED, Identity(throughput=(1e9, None)), [0, 3], 10, None, clock(SKIPPED))


def test_what_was_measured_is_a_fact_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured once; a run that is stopped and goes on asks no clock again and ends with the same weights."""
    table = clock(SKIPPED)
    limit = table.batch / table.latency(SKIPPED, SKIPPED.sample(500, 1)).mean()
    monkeypatch.setattr(LatencyTable, "build", staticmethod(lambda *a, **k: table))
    words = {"identity": {"throughput": [0.9 * limit, 1.1 * limit], "batch": 4, "seconds": 0.1}}
    tree = {"name": "measured", "space": json.loads(SKIPPED.to_json()), "sampling": words}
    tree |= {"train": {"epochs": 2, "batch_size": 256}, "data": {"augment": "none"}, "watch": {"networks": 0}}
    own = Recipe.model_validate(tree)
    whole = train(own, "digits", tmp_path / "whole")
    assert whole.facts()["identity"] == pytest.approx(0.5, abs=0.2)
    assert json.loads((whole.folder / "latency-eager-1-4.json").read_text())["batch"] == 4
    assert whole.recipe() == own

    cut = Recipe.model_validate({**tree, "watch": {"networks": 0, "checkpoint_steps": 1}})
    killed = mock.patch.object(loop._Loop, "_check", side_effect=KeyboardInterrupt)
    with killed, pytest.raises(KeyboardInterrupt):
        train(cut, "digits", tmp_path / "cut")
    monkeypatch.setattr(LatencyTable, "build", mock.Mock(side_effect=AssertionError("measured again")))
    resumed = train(cut, "digits", tmp_path / "cut")
    assert resumed.facts()["identity"] == whole.facts()["identity"]
    one, two = (load_supernet(r.supernet_file).state_dict() for r in (whole, resumed))
    assert all(torch.equal(one[k], two[k]) for k in one)
