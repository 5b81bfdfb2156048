"""The front of a search: the best architectures within the limits, none better than another in every objective."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from superformer.search import pareto
from superformer.search.history import History
from superformer.search.show import say
from superformer.search.task import Task
from superformer.space.arch import Arch

MEASURED = 12
"""The most accurate networks of a front whose latency is measured for real."""
AGAIN = 1.0
"""Seconds for each."""


def front(task: Task, history: History, tell: Callable[[str], None]) -> dict[str, Any]:
    """The front over everything that the history knows of this supernet, from the most accurate down, and the best of it."""
    space, problem = task.net.space, task.problem
    known = [(Arch.from_json(r.arch_json), r.values["accuracy"]) for r in history.all()]
    archs = [arch for arch, _ in known]
    genes = space.encode(archs)
    costs = problem.costs(genes)
    accuracy = np.asarray([score for _, score in known])
    scores = np.stack([accuracy if o.name == "accuracy" else costs[o.name] for o in problem.objectives], 1)
    inside = np.flatnonzero(problem.feasible(genes))
    best = inside[pareto.front(scores[inside], problem.maximise)]
    best = best[np.lexsort((costs["macs"][best], -accuracy[best]))]
    rows = [
        {
            "key": archs[k].key,
            "accuracy": float(accuracy[k]),
            **{n: float(v[k]) for n, v in costs.items()},
            "arch": json.loads(archs[k].to_json()),
        }
        for k in best
    ]
    if task.table is not None:
        _measure(task, rows, tell)
    chosen = _best(task, rows)
    tell(f"{len(archs)} architectures known, {len(rows)} on the front")
    for row in rows[:8]:
        also = f" ({say('latency', row['measured'])} measured)" if "measured" in row else ""
        tell(
            f"  {row['key']}  {100 * row['accuracy']:.2f} %  "
            + "  ".join(f"{say(name, row[name])} {name}" for name in costs)
            + also
            + ("  <- best" if row is chosen else "")
        )
    return {**task.settings, "weights": task.weights, "evaluated": len(archs), "best": chosen["key"] if chosen else None, "front": rows}


def _plain(arch: Arch) -> Any:
    return json.loads(arch.to_json())


def _measure(task: Task, rows: list[dict[str, Any]], tell: Callable[[str], None]) -> None:
    assert task.table is not None
    some = rows[:MEASURED]
    tell(f"measuring the {len(some)} most accurate networks of the front")
    archs = [Arch.from_json(json.dumps(row["arch"])) for row in some]
    checked = task.table.against(task.net.space, archs, AGAIN, [task.net.extract(a).eval() for a in archs])
    for row, found in zip(some, checked, strict=True):
        row["measured"] = found.timing.median


def _best(task: Task, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The most accurate one; where latency is limited, of those that were measured to meet the limit, if there are any."""
    limit = task.problem.limits.get("latency")
    if limit is not None and (kept := [r for r in rows if r.get("measured", np.inf) <= limit[1]]):
        return kept[0]
    return rows[0] if rows else None
