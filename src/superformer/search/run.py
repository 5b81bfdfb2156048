"""A search in a run: from a trained supernet to the front of its best sub-networks within limits.

Everything a search does follows from the supernet, the settings and the scores, and every score is in the history as soon as it is known.
A search that was killed asks the same questions again, finds the answers in the history, and goes on where they end.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from superformer import data, files
from superformer.errors import StoppedError
from superformer.interrupt import Interrupt, deferred
from superformer.run import Run
from superformer.search import options as words
from superformer.search.evaluate import TOGETHER, Evaluator
from superformer.search.front import front
from superformer.search.history import Evaluation, History
from superformer.search.problem import Floats
from superformer.search.show import Progress, forecast
from superformer.search.task import Limits, Task, evaluator, ready
from superformer.space import Genes
from superformer.space.arch import Arch
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
            judge, split = evaluator(task.net, run.facts()["img_size"], pictures, recipe, options, world)
            with _history(run, task.weights, split, world) as history:
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
    """The objectives of candidates: from the history where they are known, else evaluated now, a share by each process."""
    archs = task.net.space.decode(genes)
    accuracy = torch.full((len(archs),), math.nan, dtype=torch.float64, device=world.device)
    if history is not None:
        have = history.get([a.path for a in archs])
        for k, arch in enumerate(archs):
            accuracy[k] = have.get(arch.path, {}).get("accuracy", math.nan)
    world.spread([accuracy])
    todo = [k for k in range(len(archs)) if math.isnan(float(accuracy[k]))]
    start = time.perf_counter()
    mine = todo[world.rank :: world.size]
    found = torch.zeros(len(archs), dtype=torch.float64, device=world.device)
    found[mine] = torch.tensor(judge([archs[k] for k in mine]), dtype=torch.float64, device=world.device)
    found = world.mean(found) * world.size
    accuracy[todo] = found[todo]
    costs = task.problem.costs(genes)
    if history is not None and todo:
        seconds = (time.perf_counter() - start) / len(todo)
        history.put(_evaluations(task, archs, todo, accuracy.tolist(), costs, seconds), number, round_)
    columns = [accuracy.cpu().numpy() if o.name == "accuracy" else costs[o.name] for o in task.problem.objectives]
    return np.stack(columns, 1), len(todo)


def _evaluations(
    task: Task, archs: Sequence[Arch], which: Sequence[int], accuracy: Sequence[float], costs: Mapping[str, Floats], seconds: float
) -> list[Evaluation]:
    return [
        Evaluation(
            archs[k].path,
            archs[k].to_json(),
            {"accuracy": accuracy[k], "macs": float(costs["macs"][k]), "params": float(costs["params"][k])},
            seconds,
        )
        for k in which
    ]
