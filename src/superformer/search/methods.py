"""Search methods: asked for rows of genes, told their scores. What they share, those that learn nothing, and all of
them by name."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from superformer.errors import InfeasibleError, SuperformerError
from superformer.recipes import searching as recipe
from superformer.recipes.searching import METHODS, method_settings
from superformer.search.problem import Flags, Floats, Ints, Problem, canonical, front, minimised
from superformer.settings import SettingsBase
from superformer.space import Genes, Space
from superformer.space.genes import clear

TRIES = 200
"""Children that are made for each that is wanted, before random rows take their places."""
DRAWS = 20
"""Random rows that are drawn for each that is wanted, before there are fewer."""


class Method(Protocol):
    """A method of search."""

    def ask(self) -> Genes:
        """The rows to evaluate next, each once; while some were not told yet, these again. None: it has finished."""

    def tell(self, genes: Genes, scores: Floats) -> None:
        """Scores (n, objectives) of rows that were asked for, in any order and in parts; not a number: could not be
        evaluated."""

    @property
    def report(self) -> dict[str, Any]:
        """Plain numbers for logs."""


class AskedRows:
    """Every row that was asked for, in that order, and what was told about it, in whatever order."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.genes: Genes = np.zeros((0, len(problem.space.bounds)), dtype=np.int64)
        self.scores: Floats = np.zeros((0, len(problem.objectives)))
        self.told: Flags = np.zeros(0, dtype=bool)
        self._at: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.genes)

    def new(self, rows: Genes, beside: Genes) -> Genes:
        """The rows that were never asked for and are not in ``beside``, each once."""
        seen = {row.tobytes() for row in beside}
        keep = []
        for k, row in enumerate(np.ascontiguousarray(rows, dtype=np.int64)):
            key = row.tobytes()
            if key not in self._at and key not in seen:
                seen.add(key)
                keep.append(k)
        return rows[keep]

    def add(self, rows: Genes) -> None:
        for k, row in enumerate(np.ascontiguousarray(rows, dtype=np.int64), len(self)):
            self._at[row.tobytes()] = k
        self.genes = np.concatenate([self.genes, rows])
        self.scores = np.concatenate([self.scores, np.full((len(rows), self.scores.shape[1]), np.nan)])
        self.told = np.concatenate([self.told, np.zeros(len(rows), dtype=bool)])

    def tell(self, genes: Genes, scores: Floats) -> None:
        scores = np.asarray(scores, dtype=np.float64)
        if scores.shape != (len(genes), self.scores.shape[1]):
            need = f"as many scores of ({', '.join(o.name for o in self.problem.objectives)})"
            raise SuperformerError(f"{len(genes)} rows need {need}, not an array of shape {scores.shape}")
        at = [self._at.get(row.tobytes(), -1) for row in canonical(self.problem.space, genes)]
        if -1 in at:
            raise SuperformerError(f"row {at.index(-1)} was never asked for: tell scores of rows that ask() gave")
        for k, score in zip(at, scores, strict=True):
            if self.told[k] and not np.array_equal(self.scores[k], score, equal_nan=True):
                before = self.scores[k].tolist()
                raise SuperformerError(f"a row was told to have the scores {before} before, and now {score.tolist()}")
            self.scores[k], self.told[k] = score, True

    @contextmanager
    def supposed(self, genes: Genes, scores: Floats) -> Iterator[None]:
        """Meanwhile rows have these scores."""
        before, at = self.scores.copy(), [self._at[row.tobytes()] for row in canonical(self.problem.space, genes)]
        self.scores[at] = scores
        try:
            yield
        finally:
            self.scores = before

    @property
    def pending(self) -> Genes:
        return self.genes[~self.told]

    @property
    def valid(self) -> Ints:
        """The rows with scores."""
        return np.flatnonzero(np.isfinite(self.scores).all(1))

    def best(self, n: int) -> Ints:
        """The rows that are best in the first objective; of equals the first."""
        rows = self.valid
        turned = minimised(self.scores[rows], self.problem.maximise)[:, 0]
        return rows[np.argsort(turned, kind="stable")[:n]]


