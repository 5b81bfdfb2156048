"""Limits and draws of a search; the operators of its methods."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.searches import searched
from helpers.strategies import spaces
from hypothesis import given
from hypothesis import strategies as st

import superformer as sf
from superformer.errors import InfeasibleError
from superformer.search import Problem, method
from superformer.search.evolution import polynomial, two_point
from superformer.search.predictor import IDLE, Forest, features
from superformer.search.problem import alive

# --- problems ---


@pytest.mark.parametrize("name", ["evolution", "nsga2", "predictor", "random"])
def test_limits_out_of_reach_are_refused_with_the_reachable_range(name):
    for space, limits in (
        ("nasvit", {"macs": (0, 1e6)}),
        ("nasvit", {"macs": (1.9e9, 2e9), "params": (7e6, 8e6)}),
        ("vitas-resnet50", {"macs": (0, 1e12), "params": (1e9, np.inf)}),
    ):
        with pytest.raises(InfeasibleError, match=r"reachable: .*\d to .*\d"):
            method(Problem.of(sf.space(space), limits=limits), name).ask()


def test_limits_on_measured_costs_are_met_or_refused_with_what_was_reached(known):
    rng, latency = np.random.default_rng(0), known.problem().costs(known.rows)["latency"]
    for low, high in (
        (0.0, float(np.quantile(latency, 0.3))),
        (0.0, float(latency.min())),
        (float(latency.max()), np.inf),
    ):
        problem = known.problem(limits={"latency": (low, high), "params": (0, np.inf)})
        rows = problem.draw(30, rng)
        assert len(rows) == 30
        assert problem.feasible(rows).all()
    with pytest.raises(InfeasibleError, match=r"reached: \d.* ms to \d.* ms latency"):
        known.problem(limits={"latency": (0, float(latency.min()) / 2)}).draw(1, rng)


def test_limits_that_hardly_any_architecture_meets_are_met_and_the_search_goes_on_with_fewer(known):
    macs = float(np.sort(known.macs)[len(known.macs) // 2])
    for limits in ({"macs": (macs, macs)}, {"macs": (macs, macs), "params": (0, 1e9), "latency": (0, 1e9)}):
        search = method(known.problem(limits=limits), "evolution")
        rows = np.concatenate(searched(search, lambda genes: known.scores[known.at(genes), :1]))
        assert 0 < len(rows) <= (known.macs == macs).sum()
    exact = Problem.of(sf.space("vit-resnas-tiny"), limits={"macs": (1.7944e9, 1.7944e9 + 100)})
    assert exact.feasible(exact.draw(20, np.random.default_rng(0))).all()


def test_draws_within_limits_have_the_unlimited_distribution_conditioned(known):
    """By trial (wide limits) and by the space's tables (narrow ones)."""
    for low, high in ((0.3, 0.7), (0.5, 0.503)):
        limits = {"macs": tuple(float(np.quantile(known.macs, q)) for q in (low, high))}
        problem = known.problem(limits=limits)
        assert (problem.sampler.tables is not None) == (high < 0.6)
        free = known.space.sample_genes(400_000, 1)
        free = free[problem.feasible(free)]
        drawn = problem.draw(4000, np.random.default_rng(2))
        assert np.abs(free.mean(0) - drawn.mean(0)).max() < 0.08


# --- operators ---


@given(spaces, st.integers(0, 99), st.sampled_from((None, 0.0, 0.5)))
def test_children_are_canonical_and_blocks_come_from_a_parent_that_has_them(space, seed, p):
    rng = np.random.default_rng(seed)
    if not len(space.bounds):
        return
    first, second = space.sample_genes(15, rng), space.sample_genes(15, rng)
    crossed = two_point(space, first, second, 0.9, rng)
    assert crossed.shape == (30, len(space.bounds))
    mine, theirs = np.tile(first, (2, 1)), np.tile(second, (2, 1))
    live = alive(space, crossed)
    from_one = (alive(space, mine) & (crossed == mine)) | (alive(space, theirs) & (crossed == theirs))
    assert from_one[live].all()
    mutants = polynomial(space, crossed, 3.0, p, rng)
    for genes in (crossed, mutants):
        assert (genes == space.encode(space.decode(genes))).all()
    if p == 0:
        assert (mutants == crossed).all()


def test_polynomial_mutation_moves_little_more_often_than_far():
    space = sf.space("vitas-block")
    genes = np.full((20_000, 4), 1)
    moved = polynomial(space, genes, 3.0, 1.0, np.random.default_rng(0))[:, 0]
    counts = np.bincount(moved, minlength=10)
    assert moved.min() == 0
    assert moved.max() > 5
    assert (np.diff(counts[1:]) <= 0).all()


@given(spaces, st.integers(0, 99))
def test_features_are_values_and_mark_what_does_not_run(space, seed):
    genes = space.sample_genes(20, seed)
    seen = features(space, genes)
    assert seen.shape == (20, len(space.bounds) + len(space.stages))
    assert ((seen[:, : len(space.bounds)] == IDLE) == ~alive(space, genes)).all()
    if "width" in space.gene_names:
        assert set(seen[:, space.gene_names.index("width")]) <= set(space.widths("width"))


def test_an_objective_that_is_no_cost_has_a_forest_of_its_own(known):
    problem = known.problem(("accuracy", "macs", "noise"))
    rows = known.rows[::50]
    scores = np.column_stack([known.scores[::50], known.scores[::50, 0] * 2])
    predicted = Forest(problem, rows, scores, 10).scores(known.rows[:100])
    assert predicted.shape == (100, 3)
    assert (predicted[:, 1] == known.macs[:100]).all()
