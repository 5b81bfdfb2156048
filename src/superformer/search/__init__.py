"""Search: methods that propose architectures and learn from their scores, and know nothing of networks.

A `Problem` says what is searched: a space, objectives, costs and limits. A method is asked for rows of genes and told
their scores::

    problem = Problem.of(space, ("accuracy", "macs"), limits={"macs": (0, 2e9)})
    search = method(problem, "nsga2", generations=10)
    while len(genes := search.ask()):
        search.tell(genes, scores_of(genes))

Everything a method does follows from its problem, its settings and the scores it was told.

`search` does so in a run, from a trained supernet to the front of its best sub-networks within limits. Every score is
in the history as soon as it is known: a search that was killed asks the same questions again, finds the answers there,
and goes on where they end."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live

from superformer import files
from superformer.errors import StoppedError
from superformer.evaluation.evaluator import TOGETHER, Score, TrainedRun, count_copies
from superformer.evaluation.prefix_tree import prefix_order
from superformer.machine import tell_if_busy
from superformer.progress import Clock, Tell, deferred_interrupts, quiet, take_begin, teller
from superformer.recipes.searching import method_settings as settings_of
from superformer.recipes.searching import split_options
from superformer.runs import Run, note_command
from superformer.runs.processes import World
from superformer.search.front import find_front
from superformer.search.judging import RACED, FewFirst, wanted
from superformer.search.methods import Method, method, names, register
from superformer.search.problem import Objective, Problem
from superformer.search.scores import JUDGED, Scorer, history_of, needed_by_guess, race, ranked
from superformer.search.task import Task
from superformer.search.timing import SearchClock, timed
from superformer.space import Genes
from superformer.space.arch import Arch
from superformer.space.sampling import EXACT, Limits, say_cost
from superformer.train.time_budget import Stopwatch, check_minutes

__all__ = ["Method", "Objective", "Problem", "method", "names", "register", "search", "settings_of"]

DRAWS, QUANTILES = 2000, (0, 5, 25, 50, 75, 95, 100)
"""Random networks that tell how costs spread, and what is told of them."""


def search(
    folder: str | Path,
    limits: Limits | None = None,
    which: str | None = None,
    changes: Mapping[str, Any] | None = None,
    console: Console | None = None,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Search the supernet of a run; what is returned is also in its ``front.json``.

    ``limits``: (low, high) of macs, params, latency (in seconds), throughput (pictures a second), memory (bytes), and
    of costs that were imported, each in its unit.
    ``which`` method, if not that of the recipe; ``changes`` of its settings or of
    `superformer.recipes.settings.Options`. ``minutes``: as many candidates, and pictures, as fit into them
    (`superformer.search.timing`)."""
    check_minutes(minutes)
    watch = Stopwatch(start=take_begin())
    world = World.join()
    shown = quiet(console if world.first else None)
    tell = teller(shown)
    try:
        run = Run.open(folder)
        run.require_trained()
        options, rest = split_options(changes or {})
        tell_if_busy(tell)
        with run.lock() if world.first else nullcontext():
            task = Task.of(run, dict(limits or {}), which, options, rest, tell)
            for line in forecast(task.problem):
                tell(line)
            task.problem.check()  # before anything is read
            trained = TrainedRun.of(run, task.net, device=world.device)
            clock = None
            if minutes is not None:
                task, clock, lines = timed(task, trained, minutes, watch, world)
                for line in lines:
                    tell(line)
            if world.first:
                note_command(run.folder)
            found = _rounds_and_front(task, trained, world, shown, tell, clock)
            if world.first:
                files.write_object(run.front_file, found)
            world.wait()
            return found
    finally:
        world.leave()


def forecast(problem: Problem) -> Iterator[str]:
    """How the costs of random networks spread, and what the limits leave of them."""
    space = problem.space
    genes = np.concatenate([space.sample_genes(DRAWS, 0), space.encode([space.smallest(), space.largest()])])
    for name, values in problem.costs(genes).items():
        marks = ", ".join(say_cost(name, v, problem.units.get(name)) for v in np.percentile(values, QUANTILES))
        yield f"{name} of random networks (smallest; 5, 25, 50, 75, 95 % below; largest): {marks}"
    ends = []
    for name, (low, high) in problem.limits.items():
        least, most = (say_cost(name, end, problem.units.get(name)) for end in (low, high))
        words = [f"from {least}"] * (low > 0) + [f"up to {most}"] * math.isfinite(high)
        ends.append(f"{name} {' '.join(words) or 'without a limit'}")
    if ends:
        yield f"limits: {', '.join(ends)}; {100 * problem.feasible(genes).mean():.3g} % of random networks meet them"


