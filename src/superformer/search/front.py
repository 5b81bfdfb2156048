"""The front of a search: the best architectures within the limits, none better than another in every objective."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from superformer.evaluation.evaluator import Evaluator
from superformer.evaluation.score import Score
from superformer.search import pareto
from superformer.search.history import Evaluation, History, Record
from superformer.search.measured import Row, best_measured, measured
from superformer.search.scores import FINALISTS, JUDGED, agreed, ranked
from superformer.search.show import say
from superformer.search.task import Task
from superformer.space.arch import Arch
from superformer.telling import Tell

AGAIN = "moved_"
"""What the names of the values on more pictures begin with."""
SHOWN = 8
"""Rows that are told."""


def front(task: Task, history: History, again: Evaluator | None, tell: Tell) -> dict[str, Any]:
    """The front over everything that the history knows of this supernet, from the most accurate down, and the best of it.

    Of equal accuracy the lower loss counts as the better (`superformer.search.scores.ranked`). To choose the best of the ``FINALISTS`` most
    accurate, those that are first by accuracy and loss together (`superformer.search.scores.agreed`) are judged ``again``, on more
    pictures, and so compared; it is among the rows even if another one is more accurate on the fewer pictures.
    """
    space, problem = task.net.space, task.problem
    known = history.all()
    archs = [Arch.from_json(r.arch_json) for r in known]
    rank = ranked([_score(r.values) for r in known])
    genes = space.encode(archs)
    costs = problem.costs(genes)
    table = np.stack([rank if o.name == "accuracy" else costs[o.name] for o in problem.objectives], 1)
    inside = np.flatnonzero(problem.feasible(genes))
    best = inside[pareto.front(table[inside], problem.maximise)]

    def row(k: int) -> Row:
        values = {name: known[k].values[name] for name in ("accuracy", "loss") if name in known[k].values}
        return {
            "key": archs[k].key,
            **values,
            **{n: float(v[k]) for n, v in costs.items()},
            "arch": json.loads(archs[k].to_json()),
        }

    def sort(places: Iterable[int]) -> list[int]:
        return sorted(map(int, places), key=lambda k: (-rank[k], costs["macs"][k], k))

    rows = {k: row(k) for k in sort(best)}
    first: list[int] = []
    if again is not None:
        first = _best(sort(inside)[:FINALISTS], [_score(r.values) for r in known])[:JUDGED]
        tell(f"judging the {len(first)} best again, on the search split and moved copies of it: {again.pictures} pictures")
        judged = _again([known[k] for k in first], [archs[k] for k in first], again, history)
        first = _best(first, dict(zip(first, judged, strict=True)))
    order = {k: rows.get(k) or row(k) for k in [*first, *rows]}
    chosen = best_measured(task, list(order.values()), list(rows.values()), tell)
    rows |= {k: found for k, found in order.items() if found is chosen}
    shown = [rows[k] for k in sort(rows)]
    tell(f"{len(archs)} architectures known, {len(best)} on the front")
    for own in [own for k, own in enumerate(shown) if k < SHOWN or own is chosen]:
        tell(
            f"  {own['key']}  {100 * own['accuracy']:.2f} %  "
            + "  ".join(f"{say(name, own[name])} {name}{measured(own, name)}" for name in costs)
            + ("  <- best" if own is chosen else "")
        )
    return {
        **task.settings,
        "weights": task.run.fingerprint(),
        "evaluated": len(archs),
        "best": chosen["key"] if chosen else None,
        "front": shown,
    }


def _score(values: Mapping[str, float], which: str = "") -> Score:
    return Score(values.get(which + "accuracy", math.nan), values.get(which + "loss", math.nan))


def _best(places: Sequence[int], scores: Mapping[int, Score] | Sequence[Score]) -> list[int]:
    """Candidates from the best down, by accuracy and loss together; equal ones stay in their order."""
    order = np.argsort(-agreed([scores[k] for k in places]), kind="stable")
    return [places[n] for n in order]


def _again(known: Sequence[Record], archs: Sequence[Arch], judge: Evaluator, history: History) -> list[Score]:
    """The scores on more pictures; they are kept beside the others, and nobody is judged so twice."""
    found = [_score(r.values, AGAIN) for r in known]
    todo = [k for k, score in enumerate(found) if math.isnan(score.accuracy)]
    for k, score in zip(todo, judge.scores([archs[k] for k in todo]), strict=True):
        found[k] = score
    kept = {k: {f"{AGAIN}{name}": v for name, v in found[k]._asdict().items() if math.isfinite(v)} for k in todo}
    history.put([Evaluation(known[k].key, known[k].arch_json, kept[k]) for k in todo])
    return found
