"""A search in a run: from a trained supernet to the front of its best sub-networks within limits.

Everything a search does follows from the supernet, the settings and the scores, and every score is in the history as soon as it is known.
A search that was killed asks the same questions again, finds the answers in the history, and goes on where they end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from superformer import data, files, provenance
from superformer.errors import StoppedError
from superformer.evaluation.evaluator import TOGETHER, Evaluator
from superformer.evaluation.moved import number as copies
from superformer.evaluation.score import Score
from superformer.evaluation.tree import alike
from superformer.interrupt import Interrupt, deferred
from superformer.run import Run
from superformer.search import options as words
from superformer.search import racing
from superformer.search.front import front
from superformer.search.history import History
from superformer.search.problem import EXACT, Floats
from superformer.search.racing import Racing
from superformer.search.scores import judged, ranked, split_of
from superformer.search.show import Progress, forecast
from superformer.search.task import Limits, Task, ready
from superformer.space import Genes
from superformer.train.world import World


def search(
    folder: str | Path,
    limits: Limits | None = None,
    which: str | None = None,
    changes: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Search the supernet of a run; what is returned is also in its ``front.json``.

    ``limits``: (low, high) of macs, params and latency (in seconds). ``which`` method, if not that of the recipe; ``changes`` of its
    settings, of `superformer.search.options.Options` or of `superformer.search.racing.Racing`.
    """
    world = World.join()
    shown = console if world.first and console is not None else Console(quiet=True)

    def tell(text: str) -> None:
        shown.print(text, highlight=False, soft_wrap=True, markup=False)

    try:
        run = Run.open(folder)
        run.trained()
        races, rest = racing.split(changes or {})
        options, rest = words.split(rest)
        with run.lock() if world.first else nullcontext():
            task = ready(run, dict(limits or {}), which, options, rest, tell)
            for line in forecast(task.problem):
                tell(line)
            task.problem.draw(1, np.random.default_rng(0))  # limits that nobody can meet are refused before anything is read
            recipe = run.recipe()
            pictures = data.load(run.facts()["data"], recipe.data, run.facts()["img_size"])
            run.same_pictures(pictures.fingerprint)
            if world.first:
                provenance.note(run.folder)
            net = task.net.to(world.device)
            size = run.facts()["img_size"]
            evaluator = partial(Evaluator.of, net, recipe, pictures, pictures.search, size, options.pictures, world.device)
            judge, again = evaluator(), evaluator(moved=True) if copies(recipe.data, size) > 1 else None
            with _history(run, task.weights, split_of(judge, pictures.search.fingerprint, options.pictures), world) as history:
                _rounds(task, judge, history, world, races, shown)
                for line in _learned(task.method.report):
                    tell(line)
                found = front(task, history, again, tell) if history is not None else {}
            if world.first:
                files.write(run.front_file, json.dumps(found, indent=1))
            world.wait()
            return found
    finally:
        world.leave()


@contextmanager
def _history(run: Run, weights: str, split: str, world: World) -> Iterator[History | None]:
    """The first process alone reads and writes it."""
    if not world.first:
        yield None
        return
    with History(run.history_file, weights, split) as history:
        yield history


def _rounds(task: Task, judge: Evaluator, history: History | None, world: World, races: Racing, console: Console) -> None:
    settings = {**task.settings, **races.model_dump(mode="json")}
    number = history.begin_search(json.dumps(settings)) if history is not None else None
    progress, known, best = Progress(console), 0, 0.0
    try:
        with deferred() as interrupt:
            while len(genes := task.method.ask()):
                round_ = int(task.method.report["round"])
                genes = genes[alike(task.net.space.decode(genes))]
                for start in range(0, len(genes), TOGETHER * world.size):
                    some = genes[start : start + TOGETHER * world.size]
                    scores, fresh = _scores(task, some, judge, history, number, round_, world, races)
                    task.method.tell(some, _objectives(task, some, scores))
                    known, best = known + len(some), max([best, *(s.accuracy for s in scores if s.accuracy > best)])
                    progress.step(round_, known, fresh, best)
                    _stop(interrupt, known)
    finally:
        progress.close()


def _learned(report: Mapping[str, Any]) -> Iterator[str]:
    """How well a predictor ranks (NASViT, algorithm 2, line 3)."""
    if report.get("kendall") is not None:
        found = ", ".join(f"{name.capitalize()} {report[name]:.2f}" for name in ("kendall", "spearman", "pearson"))
        yield f"predicted against measured accuracy of the half that the predictor did not learn from: {found}"


def _stop(interrupt: Interrupt, known: int) -> None:
    if interrupt.asked:
        raise StoppedError(f"interrupted after {known} candidates; all of them are in the history: the same command goes on from here")


def _scores(
    task: Task, genes: Genes, judge: Evaluator, history: History | None, number: int | None, round_: int, world: World, races: Racing
) -> tuple[list[Score], int]:
    """The scores of candidates, and how many of them were evaluated now."""
    costs = task.problem.costs(genes)

    def also(k: int) -> dict[str, float]:
        return {name: float(costs[name][k]) for name in EXACT}

    archs, race = task.net.space.decode(genes), racing.race(races, task.method, genes)
    return judged(archs, judge, history, world, also, number, round_, race=race)


def _objectives(task: Task, genes: Genes, scores: Sequence[Score]) -> Floats:
    costs = task.problem.costs(genes)
    return np.stack([ranked(scores) if o.name == "accuracy" else costs[o.name] for o in task.problem.objectives], 1)
