"""A search in a run: from a trained supernet to the front of its best sub-networks within limits.

Everything a search does follows from the supernet, the settings and the scores, and every score is in the history as soon as it is known.
A search that was killed asks the same questions again, finds the answers in the history, and goes on where they end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from superformer import files, provenance
from superformer.evaluation.moved import number as copies
from superformer.evaluation.opened import Opened
from superformer.run import Run
from superformer.search import options as words
from superformer.search.front import front
from superformer.search.rounds import rounds, shown
from superformer.search.scores import history_of
from superformer.search.show import forecast
from superformer.search.task import Limits, Task, ready
from superformer.telling import Tell, quiet, teller
from superformer.train.world import World


def search(
    folder: str | Path,
    limits: Limits | None = None,
    which: str | None = None,
    changes: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Search the supernet of a run; what is returned is also in its ``front.json``.

    ``limits``: (low, high) of macs, params, latency (in seconds), throughput (pictures a second) and memory (bytes). ``which`` method, if
    not that of the recipe; ``changes`` of its settings or of `superformer.search.options.Options`.
    """
    world = World.join()
    own = quiet(console if world.first else None)
    tell = teller(own)
    try:
        run = Run.open(folder)
        run.trained()
        options, rest = words.split(changes or {})
        with run.lock() if world.first else nullcontext():
            task = ready(run, dict(limits or {}), which, options, rest, tell)
            for line in forecast(task.problem):
                tell(line)
            task.problem.check()  # before anything is read
            opened = Opened.of(run, task.net, device=world.device)
            if world.first:
                provenance.note(run.folder)
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