def _rounds_and_front(
    task: Task, trained: TrainedRun, world: World, console: Console, tell: Tell, clock: SearchClock | None
) -> dict[str, Any]:
    """The first process alone reads and writes the history, and has the front."""
    limit = task.options.pictures
    evaluator, varied = trained.evaluator(limit=limit), None
    if (clock is None or clock.plan["judged"]) and count_copies(trained.recipe.data, trained.img_size) > 1:
        varied = trained.evaluator(limit=limit, varied=True)
    with history_of(trained, limit) if world.first else nullcontext() as history:
        number = history.begin_search(json.dumps(task.settings)) if history is not None else None
        scorer = Scorer(evaluator, history, world, number)
        with ExitStack() as stack:
            few = FewFirst.of(trained, task.options, scorer, world, stack) if wanted(task.options, trained) else None
            if few is not None:
                tell(f"few pictures first: {', '.join(map(str, few.ends))} (judging=full shows all to everyone)")
            for _ in with_progress(rounds(task, scorer, few, clock), console):
                pass
        report = task.method.report
        if report.get("kendall") is not None:  # how well a predictor ranks (NASViT, algorithm 2, line 3)
            found = ", ".join(f"{name.capitalize()} {report[name]:.2f}" for name in ("kendall", "spearman", "pearson"))
            tell(f"predicted against measured accuracy of the half that the predictor did not learn from: {found}")
        judged = JUDGED if clock is None else clock.again()
        varied = varied if judged else None
        return find_front(task, history, evaluator, varied, tell, judged) if history is not None else {}


@dataclass(frozen=True)
class Scored:
    """Candidates that were scored together: of which round, and how many were evaluated now (the others were known)."""

    round: int
    archs: list[Arch]
    scores: list[Score]
    fresh: int


def rounds(
    task: Task, scorer: Scorer, few: FewFirst | None = None, clock: SearchClock | None = None
) -> Iterator[Scored]:
    """The rounds of a search, some candidates at a time; those that see ``few`` pictures first, together. A ``clock``
    may end a round, and with it the search."""
    space, problem, told, shown = task.net.space, task.problem, 0, 0
    while len(genes := _asked(task.method, clock)):
        round_ = int(task.method.report["round"])
        genes = genes[prefix_order(space.decode(genes))]
        size = len(genes) if few is not None else TOGETHER * scorer.world.size
        size = size if clock is None else min(size, clock.plan["lot"])
        for start in range(0, len(genes), size):
            if clock is not None and clock.over(told, shown if few is None else few.shown, task.method):
                left = genes[start:]
                task.method.tell(left, np.full((len(left), len(problem.objectives)), np.nan))
                if "ended" in clock.plan and told >= clock.plan["ended"]:
                    return
                break
            told += len(genes[start : start + size])
            some, fresh = genes[start : start + size], 0
            costs, archs = problem.costs(some), space.decode(some)
            exact = [{name: float(costs[name][k]) for name in EXACT} for k in range(len(some))]
            if few is not None:
                needed = functools.partial(needed_by_guess, task.method, some, finalists=RACED)
                estimates = getattr(task.method, "estimates_do", False)
                scores = yield from _begun(few.scores(archs, exact, round_, needed, estimates), round_)
            else:
                scores, fresh = scorer.scores(archs, exact, round_, race=race(task.options, task.method, some))
                shown += fresh * (scorer.evaluator.pictures or 0)
            columns = [ranked(scores) if o.name == "accuracy" else costs[o.name] for o in problem.objectives]
            task.method.tell(some, np.stack(columns, 1))
            yield Scored(round_, archs, scores, fresh)


def _asked(method: Method, clock: SearchClock | None) -> Genes:
    if clock is not None:
        clock.before_round(method)
    return method.ask()


def _begun(asking: Generator[int, None, list[Score]], round_: int) -> Generator[Scored, None, list[Score]]:
    """What a race tells on the way, as steps of a search."""
    while True:
        try:
            fresh = next(asking)
        except StopIteration as end:
            scores: list[Score] = end.value
            return scores
        yield Scored(round_, [], [], fresh)


def with_progress(found: Iterator[Scored], console: Console) -> Iterator[Scored]:
    """The same, with how far it is: a live line on a terminal, else a line every so often. Ctrl-C stops between two
    groups of candidates."""
    clock, known, fresh, best = Clock(), 0, 0, 0.0
    terminal = Live(console=console, transient=True, refresh_per_second=4) if console.is_terminal else nullcontext()
    with terminal as live, deferred_interrupts() as interrupt:
        for scored in found:
            known, fresh = known + len(scored.archs), fresh + scored.fresh
            best = max([best, *(s.accuracy for s in scored.scores if s.accuracy > best)])
            speed = fresh / max(clock.seconds, 1e-9)
            now = f"{fresh} evaluated now ({speed:.3g} a second)"
            text = f"round {scored.round}: {known} candidates, {now}, best {100 * best:.2f} %"
            if live is not None:
                live.update(text)
            elif clock.due():
                teller(console)(text)
            yield scored
            if interrupt.asked:
                kept = "all of them are in the history: the same command goes on from here"
                raise StoppedError(f"interrupted after {known} candidates; {kept}")
