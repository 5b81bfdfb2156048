"""The rounds of a search: the method asks, candidates are judged, the method is told, until it has nothing more to
ask."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live

from superformer import files
from superformer.errors import StoppedError
from superformer.evaluation.evaluator import TOGETHER, Evaluator, Score
from superformer.evaluation.evaluator import number as copies
from superformer.evaluation.prefix_tree import alike
from superformer.evaluation.trained_run import Opened
from superformer.progress import Clock, Tell, deferred_interrupts, quiet, teller
from superformer.recipes.search import split_options
from superformer.runs.folder import Run, note_command
from superformer.runs.processes import World
from superformer.search.front import front
from superformer.search.history import History
from superformer.search.problem import EXACT, Problem, say
from superformer.search.scores import history_of, judged, race, ranked
from superformer.search.task import Limits, Task, ready
from superformer.space import Genes
from superformer.space.arch import Arch


@dataclass(frozen=True)
class Told:
    """Candidates that were judged together: of which round, and how many were evaluated now (the others were known)."""

    round: int
    archs: list[Arch]
    scores: list[Score]
    fresh: int


def rounds(
    task: Task, judge: Evaluator, history: History | None, world: World, number: int | None = None
) -> Iterator[Told]:
    """Run a search. The first process alone has the ``history``, where evaluations are noted as those of the
    ``number``-th search."""
    space, size = task.net.space, TOGETHER * world.size
    while len(genes := task.method.ask()):
        round_ = int(task.method.report["round"])
        genes = genes[alike(space.decode(genes))]
        for start in range(0, len(genes), size):
            yield _judged(task, genes[start : start + size], judge, history, world, number, round_)


def _judged(
    task: Task, genes: Genes, judge: Evaluator, history: History | None, world: World, number: int | None, round_: int
) -> Told:
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
        with deferred_interrupts() as interrupt:
            for told in found:
                known, best = (
                    known + len(told.archs),
                    max([best, *(s.accuracy for s in told.scores if s.accuracy > best)]),
                )
                progress.step(told.round, known, told.fresh, best)
                yield told
                if interrupt.asked:
                    raise StoppedError(
                        f"interrupted after {known} candidates; all of them are in the history: the same command goes on from here"
                    )
    finally:
        progress.close()


# What a search tells: what the limits mean before it begins, and how far it is.


__all__ = ["Progress", "forecast", "say"]

DRAWS = 2000
"""Random networks that tell how costs spread."""
QUANTILES = (0, 5, 25, 50, 75, 95, 100)


def forecast(problem: Problem) -> Iterator[str]:
    """How the costs of random networks spread, and what the limits leave of them."""
    space = problem.space
    genes = np.concatenate([space.sample_genes(DRAWS, 0), space.encode([space.smallest(), space.largest()])])
    costs = problem.costs(genes)
    for name, values in costs.items():
        marks = ", ".join(say(name, v) for v in np.percentile(values, QUANTILES))
        yield f"{name} of random networks (smallest; 5, 25, 50, 75, 95 % below; largest): {marks}"
    if problem.limits:
        share = problem.feasible(genes).mean()
        ends = ", ".join(f"{name} {_ends(name, low, high)}" for name, (low, high) in problem.limits.items())
        yield f"limits: {ends}; {100 * share:.3g} % of random networks meet them"


def _ends(name: str, low: float, high: float) -> str:
    words = [f"from {say(name, low)}"] * (low > 0) + [f"up to {say(name, high)}"] * math.isfinite(high)
    return " ".join(words) or "without a limit"


class Progress:
    """A live line on a terminal, else a line every so often."""

    def __init__(self, console: Console):
        self.console, self.clock, self.fresh = console, Clock(), 0
        self.live = Live(console=console, transient=True, refresh_per_second=4) if console.is_terminal else None
        if self.live is not None:
            self.live.start()

    def step(self, round_: int, known: int, fresh: int, best: float | None) -> None:
        """``known`` evaluations in all, ``fresh`` of them made now."""
        self.fresh += fresh
        speed = self.fresh / max(self.clock.seconds, 1e-9)
        text = f"round {round_}: {known} candidates, {self.fresh} evaluated now ({speed:.3g} a second)"
        text += "" if best is None else f", best {100 * best:.2f} %"
        if self.live is not None:
            self.live.update(text)
        elif self.clock.due():
            teller(self.console)(text)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()


# A search in a run: from a trained supernet to the front of its best sub-networks within limits.
#
# Everything a search does follows from the supernet, the settings and the scores, and every score is in the history
# as soon as it is known. A search that was killed asks the same questions again, finds the answers in the history,
# and goes on where they end.


def search(
    folder: str | Path,
    limits: Limits | None = None,
    which: str | None = None,
    changes: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Search the supernet of a run; what is returned is also in its ``front.json``.

    ``limits``: (low, high) of macs, params, latency (in seconds), throughput (pictures a second) and memory (bytes).
    ``which`` method, if not that of the recipe; ``changes`` of its settings or of
    `superformer.recipes.search.Options`."""
    world = World.join()
    own = quiet(console if world.first else None)
    tell = teller(own)
    try:
        run = Run.open(folder)
        run.require_trained()
        options, rest = split_options(changes or {})
        with run.lock() if world.first else nullcontext():
            task = ready(run, dict(limits or {}), which, options, rest, tell)
            for line in forecast(task.problem):
                tell(line)
            task.problem.check()  # before anything is read
            opened = Opened.of(run, task.net, device=world.device)
            if world.first:
                note_command(run.folder)
            found = _found(task, opened, world, own, tell)
            if world.first:
                files.write(run.front_file, json.dumps(found, indent=1))
            world.wait()
            return found
    finally:
        world.leave()


def _found(task: Task, opened: Opened, world: World, console: Console, tell: Tell) -> dict[str, Any]:
    """The front. The first process alone reads and writes the history."""
    limit = task.options.pictures
    judge = opened.judge(limit=limit)
    again = opened.judge(limit=limit, moved=True) if copies(opened.recipe.data, opened.img_size) > 1 else None
    with history_of(opened, limit) if world.first else nullcontext() as history:
        number = history.begin_search(json.dumps(task.settings)) if history is not None else None
        for _ in shown(rounds(task, judge, history, world, number), console):
            pass
        for line in _learned(task.method.report):
            tell(line)
        return front(task, history, again, tell) if history is not None else {}


def _learned(report: Mapping[str, Any]) -> Iterator[str]:
    """How well a predictor ranks (NASViT, algorithm 2, line 3)."""
    if report.get("kendall") is not None:
        found = ", ".join(f"{name.capitalize()} {report[name]:.2f}" for name in ("kendall", "spearman", "pearson"))
        yield f"predicted against measured accuracy of the half that the predictor did not learn from: {found}"
