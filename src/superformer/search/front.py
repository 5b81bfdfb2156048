"""The best network of a search, measured for real: searches limit latency and throughput by what a table predicts of
them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from superformer.cost.latency_table import LatencyTable
from superformer.evaluation.evaluator import Evaluator, Score
from superformer.progress import Tell
from superformer.search import problem as pareto
from superformer.search.history import Evaluation, History, Record
from superformer.search.problem import say
from superformer.search.scores import FINALISTS, JUDGED, agreed, ranked
from superformer.search.task import Task
from superformer.space.arch import Arch

AT_ONCE = 6
"""Networks that are measured in turn: the best first, until one meets the limits."""
SHOWN = 12
"""The most accurate networks of a front, which are all measured."""
SECONDS = 1.0
"""For each network."""
DRIFT, FEW = 1.25, 3
"""How far the median of so many measured networks may be from what was predicted before it is told."""
KEYS = {"latency": "measured", "throughput": "measured_throughput"}
"""Under which name a row has what was measured."""

Row = dict[str, Any]


def measured(row: Row, name: str) -> str:
    """What was measured of a row, in words."""
    return f" ({say(name, row[KEYS[name]])} measured)" if KEYS.get(name) in row else ""


def best_measured(task: Task, rows: list[Row], front: list[Row], tell: Tell) -> Row | None:
    """The first of the rows. Where latency or throughput is limited, the first that meets the limits when it is
    measured, twice: of many that lie near a limit, some meet it once by luck. If none does, the nearest."""
    if not rows or not any(_tables(task)):
        return rows[0] if rows else None
    chosen = _first(task, rows, tell)
    left = [row for row in front[:SHOWN] if not any(key in row for key in KEYS.values())]
    if left:
        tell(f"measuring {len(left)} more networks of the front")
        measure(task, left)
    for line in drift(list({row["key"]: row for row in (*rows, *front)}.values())):
        tell(line)
    return chosen


def drift(rows: Sequence[Row]) -> Iterator[str]:
    """Whether everything takes longer, or less, than when the table was measured: then other work on the machine began
    or ended."""
    ratios = [row["measured"] / row["latency"] for row in rows if "measured" in row and "latency" in row]
    ratio = float(np.median(ratios)) if len(ratios) >= FEW else 1.0
    if not 1 / DRIFT <= ratio <= DRIFT:
        yield (
            f"networks now take {ratio:.2f} times as long as predicted: other work on this machine {'began' if ratio > 1 else 'ended'} "
            "since the table was measured. On a quiet machine, "
            "delete the latency-*.json of the run and search again (nothing is evaluated twice)"
        )


def _first(task: Task, rows: list[Row], tell: Tell) -> Row:
    limited = any(name in task.problem.limits for name, _ in _tables(task))
    for start in range(0, len(rows), AT_ONCE):
        some = rows[start : start + AT_ONCE]
        tell(f"measuring {len(some)} networks, from the best down")
        measure(task, some)
        for row in some:
            if limited and not _excess(task, row):
                measure(task, [row])
            if not _excess(task, row):
                return row
    nearest = min(rows, key=lambda row: _excess(task, row))
    tell(
        f"none of the {len(rows)} best networks met the limits when it was measured; the nearest, {nearest['key']}, is the best"
    )
    return nearest


def _tables(task: Task) -> Iterator[tuple[str, LatencyTable]]:
    for name, table in (("latency", task.table), ("throughput", task.throughput)):
        if table is not None:
            yield name, table


def _excess(task: Task, row: Row) -> float:
    """How far what was measured lies outside the limits, as a part of them."""
    low, _ = task.problem.limits.get("throughput", (0.0, math.inf))
    _, high = task.problem.limits.get("latency", (0.0, math.inf))
    return float(max(row.get("measured", 0.0) / high - 1, low / row.get("measured_throughput", math.inf) - 1, 0.0))


def measure(task: Task, rows: list[Row]) -> None:
    """The median of a second; of several seconds the slowest."""
    archs = [Arch.from_json(json.dumps(row["arch"])) for row in rows]
    for name, table in _tables(task):
        found = table.against(task.net.space, archs, SECONDS, [task.net.extract(a).eval() for a in archs])
        for row, median in zip(rows, (one.timing.median for one in found), strict=True):
            if name == "latency":
                row["measured"] = max(median, row.get("measured", 0.0))
            else:
                row["measured_throughput"] = min(table.batch / median, row.get("measured_throughput", math.inf))


# The front of a search: the best architectures within the limits, none better than another in every objective.


AGAIN = "moved_"
"""What the names of the values on more pictures begin with."""
SHOWN = 8
"""Rows that are told."""


def front(task: Task, history: History, again: Evaluator | None, tell: Tell) -> dict[str, Any]:
    """The front over everything that the history knows of this supernet, from the most accurate down, and the best of
    it.

    Of equal accuracy the lower loss counts as the better (`superformer.search.scores.ranked`). To choose the best of
    the ``FINALISTS`` most accurate, those that are first by accuracy and loss together
    (`superformer.search.scores.agreed`) are judged ``again``, on more pictures, and so compared; it is among the rows
    even if another one is more accurate on the fewer pictures."""
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
        tell(
            f"judging the {len(first)} best again, on the search split and moved copies of it: {again.pictures} pictures"
        )
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
