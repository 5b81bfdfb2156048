"""The probability of identities (ViTAS v1, section 4.3)."""

from __future__ import annotations

import json
import random
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from helpers.released import FIXTURES
from helpers.samplers import SKIPPED, SMALL, recipe_with, sampler
from hypothesis import given, settings
from hypothesis import strategies as st

import superformer as sf
from superformer.cost.latency_table import LatencyTable
from superformer.recipes import Recipe
from superformer.recipes.settings import Identity, Sampling
from superformer.runs.storage import load_supernet
from superformer.train import loop, sampling
from superformer.train.loop import train
from superformer.train.sampling import Sampler


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
    killed = mock.patch.object(loop.Loop, "_check", side_effect=KeyboardInterrupt)
    with killed, pytest.raises(KeyboardInterrupt):
        train(cut, "digits", tmp_path / "cut")
    monkeypatch.setattr(LatencyTable, "build", mock.Mock(side_effect=AssertionError("measured again")))
    resumed = train(cut, "digits", tmp_path / "cut")
    assert resumed.facts()["identity"] == whole.facts()["identity"]
    one, two = (load_supernet(r.supernet_file).state_dict() for r in (whole, resumed))
    assert all(torch.equal(one[k], two[k]) for k in one)
