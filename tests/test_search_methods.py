from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import spaces

import superformer as sf
from superformer.errors import InfeasibleError, SuperformerError
from superformer.recipes.settings import Part
from superformer.search import Objective, Problem, method, names, pareto, register, settings_of
from superformer.search.nsga2 import polynomial, two_point
from superformer.search.predictor import IDLE, Forest, features
from superformer.search.problem import alive, canonical
from superformer.search.settings import KINDS, Evolution
from superformer.search.simple import every
from superformer.space import Space, Stage, times

SMALL = {
    "evolution": {"first": 12, "rounds": 4, "parents": 4, "mutants": 6, "crossovers": 6},
    "nsga2": {"population": 10, "generations": 4},
    "predictor": {"first": 24, "trees": 5, "rounds": 3, "parents": 8, "mutants": 8, "crossovers": 8, "front": 6},
    "random": {"evaluations": 30, "batch": 10},
    "exhaustive": {"batch": 1000, "most": 10**9},
}
"""Settings of every method for a search of a moment."""


# --- a space with a known score for every architecture ---


class Known:
    """22,113 architectures: every gene has its worth, neighbouring genes suit each other or not, and larger networks are better."""

    space = Space(
        "known",
        "vit",
        (Stage({"heads": (1, 2, 4), "attn": times(4, of="heads"), "mlp": (8, 16, 24)}, depth=(2, 3, 4)),),
        {"patch_size": 8, "width": (8, 12, 16)},
        img_size=32,
    )

    def __init__(self) -> None:
        rows = self.rows = every(self.space)
        rng, n, live = np.random.default_rng(0), rows.shape[1], alive(self.space, rows)
        own, pairs = rng.normal(size=(n, 3)), rng.normal(size=(n, 3, 3))
        counted = sf.cost(self.space, rows, 10)
        self.macs, self.params = counted.macs.astype(float), counted.params.astype(float)
        worth = (own[np.arange(n), rows] * live).sum(1) + 6 * np.log(self.macs / self.macs.min())
        suits = [pairs[g, rows[:, g], rows[:, g + 1]] * (live[:, g] & live[:, g + 1]) for g in range(n - 1)]
        self.scores = np.stack([70 + worth + np.sum(suits, 0), self.macs], 1)
        self.places = {row.tobytes(): k for k, row in enumerate(rows)}

    def at(self, genes):
        return np.asarray([self.places[row.tobytes()] for row in np.ascontiguousarray(genes)], dtype=np.int64)

    def problem(self, objectives=("accuracy",), limits=None, seed=0):
        def costs(genes):
            at = self.at(genes)
            return {"macs": self.macs[at], "params": self.params[at], "latency": 1e-6 * self.macs[at] + 1e-4 * genes.sum(1)}

        return Problem(self.space, tuple(map(Objective.of, objectives)), costs, limits or {}, seed, 10)

    def until(self, search, wanted, objectives=1):
        """Evaluations until all that is wanted was found."""
        wanted, order = set(wanted.tolist()), []
        while len(genes := search.ask()):
            at = self.at(genes)
            order += at.tolist()
            search.tell(genes, self.scores[at, :objectives])
            if wanted <= set(order):
                return max(map(order.index, wanted)) + 1
        return np.inf


@pytest.fixture(scope="module")
def known():
    return Known()


def run(search, score, shuffle=None):
    """Everything that a search asks for, in order; told in parts and out of order with ``shuffle``."""
    asked = []
    while len(genes := search.ask()):
        asked.append(genes)
        if shuffle is None:
            search.tell(genes, score(genes))
            continue
        for part in np.array_split(shuffle.permutation(len(genes)), 3):
            if len(part):
                search.tell(genes[part], score(genes[part]))
    assert not len(search.ask())
    return asked


# --- far sooner than random ---

SEEDS = range(20)


@pytest.fixture(scope="module")
def by_chance(known):
    """Evaluations that random search needs for the best architecture."""
    best = known.scores[:, :1].argmax(0)
    return [known.until(method(known.problem(seed=seed), "random", evaluations=30_000, batch=2000), best) for seed in range(3)]