class Proposer(ABC):
    """A method that proposes a lot of rows once all of its earlier ones were told. Each proposal draws from a generator
    of its own, made of the problem's seed and the proposal's number.

    ``estimates_do``: it learns as well from estimates of candidates that are neither on the front nor finalists."""

    estimates_do = False

    def __init__(self, problem: Problem, settings: Any):
        self.problem, self.space, self.settings = problem, problem.space, settings
        self.asked = AskedRows(problem)
        self.round, self.finished = 0, False

    @abstractmethod
    def propose(self, round_: int, rng: np.random.Generator) -> Genes:
        """The rows of a round; none: finished."""

    def matters(self, rows: Floats) -> Floats:
        """The first objective from which on rows, whose other objectives are given, can change what is proposed later;
        less could as well not be evaluated (`superformer.search.scores.race`). Here every score matters."""
        return np.full(len(rows), -np.inf)

    def ask(self) -> Genes:
        pending = self.asked.pending
        if len(pending) or self.finished:
            return pending
        rows = self.propose(self.round, np.random.default_rng([self.problem.seed, 1, self.round]))
        self.round += 1
        self.finished = not len(rows)
        self.asked.add(rows)
        return rows

    def tell(self, genes: Genes, scores: Floats) -> None:
        self.asked.tell(genes, scores)

    @property
    def report(self) -> dict[str, Any]:
        asked = self.asked
        told, valid, top = int(asked.told.sum()), asked.valid, asked.best(1)
        return {
            "round": self.round,
            "finished": self.finished,
            "asked": len(asked),
            "told": told,
            "failed": told - len(valid),
            "best": float(asked.scores[top[0], 0]) if len(top) else None,
            "front": len(front(asked.scores, self.problem.maximise)),
        }

    @property
    def none(self) -> Genes:
        return self.asked.genes[:0]

    def gather(self, want: int, make: Callable[[int], Genes], beside: Genes, tries: int = TRIES) -> Genes:
        """At most ``want`` new rows of ``make(n)`` within the limits; at most ``tries`` are made for each."""
        found, made, batch = self.none, 0, 2 * want
        while len(found) < want and made < tries * want:
            rows = self.asked.new(self.problem.settled(make(batch)), np.concatenate([beside, found]))
            found = np.concatenate([found, rows[self.problem.feasible(rows)]])[:want]
            made, batch = made + batch, min(2 * batch, 4096)
        return found

    def fresh(self, want: int, rng: np.random.Generator, beside: Genes | None = None) -> Genes:
        """At most ``want`` random rows within the limits that are new."""
        return self.gather(want, lambda n: self.problem.draw(n, rng), self.none if beside is None else beside, DRAWS)


class Unlearned(Proposer):
    """What is proposed does not depend on any score."""

    def matters(self, rows: Floats) -> Floats:
        return np.full(len(rows), np.inf)


class Random(Unlearned):
    """Random architectures within the limits, each once."""

    settings: recipe.Random

    def propose(self, round_: int, rng: np.random.Generator) -> Genes:
        return self.fresh(min(self.settings.batch, self.settings.evaluations - len(self.asked)), rng)


class Exhaustive(Unlearned):
    """Every path of a space within the limits; ViTAS v1's block-level space (section 5.3) has 4,000."""

    def __init__(self, problem: Problem, settings: recipe.Exhaustive):
        super().__init__(problem, settings)
        if problem.space.paths > settings.most:
            many = f"{problem.space.name} has {problem.space.paths:.3g} paths, too many to evaluate each"
            raise SuperformerError(f"{many} (most={settings.most:,}): narrow the space or use another method")
        rows = np.unique(problem.settled(every(problem.space)), axis=0)
        self.rows = rows[problem.feasible(rows)]
        if not len(self.rows):
            seen = problem.costs(rows)
            reach = " and ".join(f"{seen[n].min():,.6g} to {seen[n].max():,.6g} {n}" for n in problem.limits)
            none = f"none of the {len(rows):,} paths of {problem.space.name} lies within the limits"
            raise InfeasibleError(f"{none}; reachable: {reach}")

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


# --- by name ---

_MAKERS: dict[str, str | Callable[[Problem, Any], Method]] = {
    "evolution": "evolution:Evolution",
    "nsga2": "evolution:Nsga2",
    "predictor": "predictor:Predictor",
    "random": Random,
    "exhaustive": Exhaustive,
}
"""Those of other modules, which import much, are named."""


def names() -> list[str]:
    """The methods there are."""
    return list(METHODS)


def register(name: str, settings: type[SettingsBase], make: Callable[[Problem, Any], Method]) -> None:
    """Add a method: ``make(problem, settings)``."""
    if name in METHODS:
        raise SuperformerError(f"there is a search method {name!r} already")
    METHODS[name], _MAKERS[name] = settings, make


def method(problem: Problem, which: str | SettingsBase, **changes: Any) -> Method:
    """A method by its name, with changes to its settings, or by its settings: ``method(problem, "evolution",
    preset="vit-resnas")``."""
    if isinstance(which, SettingsBase):
        name = next((n for n, kind in METHODS.items() if type(which) is kind), type(which).__name__)
        settings = method_settings(name, {**which.model_dump(), **changes})
    else:
        name, settings = which, method_settings(which, changes)
    make = _MAKERS[name]
    if isinstance(make, str):
        module, _, attribute = make.partition(":")
        make = getattr(importlib.import_module(f"superformer.search.{module}"), attribute)
    made: Method = make(problem, settings)
    return made
