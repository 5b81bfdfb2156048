"""Searches of a space with a known score: far sooner than random."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.searches import searched

from superformer.search import method
from superformer.search.problem import front, hypervolume

SEEDS = range(20)


@pytest.fixture(scope="module")
def by_chance(known):
    """Evaluations that random search needs for the best architecture."""
    best = known.scores[:, :1].argmax(0)
    return [
        known.until(method(known.problem(seed=seed), "random", evaluations=30_000, batch=2000), best)
        for seed in range(3)
    ]


@pytest.mark.parametrize("preset", ["s3", "vit-resnas"])
def test_evolution_finds_the_optimum_far_sooner_than_random(known, by_chance, preset):
    best = known.scores[:, :1].argmax(0)
    found = [
        known.until(method(known.problem(seed=seed), "evolution", preset=preset, rounds=60), best) for seed in SEEDS
    ]
    assert np.median(found) < np.median(by_chance) / 8  # measured: 302 and 1,027 against 19,500
    assert (
        np.mean(np.asarray(found) < len(known.rows) / 4) >= 0.9
    )  # half of the space is what a draw without repeats needs on average


def test_evolution_finds_the_optimum_within_limits(known):
    limits = {"macs": (float(np.quantile(known.macs, 0.3)), float(np.median(known.macs)))}
    inside = (known.macs >= limits["macs"][0]) & (known.macs <= limits["macs"][1])
    best = np.where(inside, known.scores[:, 0], -np.inf)[:, None].argmax(0)
    found = [
        known.until(method(known.problem(limits=limits, seed=seed), "evolution", rounds=60), best) for seed in SEEDS
    ]
    assert np.median(found) < inside.sum() / 4


def test_nsga2_finds_the_exact_front_far_sooner_than_random(known):
    objectives = ("accuracy", "macs")
    best = front(known.scores, (True, False))
    assert len(best) > 10
    found = [
        known.until(method(known.problem(objectives, seed=seed), "nsga2", generations=100), best, 2) for seed in SEEDS
    ]
    chance = known.until(method(known.problem(objectives), "random", evaluations=30_000, batch=2000), best, 2)
    assert np.median(found) < chance / 8  # measured: 830 against 20,600
    assert np.mean(np.asarray(found) < len(known.rows) / 4) >= 0.9


def test_the_predictor_tells_how_well_it_ranks_and_proposes_better_than_chance(known):
    search = method(known.problem(("accuracy", "macs")), "predictor", first=400, rounds=10, front=40)
    first, proposed = searched(search, lambda genes: known.scores[known.at(genes)])
    report = json.loads(json.dumps(search.report))
    assert len(first) == 400
    assert len(proposed) == 40
    assert report["candidates"] > 1500
    assert 0.4 < report["kendall"] < report["spearman"] < 1
    assert 0.4 < report["pearson"] < 1
    assert -1 <= report["front_kendall"] <= 1
    reference = (known.scores[:, 0].min(), known.macs.max() * 1.01)
    volumes = [hypervolume(known.scores[known.at(rows)], (True, False), reference) for rows in (first, proposed)]
    assert volumes[1] > volumes[0]  # 40 proposed against 400 by chance