@pytest.mark.parametrize("preset", ["s3", "vit-resnas"])
def test_evolution_finds_the_optimum_far_sooner_than_random(known, by_chance, preset):
    best = known.scores[:, :1].argmax(0)
    found = [known.until(method(known.problem(seed=seed), "evolution", preset=preset, rounds=60), best) for seed in SEEDS]
    assert np.median(found) < np.median(by_chance) / 8  # measured: 302 and 1,027 against 19,500
    assert np.mean(np.asarray(found) < len(known.rows) / 4) >= 0.9  # half of the space is what a draw without repeats needs on average


def test_evolution_finds_the_optimum_within_limits(known):
    limits = {"macs": (float(np.quantile(known.macs, 0.3)), float(np.median(known.macs)))}
    inside = (known.macs >= limits["macs"][0]) & (known.macs <= limits["macs"][1])
    best = np.where(inside, known.scores[:, 0], -np.inf)[:, None].argmax(0)
    found = [known.until(method(known.problem(limits=limits, seed=seed), "evolution", rounds=60), best) for seed in SEEDS]
    assert np.median(found) < inside.sum() / 4


def test_nsga2_finds_the_exact_front_far_sooner_than_random(known):
    objectives = ("accuracy", "macs")
    front = pareto.front(known.scores, (True, False))
    assert len(front) > 10
    found = [known.until(method(known.problem(objectives, seed=seed), "nsga2", generations=100), front, 2) for seed in SEEDS]
    chance = known.until(method(known.problem(objectives), "random", evaluations=30_000, batch=2000), front, 2)
    assert np.median(found) < chance / 8  # measured: 830 against 20,600
    assert np.mean(np.asarray(found) < len(known.rows) / 4) >= 0.9


def test_the_predictor_tells_how_well_it_ranks_and_proposes_better_than_chance(known):
    search = method(known.problem(("accuracy", "macs")), "predictor", first=400, rounds=10, front=40)
    first, proposed = run(search, lambda genes: known.scores[known.at(genes)])
    report = json.loads(json.dumps(search.report))
    assert len(first) == 400
    assert len(proposed) == 40
    assert report["candidates"] > 1500
    assert 0.4 < report["kendall"] < report["spearman"] < 1
    assert 0.4 < report["pearson"] < 1
    assert -1 <= report["front_kendall"] <= 1
    reference = (known.scores[:, 0].min(), known.macs.max() * 1.01)
    volumes = [pareto.hypervolume(known.scores[known.at(rows)], (True, False), reference) for rows in (first, proposed)]
    assert volumes[1] > volumes[0]  # 40 proposed against 400 by chance


# --- laws of every method ---


@pytest.mark.parametrize("name", [n for n in SMALL if n != "exhaustive"])
def test_a_search_fed_with_known_scores_asks_the_same_again(known, name):
    def make():
        return method(known.problem(("accuracy", "macs"), {"macs": (0, float(np.median(known.macs)))}, seed=3), name, **SMALL[name])

    def score(genes):
        scores = known.scores[known.at(genes)].copy()
        scores[known.at(genes) % 7 == 0] = np.nan
        return scores

    np.random.seed(1)
    whole = run(make(), score)
    np.random.seed(2)
    again = run(make(), score, shuffle=np.random.default_rng(0))
    assert len(whole) == len(again)
    assert all(np.array_equal(a, b) for a, b in zip(whole, again, strict=True))
    other = run(method(known.problem(("accuracy", "macs"), seed=4), name, **SMALL[name]), score)
    assert not np.array_equal(whole[0], other[0])


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=12)
@given(space=spaces, seed=st.integers(0, 99), spread=st.sampled_from((0.0, 0.2, 0.6)))
def test_every_search_ends_within_limits_without_repeats_and_in_canonical_genes(name, space, seed, spread):
    if name == "exhaustive" and space.paths > 20_000:
        return
    sample = sf.cost(space, space.sample_genes(30, seed), 5)
    low, high = (float(np.quantile(sample.macs, q)) for q in (0.5 - spread / 2, 0.5 + spread / 2))
    problem = Problem.of(space, ("accuracy", "params"), {"macs": (np.floor(low), np.ceil(high))} if spread else {}, seed, 5)

    def score(genes):
        return np.stack([np.sin(genes @ np.arange(1, genes.shape[1] + 1.0)), problem.costs(genes)["params"]], 1)

    search = method(problem, name, **SMALL[name])
    rows = np.concatenate(run(search, score))
    assert problem.feasible(rows).all()
    assert len(np.unique(rows, axis=0)) == len(rows) == search.report["asked"] == search.report["told"]
    assert (rows == space.encode(space.decode(rows))).all()
    assert search.report["finished"]
    json.dumps(search.report)
    if name == "exhaustive" and not spread:
        assert len(rows) == space.paths


