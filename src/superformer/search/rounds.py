"""The rounds of a search: the method asks, candidates are judged, the method is told, until it has nothing more to ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from superformer.errors import StoppedError
from superformer.evaluation.evaluator import TOGETHER, Evaluator
from superformer.evaluation.score import Score
from superformer.evaluation.tree import alike
from superformer.interrupt import deferred
from superformer.search.history import History
from superformer.search.problem import EXACT
from superformer.search.racing import race
from superformer.search.scores import judged, ranked
from superformer.search.show import Progress
from superformer.search.task import Task
from superformer.space import Genes
from superformer.space.arch import Arch
from superformer.train.world import World


@dataclass(frozen=True)
class Told:
    """Candidates that were judged together: of which round, and how many were evaluated now (the others were known)."""

    round: int
    archs: list[Arch]
    scores: list[Score]
    fresh: int


def rounds(task: Task, judge: Evaluator, history: History | None, world: World, number: int | None = None) -> Iterator[Told]:
    """Run a search. The first process alone has the ``history``, where evaluations are noted as those of the ``number``-th search."""
    space, size = task.net.space, TOGETHER * world.size
    while len(genes := task.method.ask()):
        round_ = int(task.method.report["round"])
        genes = genes[alike(space.decode(genes))]
        for start in range(0, len(genes), size):
            yield _judged(task, genes[start : start + size], judge, history, world, number, round_)


def _judged(task: Task, genes: Genes, judge: Evaluator, history: History | None, world: World, number: int | None, round_: int) -> Told:
    costs, archs = task.problem.costs(genes), task.net.space.decode(genes)

    def also(k: int) -> dict[str, float]:
        return {name: float(costs[name][k]) for name in EXACT}

    reach = race(task.options, task.method, genes)
    scores, fresh = judged(archs, judge, history, world, also, number, round_, race=reach)
    columns = [ranked(scores) if o.name == "accuracy" else costs[o.name] for o in task.problem.objectives]
    task.method.tell(genes, np.stack(columns, 1))
    return Told(round_, archs, scores, fresh)


def shown(found: Iterator[Told], console: Console) -> Iterator[Told]:
    """The same, with its progress; Ctrl-C stops between two groups of candidates."""
    progress, known, best = Progress(console), 0, 0.0
    try:
        with deferred() as interrupt:
            for told in found:
                known, best = known + len(told.archs), max([best, *(s.accuracy for s in told.scores if s.accuracy > best)])
                progress.step(told.round, known, told.fresh, best)
                yield told
                if interrupt.asked:
                    raise StoppedError(
                        f"interrupted after {known} candidates; all of them are in the history: the same command goes on from here"
                    )
    finally:
        progress.close()
