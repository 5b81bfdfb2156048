"""A search in a run: from a trained supernet to the front of its best sub-networks within limits.

Everything a search does follows from the supernet, the settings and the scores, and every score is in the history as soon as it is known.
A search that was killed asks the same questions again, finds the answers in the history, and goes on where they end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from superformer import data, files
from superformer.errors import StoppedError
from superformer.evaluation.evaluator import TOGETHER, Evaluator
from superformer.interrupt import Interrupt, deferred
from superformer.run import Run
from superformer.search import options as words
from superformer.search.front import front
from superformer.search.history import History
from superformer.search.problem import EXACT, Floats
from superformer.search.scores import accuracies, split_of
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
    settings or of `superformer.search.options.Options`.
    """
    world = World.join()
    shown = console if world.first and console is not None else Console(quiet=True)

    def tell(text: str) -> None:
        shown.print(text, highlight=False, soft_wrap=True, markup=False)

    try:
        run = Run.open(folder)
        run.trained()
        options, rest = words.split(dict(changes or {}))
        with run.lock() if world.first else nullcontext():
            task = ready(run, dict(limits or {}), which, options, rest, tell)
            for line in forecast(task.problem):
                tell(line)
            task.problem.draw(1, np.random.default_rng(0))  # limits that nobody can meet are refused before anything is read
            recipe = run.recipe()
            pictures = data.load(run.facts()["data"], recipe.data, run.facts()["img_size"])
            run.same_pictures(pictures.fingerprint)
            net = task.net.to(world.device)
            judge = Evaluator.of(net, recipe, pictures, pictures.search, run.facts()["img_size"], options.pictures, world.device)
            with _history(run, task.weights, split_of(judge, pictures.search.fingerprint, options.pictures), world) as history:
                _rounds(task, judge, history, world, shown)
                found = front(task, history, tell) if history is not None else {}
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


def _rounds(task: Task, judge: Evaluator, history: History | None, world: World, console: Console) -> None:
    number = history.begin_search(json.dumps(task.settings)) if history is not None else None
    progress, known = Progress(console), 0
    try:
        with deferred() as interrupt:
            while len(genes := task.method.ask()):
                round_ = int(task.method.report["round"])
                for start in range(0, len(genes), TOGETHER * world.size):
                    some = genes[start : start + TOGETHER * world.size]
                    scores, fresh = _scores(task, some, judge, history, number, round_, world)
                    task.method.tell(some, scores)
                    known += len(some)
                    progress.step(round_, known, fresh, task.method.report["best"])
                    _stop(interrupt, known)
    finally:
        progress.close()


def _stop(interrupt: Interrupt, known: int) -> None:
    if interrupt.asked:
        raise StoppedError(f"interrupted after {known} candidates; all of them are in the history: the same command goes on from here")


def _scores(
    task: Task, genes: Genes, judge: Evaluator, history: History | None, number: int | None, round_: int, world: World
) -> tuple[Floats, int]:
    """The objectives of candidates, and how many of them were evaluated now."""
    costs = task.problem.costs(genes)

    def also(k: int) -> dict[str, float]:
        return {name: float(costs[name][k]) for name in EXACT}

    accuracy, fresh = accuracies(task.net.space.decode(genes), judge, history, world, also, number, round_)
    columns = [np.asarray(accuracy) if o.name == "accuracy" else costs[o.name] for o in task.problem.objectives]
    return np.stack(columns, 1), fresh