@pytest.mark.parametrize("name", SMALL)
def test_a_search_survives_that_nothing_can_be_evaluated(known, name):
    problem = Problem.of(known.space.narrow(depth=2)) if name == "exhaustive" else known.problem()
    search = method(problem, name, **SMALL[name])
    run(search, lambda genes: np.full((len(genes), 1), np.nan))
    assert search.report["best"] is None
    assert search.report["failed"] == search.report["told"] > 0
    assert search.report["front"] == 0


def test_what_failed_has_no_children(known):
    search = method(known.problem(), "evolution", first=20, parents=20, p_depth=0, p_embed=0, p_block=0, crossovers=0, mutants=5, rounds=2)
    first = search.ask()
    scores = known.scores[known.at(first), :1]
    scores[1:] = np.nan
    search.tell(first, scores)
    assert search.ledger.best(20).tolist() == [0]
    assert len(search.ask()) == 5  # mutants that are like their parent are not asked for; random ones take their places


def test_rows_that_were_not_told_yet_are_asked_for_again(known):
    search = method(known.problem(), "nsga2")
    genes = search.ask()
    search.tell(genes[10:], known.scores[known.at(genes[10:]), :1])
    assert np.array_equal(search.ask(), genes[:10])
    search.tell(genes[:10], known.scores[known.at(genes[:10]), :1])
    search.tell(genes[:10], known.scores[known.at(genes[:10]), :1])
    with pytest.raises(SuperformerError, match="before, and now"):
        search.tell(genes[:1], [[0.5]])
    rest = next(row for row in known.rows if not (genes == row).all(1).any())
    with pytest.raises(SuperformerError, match="never asked for"):
        search.tell(rest[None], [[1.0]])
    with pytest.raises(SuperformerError, match=r"as many scores of \(accuracy\), not an array of shape \(1, 2\)"):
        search.tell(genes[:1], [[1.0, 2.0]])


def test_exhaustive_visits_all_of_a_small_space_and_refuses_a_large_one():
    space = sf.space("vitas-block")
    rows = np.concatenate(run(method(Problem.of(space), "exhaustive"), lambda genes: np.zeros((len(genes), 1))))
    assert len(np.unique(rows, axis=0)) == len(rows) == space.size == 4000
    with pytest.raises(SuperformerError, match=r"vitas-v1 has .* paths, too many"):
        method(Problem.of(sf.space("vitas-v1")), "exhaustive")


@given(spaces)
def test_every_path_is_enumerated_once(space):
    if space.paths <= 50_000:
        rows = every(space)
        assert len(rows) == space.paths
        assert (rows == canonical(space, rows)).all()


# --- settings and names ---


