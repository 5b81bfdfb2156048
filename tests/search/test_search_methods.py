"""Laws of every search method; settings and names."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.searches import searched
from helpers.strategies import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import superformer as sf
from superformer.cost import cost
from superformer.errors import InfeasibleError, SuperformerError
from superformer.recipes.searching import METHODS, Evolution, method_with_changes
from superformer.search import Problem, method, names, register, settings_of
from superformer.search.methods import every
from superformer.search.problem import canonical
from superformer.settings import SettingsBase
from superformer.space import Space, Stage

SMALL = {
    "evolution": {"first": 12, "rounds": 4, "parents": 4, "mutants": 6, "crossovers": 6},
    "nsga2": {"population": 10, "generations": 4},
    "predictor": {"first": 24, "trees": 5, "rounds": 3, "parents": 8, "mutants": 8, "crossovers": 8, "front": 6},
    "random": {"evaluations": 30, "batch": 10},
    "exhaustive": {"batch": 1000, "most": 10**9},
}
"""Settings of every method for a search of a moment."""


@pytest.mark.parametrize("name", [n for n in SMALL if n != "exhaustive"])
def test_a_search_fed_with_known_scores_asks_the_same_again(known, name):
    def make():
        return method(
            known.problem(("accuracy", "macs"), {"macs": (0, float(np.median(known.macs)))}, seed=3),
            name,
            **SMALL[name],
        )

    def score(genes):
        scores = known.scores[known.at(genes)].copy()
        scores[known.at(genes) % 7 == 0] = np.nan
        return scores

    np.random.seed(1)
    whole = searched(make(), score)
    np.random.seed(2)
    again = searched(make(), score, shuffle=np.random.default_rng(0))
    assert len(whole) == len(again)
    assert all(np.array_equal(a, b) for a, b in zip(whole, again, strict=True))
    other = searched(method(known.problem(("accuracy", "macs"), seed=4), name, **SMALL[name]), score)
    assert not np.array_equal(whole[0], other[0])


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=12)
@given(space=spaces, seed=st.integers(0, 99), spread=st.sampled_from((0.0, 0.2, 0.6)))
def test_every_search_ends_within_limits_without_repeats_and_in_canonical_genes(name, space, seed, spread):
    if name == "exhaustive" and space.paths > 20_000:
        return
    sample = sf.cost(space, space.sample_genes(30, seed), 5)
    low, high = (float(np.quantile(sample.macs, q)) for q in (0.5 - spread / 2, 0.5 + spread / 2))
    problem = Problem.of(
        space, ("accuracy", "params"), {"macs": (np.floor(low), np.ceil(high))} if spread else {}, seed, 5
    )

    def score(genes):
        return np.stack([np.sin(genes @ np.arange(1, genes.shape[1] + 1.0)), problem.costs(genes)["params"]], 1)

    search = method(problem, name, **SMALL[name])
    rows = np.concatenate(searched(search, score))
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
    searched(search, lambda genes: np.full((len(genes), 1), np.nan))
    assert search.report["best"] is None
    assert search.report["failed"] == search.report["told"] > 0
    assert search.report["front"] == 0


def test_what_failed_has_no_children(known):
    search = method(
        known.problem(),
        "evolution",
        first=20,
        parents=20,
        p_depth=0,
        p_embed=0,
        p_block=0,
        crossovers=0,
        mutants=5,
        rounds=2,
    )
    first = search.ask()
    scores = known.scores[known.at(first), :1]
    scores[1:] = np.nan
    search.tell(first, scores)
    assert search.asked.best(20).tolist() == [0]
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
    rows = np.concatenate(searched(method(Problem.of(space), "exhaustive"), lambda genes: np.zeros((len(genes), 1))))
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
    assert (s3.first, s3.rounds, s3.parents, s3.mutants + s3.crossovers) == (50, 21, 10, 50)
    assert (s3.form, s3.p_depth, s3.p_embed, s3.p_block) == ("blocks", 0.2, 0.2, 0.4)
    assert (resnas.first, resnas.rounds, resnas.parents, resnas.mutants, resnas.crossovers) == (500, 20, 75, 75, 75)
    assert (resnas.form, resnas.p) == ("parameters", 0.3)
    assert Evolution(preset="vit-resnas", rounds=3).rounds == 3
    assert Evolution.model_validate(resnas.model_dump()) == resnas
    assert settings_of("nsga2").population * settings_of("nsga2").generations == 2000
    assert settings_of("predictor").first == 1024
    assert set(names()) == set(SMALL)


def test_algorithm_3_evaluates_a_first_population_and_20_generations():
    """S3, appendix A: 50 architectures, "the number of generation steps to 20"; ViT-ResNAS's rounds count the first."""
    problem = Problem.of(sf.space("s3-initial"))
    counts = []
    for preset in ("s3", "vit-resnas"):
        search, rng = method(problem, "evolution", preset=preset), np.random.default_rng(0)
        while len(genes := search.ask()):
            search.tell(genes, rng.random((len(genes), 1)))
        counts.append(len(search.asked))
    assert counts == [50 + 20 * 50, 500 + 19 * 150]


