"""Evolution towards the best first objective within limits: S3's and ViT-ResNAS's, one loop with two sets of settings.

S3 (algorithm 3 and the text above it): 50 random architectures; 20 times the top 10 have children by mutation and crossover of whole
blocks (`superformer.space.variation`, form ``blocks``); children outside the limits are not added. ViT-ResNAS (section 2.3): 500 random
ones; the top 75 of all so far have 75 mutants and 75 crossovers (form ``parameters``).

Where the papers are silent, or this departs from them:

* S3 tells neither how the 50 children divide nor whether parents of earlier generations stay. As in AutoFormer, whose search S3 extends,
  half are mutants, the top 10 are those of all generations, and random architectures take the places of children that are not found.
* ViT-ResNAS's 20 rounds count the first population, as in its released code (500 + 19 x 150 evaluations); the paper's words also allow
  one more. Its released first population is drawn at the largest heads and hidden sizes and then shrunk; here it is uniform within the
  limits. Its released crossover repeats architectures after 100 failures, its mutation tries for ever; here nothing is evaluated twice.
* Nobody loops for ever: children are tried a bounded number of times, then random ones take their places, then there are fewer.
"""

from __future__ import annotations

import numpy as np

from superformer.search import settings as s
from superformer.search.method import Proposer
from superformer.search.problem import Floats, Problem
from superformer.space import Genes
from superformer.space.variation import cross, mutate


class Evolution(Proposer):
    """Mutation and crossover of the best so far."""

    def __init__(self, problem: Problem, settings: s.Evolution):
        super().__init__(problem)
        self.settings = settings

    def propose(self, round_: int, rng: np.random.Generator) -> Genes:
        own = self.settings
        if round_ == 0:
            return self.fresh(own.first, rng)
        if round_ >= own.rounds:
            return self.none
        parents = self.ledger.genes[self.ledger.best(own.parents)]
        children = self.none
        if len(parents):
            children = self.gather(own.mutants, lambda n: self._mutants(parents, n, rng), children)
        if len(parents) > 1:
            crossed = self.gather(own.crossovers, lambda n: cross(self.space, *pairs(parents, n, rng), rng, own.form), children)
            children = np.concatenate([children, crossed])
        missing = own.mutants + own.crossovers - len(children)
        return np.concatenate([children, self.fresh(missing, rng, children)])

    def matters(self, rows: Floats) -> Floats:
        """From the last of the parents on."""
        top = self.ledger.best(self.settings.parents)
        least = self.ledger.scores[top[-1], 0] if len(top) == self.settings.parents else -np.inf
        return np.full(len(rows), least)

    def _mutants(self, parents: Genes, n: int, rng: np.random.Generator) -> Genes:
        own = self.settings
        chosen = parents[rng.integers(len(parents), size=n)]
        return mutate(self.space, chosen, rng, own.form, own.p, own.p_depth, own.p_embed, own.p_block)


def pairs(parents: Genes, n: int, rng: np.random.Generator) -> tuple[Genes, Genes]:
    """``n`` pairs of two different parents."""
    first = rng.integers(len(parents), size=n)
    second = (first + rng.integers(1, len(parents), size=n)) % len(parents)
    return parents[first], parents[second]