def test_the_papers_settings():
    s3, resnas = Evolution(), Evolution(preset="vit-resnas")
    assert (s3.first, s3.rounds, s3.parents, s3.mutants + s3.crossovers) == (50, 20, 10, 50)
    assert (s3.form, s3.p_depth, s3.p_embed, s3.p_block) == ("blocks", 0.2, 0.2, 0.4)
    assert (resnas.first, resnas.rounds, resnas.parents, resnas.mutants, resnas.crossovers) == (500, 20, 75, 75, 75)
    assert (resnas.form, resnas.p) == ("parameters", 0.3)
    assert Evolution(preset="vit-resnas", rounds=3).rounds == 3
    assert Evolution.model_validate(resnas.model_dump()) == resnas
    assert settings_of("nsga2").population * settings_of("nsga2").generations == 2000
    assert settings_of("predictor").first == 1024
    assert set(names()) == set(SMALL)


def test_wrong_words_and_numbers_are_answered(known):
    problem = known.problem()
    for which, changes, message in (
        ("evolutoin", {}, "did you mean 'evolution'"),
        ("evolution", {"muttants": 3}, "did you mean 'mutants'"),
        ("evolution", {"preset": "s4"}, "'s3' or 'vit-resnas', not 's4'"),
        ("evolution", {"p_block": 1.5}, "p_block: .*less than or equal to 1, not 1.5"),
        ("nsga2", {"population": 1}, "greater than or equal to 2, not 1"),
        ("predictor", {"first": 2}, "greater than or equal to 8"),
    ):
        with pytest.raises(SuperformerError, match=message):
            method(problem, which, **changes)
    with pytest.raises(SuperformerError, match="did you mean 'latency'"):
        known.problem(limits={"latancy": (0, 1)})
    with pytest.raises(SuperformerError, match="one or more different"):
        known.problem(("accuracy", "accuracy"))
    with pytest.raises(InfeasibleError, match="leaves nothing"):
        known.problem(limits={"macs": (2, 1)})


def test_a_method_of_ones_own(known):
    class Mine(Part):
        n: int = 1

    class One:
        def __init__(self, problem, own):
            self.problem, self.own = problem, own

        def ask(self):
            return self.problem.draw(self.own.n, np.random.default_rng(0))

    register("mine", Mine, One)
    try:
        assert len(method(known.problem(), "mine", n=3).ask()) == len(method(known.problem(), Mine(n=3)).ask()) == 3
        with pytest.raises(SuperformerError, match="already"):
            register("mine", Mine, One)
    finally:
        KINDS.pop("mine")


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
    for low, high in ((0.0, float(np.quantile(latency, 0.3))), (0.0, float(latency.min())), (float(latency.max()), np.inf)):
        problem = known.problem(limits={"latency": (low, high), "params": (0, np.inf)})
        rows = problem.draw(30, rng)
        assert len(rows) == 30
        assert problem.feasible(rows).all()
    with pytest.raises(InfeasibleError, match=r"reached: 0\.0.* to 0.* latency"):
        known.problem(limits={"latency": (0, float(latency.min()) / 2)}).draw(1, rng)


def test_limits_that_hardly_any_architecture_meets_are_met_and_the_search_goes_on_with_fewer(known):
    macs = float(np.sort(known.macs)[len(known.macs) // 2])
    for limits in ({"macs": (macs, macs)}, {"macs": (macs, macs), "params": (0, 1e9), "latency": (0, 1e9)}):
        search = method(known.problem(limits=limits), "evolution")
        rows = np.concatenate(run(search, lambda genes: known.scores[known.at(genes), :1]))
        assert 0 < len(rows) <= (known.macs == macs).sum()
    exact = Problem.of(sf.space("vit-resnas-tiny"), limits={"macs": (1.7944e9, 1.7944e9 + 100)})
    assert exact.feasible(exact.draw(20, np.random.default_rng(0))).all()


def test_draws_within_limits_have_the_unlimited_distribution_conditioned(known):
    """By trial (wide limits) and by the space's tables (narrow ones)."""
    for low, high in ((0.3, 0.7), (0.5, 0.503)):
        limits = {"macs": tuple(float(np.quantile(known.macs, q)) for q in (low, high))}
        problem = known.problem(limits=limits)
        assert (problem._tables is not None) == (high < 0.6)
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
