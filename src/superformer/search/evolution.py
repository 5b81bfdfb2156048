"""Search by evolution: S3's and ViT-ResNAS's towards the best first objective, ViTAS's NSGA-II towards the whole front.

`Evolution` is one loop with two sets of settings. S3 (algorithm 3 and the text above it): 50 random architectures; then
in 20 steps the top 10 have 50 children by mutation and crossover of whole blocks (`superformer.space.genes`, form
``blocks``), 50 + 20 x 50 = 1,050 evaluations; children outside the limits are not added. ViT-ResNAS (section 2.3): 500
random ones; the top 75 of all so far have 75 mutants and 75 crossovers (form ``parameters``). Where the papers are
silent, or this departs from them:

* S3 tells neither how the 50 children divide nor whether parents of earlier generations stay. As in AutoFormer, whose
  search S3 extends, half are mutants, the top 10 are those of all generations, and random architectures take the places
  of children that are not found. (Its loop, "t in (0, T)", evaluates the first population before the first step and
  takes the result from G(T+1): the children of all 20 steps count.)
* ViT-ResNAS's 20 rounds count the first population, as in its released code (500 + 19 x 150 evaluations); the paper's
  words also allow one more. Its released first population is drawn at the largest heads and hidden sizes and then
  shrunk; here it is uniform within the limits. Its released crossover repeats architectures after 100 failures, its
  mutation tries for ever; here nothing is evaluated twice.

`Nsga2` is truly multi-objective, built on pymoo's operators. ViTAS (v1, section 4.1 and appendix A; v2, appendix A.3)
searches with "multi-objective NSGA-II", 50 architectures in 40 generations. Each generation: binary tournaments choose
parents by front, then by crowding; two-point crossover; integer polynomial mutation with eta = 3; of parents and
children together the best by front and crowding survive. Where this departs from the paper or its released code:

* Released is one objective, 100 - accuracy, for which NSGA-II is an elitist genetic algorithm, and architectures
  outside the budget get pseudo scores. Here all objectives of the problem count, and children outside the limits are
  made anew.
* The papers' "top 20 as parents" are the released code's tournaments over the whole population.
* Genes of blocks that do not run mean nothing (ViTAS keeps and crosses them): a block that only one parent has comes
  from that one, and one that mutation switches on is drawn anew.

Neither loops for ever: children are tried a bounded number of times, then random ones take their places, then there are
fewer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from pymoo.core.population import Population
from pymoo.operators.crossover.pntx import TwoPointCrossover
from pymoo.operators.mutation.pm import mut_pm
from pymoo.operators.selection.tournament import TournamentSelection

from superformer.recipes import searching as recipe
from superformer.search.methods import Proposer
from superformer.search.problem import Floats, Ints, Problem, alive, canonical, ordered, reach
from superformer.space import Genes, Space
from superformer.space.genes import coarse, cross, mutate


class Evolution(Proposer):
    """Mutation and crossover of the best so far."""

    settings: recipe.Evolution

    def propose(self, round_: int, rng: np.random.Generator) -> Genes:
        own = self.settings
        if round_ == 0:
            return self.fresh(own.first, rng)
        if round_ >= own.rounds:
            return self.none
        parents = self.asked.genes[self.asked.best(own.parents)]
        children = self.none

        def mutants(n: int) -> Genes:
            chosen = parents[rng.integers(len(parents), size=n)]
            return mutate(self.space, chosen, rng, own.form, own.p, own.p_depth, own.p_embed, own.p_block)

        def crossovers(n: int) -> Genes:
            return cross(self.space, *pairs(parents, n, rng), rng, own.form)

        if len(parents):
            children = self.gather(own.mutants, mutants, children)
        if len(parents) > 1:
            children = np.concatenate([children, self.gather(own.crossovers, crossovers, children)])
        missing = own.mutants + own.crossovers - len(children)
        return np.concatenate([children, self.fresh(missing, rng, children)])

    def matters(self, rows: Floats) -> Floats:
        """From the last of the parents on."""
        top = self.asked.best(self.settings.parents)
        least = self.asked.scores[top[-1], 0] if len(top) == self.settings.parents else -np.inf
        return np.full(len(rows), least)


def pairs(parents: Genes, n: int, rng: np.random.Generator) -> tuple[Genes, Genes]:
    """``n`` pairs of two different parents."""
    first = rng.integers(len(parents), size=n)
    second = (first + rng.integers(1, len(parents), size=n)) % len(parents)
    return parents[first], parents[second]


class Nsga2(Proposer):
    """Non-dominated sorting, crowding, tournaments."""

    settings: recipe.Nsga2

    def __init__(self, problem: Problem, settings: recipe.Nsga2):
        super().__init__(problem, settings)
        self.population: Ints = np.zeros(0, dtype=np.int64)
        self._rank, self._distance, self._told = self.population, np.zeros(0), 0

    def propose(self, round_: int, rng: np.random.Generator) -> Genes:
        own = self.settings
        if round_ == 0:
            rows = self._even() if own.first == "even" else self.none
            return np.concatenate([rows, self.fresh(max(own.population - len(rows), 0), rng, rows)])
        if round_ >= own.generations:
            return self.none
        self._survive()
        children = self.none
        if len(self.population) and len(self.space.bounds):
            children = self.gather(own.population, lambda n: self._children(n, rng), children)
        return np.concatenate([children, self.fresh(own.population - len(children), rng, children)])

    def _even(self) -> Genes:
        """The largest networks of each depth, in all stages alike, and of each input size, within the limits."""
        last = np.asarray(self.space.bounds, dtype=np.int64) - 1
        sized = np.asarray([name == "resolution" for name in self.space.layout.names], dtype=bool)
        deep = coarse(self.space) & ~sized
        levels, sizes = (int(last[at].max(initial=0)) + 1 for at in (deep, sized))
        rows = np.tile(last, (levels * sizes, 1))
        for k, row in enumerate(rows):
            level, size = divmod(k, sizes)
            row[deep] = np.rint(last[deep] * (level / max(levels - 1, 1)))
            row[sized] = size
        rows = np.unique(canonical(self.space, rows), axis=0)
        return rows[self.problem.feasible(rows)]

    def matters(self, rows: Floats) -> Floats:
        """A row that as many others dominate as survive is on a later front than all of them."""
        known = self.asked.scores[self._pool()]
        return reach(known[np.isfinite(known).all(1)], rows, self.problem.maximise, self.settings.population)

    def _pool(self) -> Ints:
        """The population, and the rows told since."""
        return np.concatenate([self.population, np.arange(self._told, len(self.asked))])

    def _survive(self) -> None:
        """The best of the pool stay."""
        pool, own = self._pool(), self.settings
        order, self._rank, self._distance = ordered(self.asked.scores[pool], self.problem.maximise, own.population)
        self.population, self._told = pool[order], len(self.asked)

    def _children(self, n: int, rng: np.random.Generator) -> Genes:
        chosen = tournaments(self._rank, self._distance, -(-n // 2), rng)
        first, second = (self.asked.genes[self.population[chosen[:, k]]] for k in range(2))
        crossed = two_point(self.space, first, second, self.settings.crossover, rng)[:n]
        return polynomial(self.space, crossed, self.settings.eta, self.settings.p, rng)


def tournaments(rank: Ints, distance: Floats, n: int, rng: np.random.Generator) -> Ints:
    """``n`` pairs of parents, each the winner of two: the lower front, then the less crowded, then either."""

    def winners(_: Any, duels: Ints, random_state: np.random.Generator, **__: Any) -> Ints:
        a, b = duels.T
        luck = random_state.random(len(duels)) < 0.5
        less_crowded = (distance[a] > distance[b]) | ((distance[a] == distance[b]) & luck)
        better = (rank[a] < rank[b]) | ((rank[a] == rank[b]) & less_crowded)
        return np.asarray(np.where(better, a, b)[:, None])

    chosen: Ints = TournamentSelection(func_comp=winners).do(None, rank, n, 2, to_pop=False, random_state=rng)
    return chosen


def two_point(space: Space, first: Genes, second: Genes, p: float, rng: np.random.Generator) -> Genes:
    """Two children of each pair: the genes between two points are exchanged, with probability ``p``."""
    # pymoo crosses which parent, not genes
    marks = Population.new("X", np.asarray([np.zeros(first.shape[1]), np.ones(first.shape[1])]))
    mates = np.tile([0, 1], (len(first), 1))
    crossed = TwoPointCrossover(prob=p).do(SimpleNamespace(n_var=first.shape[1]), marks, mates, random_state=rng)
    other = crossed.get("X") > 0
    mine, theirs = np.tile(first, (2, 1)), np.tile(second, (2, 1))
    has, have = alive(space, mine), alive(space, theirs)
    other = (other | (have & ~has)) & ~(has & ~have)  # a block that only one of them has
    return canonical(space, np.where(other, theirs, mine))


def polynomial(space: Space, genes: Genes, eta: float, p: float | None, rng: np.random.Generator) -> Genes:
    """Polynomial mutation of whole numbers: on the real line from half below the first value to half above the last,
    then rounded."""
    last = np.asarray(space.bounds, dtype=np.float64) - 1
    each = np.full(len(genes), min(0.5, 1 / len(last)) if p is None else p)
    low, high, etas = np.full(len(last), -0.5), last + 0.5, np.full(len(genes), eta)
    varied = mut_pm(genes.astype(np.float64), low, high, etas, each, False, random_state=rng)
    mutants = np.clip(np.rint(varied), 0, last).astype(np.int64)
    new = alive(space, mutants) & ~alive(space, genes)
    drawn = rng.integers(0, np.asarray(space.bounds, dtype=np.int64), genes.shape)
    return canonical(space, np.where(new, drawn, mutants))
