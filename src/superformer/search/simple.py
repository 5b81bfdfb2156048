"""Search without learning: random rows, and all rows of a small space."""

from __future__ import annotations

import numpy as np

from superformer.errors import InfeasibleError, SuperformerError
from superformer.search import settings as s
from superformer.search.method import Proposer
from superformer.search.problem import Floats, Problem
from superformer.space import Genes, Space
from superformer.space.sampling import clear


class Unlearned(Proposer):
    """What is proposed does not depend on any score."""

    def matters(self, rows: Floats) -> Floats:
        return np.full(len(rows), np.inf)


class Random(Unlearned):
    """Random architectures within the limits, each once."""

    def __init__(self, problem: Problem, settings: s.Random):
        super().__init__(problem)
        self.settings = settings

    def propose(self, round_: int, rng: np.random.Generator) -> Genes:
        return self.fresh(min(self.settings.batch, self.settings.evaluations - len(self.ledger)), rng)


class Exhaustive(Unlearned):
    """Every path of a space within the limits; ViTAS v1's block-level space (section 5.3) has 4,000."""

    def __init__(self, problem: Problem, settings: s.Exhaustive):
        super().__init__(problem)
        self.settings = settings
        if problem.space.paths > settings.most:
            raise SuperformerError(
                f"{problem.space.name} has {problem.space.paths:.3g} paths, too many to evaluate each (most={settings.most:,}): "
                "narrow the space or use another method"
            )
        rows = every(problem.space)
        self.rows = rows[problem.feasible(rows)]
        if not len(self.rows):
            names = list(problem.limits)
            seen = problem.costs(rows)
            reach = " and ".join(f"{seen[n].min():,.6g} to {seen[n].max():,.6g} {n}" for n in names)
            raise InfeasibleError(f"none of the {len(rows):,} paths of {problem.space.name} lies within the limits; reachable: {reach}")

    def propose(self, round_: int, rng: np.random.Generator) -> Genes:
        return self.rows[round_ * self.settings.batch : (round_ + 1) * self.settings.batch]


def every(space: Space) -> Genes:
    """All canonical rows of a space, in order of their genes: gene by gene, what does not run cleared at once."""
    rows = np.zeros((1, len(space.bounds)), dtype=np.int64)
    for column, count in enumerate(space.bounds):
        rows = np.repeat(rows, count, 0)
        rows[:, column] = np.tile(np.arange(count), len(rows) // count)
        rows = np.unique(clear(space, rows), axis=0)
    return rows
