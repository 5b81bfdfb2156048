"""NASViT's search (algorithm 2, appendix C.1): a random forest learns the accuracy, evolution searches the Pareto front
of its predictions.

1,024 random architectures are evaluated; half train the forest, half tell how well it ranks. Then 40 times the best 128
have 128 mutants and 128 crossovers, some 10,000 candidates in all, whose accuracy is predicted. The predicted front is
evaluated for real.

NASViT released no search; where the paper is silent: best of several objectives is by front and then by crowding
(NSGA-II's order); parents are the best on predictions, those that were measured included, so that all are compared on
one scale; parameters are varied one by one with the released ``mutate_and_reset``'s probability 0.1; after the front,
the next best are evaluated up to a given number. Objectives that are costs are computed, any other one has a forest of
its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from superformer.recipes import searching as recipe
from superformer.search.evolution import pairs
from superformer.search.methods import Proposer
from superformer.search.problem import Floats, Problem, alive, best
from superformer.space import Genes, Space
from superformer.space.genes import Columns, cross, mutate

IDLE = -1.0
"""The feature of a gene whose block does not run."""


class Predictor(Proposer):
    """Random rows, then the best on predictions."""

    settings: recipe.Predictor
    estimates_do = True

    def __init__(self, problem: Problem, settings: recipe.Predictor):
        super().__init__(problem, settings)
        self.forest: Forest | None = None
        self.correlations: dict[str, float | None] = {}
        self.candidates = 0

    def propose(self, round_: int, rng: np.random.Generator) -> Genes:
        if round_ == 0:
            return self.fresh(self.settings.first, rng)
        if round_ > 1 or len(self.asked.valid) < 8:
            return self.none
        self._learn(rng)
        rows, scores = self._evolve(rng)
        self.candidates, old = len(rows), len(self.asked)
        rows, scores = rows[old:], scores[old:]
        return rows[best(scores, self.problem.maximise, self.settings.front)]

    def _learn(self, rng: np.random.Generator) -> None:
        """Half of the rows train the forest, the other half validate it (algorithm 2, line 3)."""
        rows = rng.permutation(self.asked.valid)
        train, validate = rows[: len(rows) // 2], rows[len(rows) // 2 :]
        genes, scores = self.asked.genes, self.asked.scores
        self.forest = Forest(self.problem, genes[train], scores[train], self.settings.trees)
        self.correlations = correlations(self.forest.scores(genes[validate])[:, 0], scores[validate, 0])

    def _evolve(self, rng: np.random.Generator) -> tuple[Genes, Floats]:
        """All candidates with predicted scores, the rows that were asked for first (algorithm 2, line 4)."""
        own, forest = self.settings, self.forest
        assert forest is not None
        rows, scores = self.asked.genes, forest.scores(self.asked.genes)
        for _ in range(own.rounds):
            parents = rows[best(scores, self.problem.maximise, own.parents)]
            children = self._children(parents, rows[len(self.asked) :], rng)
            if not len(children):
                break
            rows, scores = np.concatenate([rows, children]), np.concatenate([scores, forest.scores(children)])
        return rows, scores

    def _children(self, parents: Genes, seen: Genes, rng: np.random.Generator) -> Genes:
        own = self.settings

        def mutants(n: int) -> Genes:
            return mutate(self.space, parents[rng.integers(len(parents), size=n)], rng, p=own.p)

        def crossovers(n: int) -> Genes:
            return cross(self.space, *pairs(parents, n, rng), rng)

        found = self.gather(own.mutants, mutants, seen)
        if len(parents) < 2:
            return found
        return np.concatenate([found, self.gather(own.crossovers, crossovers, np.concatenate([seen, found]))])

    @property
    def report(self) -> dict[str, Any]:
        """Also the predictor's correlations with measured scores: on its validation half, and on what it proposed."""
        found = {**super().report, "candidates": self.candidates, **self.correlations}
        proposed = self.asked.valid[self.asked.valid >= self.settings.first]
        if self.forest is not None and len(proposed) > 1:
            told = correlations(self.forest.scores(self.asked.genes[proposed])[:, 0], self.asked.scores[proposed, 0])
            found |= {f"front_{name}": value for name, value in told.items()}
        return found


class Forest:
    """Predicted scores of rows: a random forest for each objective that is not a cost."""

    def __init__(self, problem: Problem, genes: Genes, scores: Floats, trees: int = 100):
        from sklearn import ensemble

        self.problem = problem
        forest: Any = ensemble.RandomForestRegressor
        known = problem.costs(genes[:1])
        given = features(problem.space, genes)
        self.forests = {
            k: forest(trees, random_state=problem.seed % 2**32).fit(given, scores[:, k])
            for k, objective in enumerate(problem.objectives)
            if k == 0 or objective.name not in known
        }

    def scores(self, genes: Genes) -> Floats:
        """A score for each row and objective."""
        given, costs = features(self.problem.space, genes), {}
        if len(self.forests) < len(self.problem.objectives):
            costs = self.problem.costs(genes)
        columns = [
            self.forests[k].predict(given) if k in self.forests else costs[o.name]
            for k, o in enumerate(self.problem.objectives)
        ]
        return np.stack([np.asarray(c, dtype=np.float64) for c in columns], 1)


def features(space: Space, genes: Genes) -> NDArray[np.float32]:
    """What a forest sees of an architecture: the value of each choice that has several (words as their place among the
    choices), the number of blocks of each stage, and `IDLE` for blocks that do not run."""
    values = space.population(genes)
    out = genes.astype(np.float32)

    def put(columns: Columns, of: dict[str, NDArray[Any]]) -> None:
        for name, column in columns.items():
            if np.issubdtype(of[name].dtype, np.number):
                out[:, column] = of[name]

    put(space.layout.choices, values.choices)
    for stage, where in zip(values.stages, space.layout.stages, strict=True):
        put(where.choices, stage.choices)
        for columns, block in zip(where.blocks, stage.blocks, strict=True):
            put(columns, block)
    out[~alive(space, genes)] = IDLE
    depths = [stage.active.sum(1) for stage in values.stages]
    return np.column_stack([out, *depths]).astype(np.float32)


def correlations(predicted: Floats, measured: Floats) -> dict[str, float | None]:
    """Kendall's, Spearman's and Pearson's; None where one side is constant."""
    from scipy import stats

    constant = len(predicted) < 2 or np.ptp(predicted) == 0 or np.ptp(measured) == 0
    each = {"kendall": stats.kendalltau, "spearman": stats.spearmanr, "pearson": stats.pearsonr}
    return {name: None if constant else float(of(predicted, measured).statistic) for name, of in each.items()}