def test_another_preset_brings_its_own_settings():
    own = Evolution(rounds=12)
    assert method_with_changes(own, None, {"preset": "vit-resnas"}) == Evolution(preset="vit-resnas")
    assert method_with_changes(own, None, {"preset": "s3"}).rounds == 12


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
    class Mine(SettingsBase):
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
        METHODS.pop("mine")


BLOCK = Space(
    "blocks",
    "vit",
    (Stage({"heads": (1, 2), "attn": (8, 16), "mlp": (16, 32, 48)}, depth=range(1, 13), tied=True),),
    {"patch_size": 8, "width": (8, 16, 24)},
    32,
)


@given(st.floats(0.02, 1), st.sampled_from(("exhaustive", "nsga2", "random", "evolution")))
@settings(max_examples=20)
def test_the_budget_sets_the_depth_of_a_block(share: float, name: str) -> None:
    """ViTAS v1, section 3.2 and appendix E: of each block as many as the budget allows; one more would be too many."""
    least, most = cost(BLOCK, [BLOCK.smallest(), BLOCK.largest()], 10).macs
    limit = float(least + share * (most - least))
    problem = Problem.of(BLOCK, ("accuracy", "macs"), {"macs": (0, limit)}, num_classes=10)
    own = Problem(BLOCK, problem.objectives, problem.costs, problem.limits, 0, 10, deepest=True)
    changes = {"nsga2": {"population": 8, "generations": 3}, "random": {"evaluations": 12}}
    search = method(own, name, **changes.get(name, {"first": 8, "rounds": 2} if name == "evolution" else {}))
    asked = []
    while len(genes := search.ask()):
        asked.append(genes)
        macs = own.costs(genes)["macs"]
        search.tell(genes, np.stack([macs, macs], 1))
    rows = np.concatenate(asked)
    (column, depths) = own._deepened[0]
    assert own.feasible(rows).all()
    deeper = rows[rows[:, column] < depths - 1]
    deeper[:, column] += 1
    assert not own.feasible(deeper).any()
    if name == "exhaustive":  # every block that fits at all, once: 36 instead of 432 rows
        blocks = np.delete(rows, column, 1)
        assert len(np.unique(blocks, axis=0)) == len(blocks)
        fits = every(BLOCK)[problem.feasible(every(BLOCK))]
        assert len(blocks) == len(np.unique(np.delete(fits, column, 1), axis=0))


def test_found_depths_follow_the_budget() -> None:
    """With the same block the depth grows with the budget, one by one."""
    narrow = BLOCK.narrow(width=16, heads=2, attn=16, mlp=32)
    macs = cost(narrow, every(narrow), 10).macs
    for depth, limit in enumerate(macs, 1):
        own = Problem.of(narrow, ("accuracy",), {"macs": (0, float(limit))}, num_classes=10)
        found = method(Problem(narrow, own.objectives, own.costs, own.limits, 0, 10, deepest=True), "exhaustive").ask()
        assert [a.depth for a in narrow.decode(found)] == [depth]


def test_depths_that_no_budget_can_set(known) -> None:
    problem = known.problem()
    with pytest.raises(SuperformerError, match="depth=budget needs a stage of equal blocks"):
        Problem(problem.space, problem.objectives, problem.costs, deepest=True)
