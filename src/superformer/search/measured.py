"""The best network of a search, measured for real: searches limit latency and throughput by what a table predicts of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from superformer.cost.latency_table import LatencyTable
from superformer.search.problem import say
from superformer.search.task import Task
from superformer.space.arch import Arch
from superformer.telling import Tell

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
    """The first of the rows. Where latency or throughput is limited, the first that meets the limits when it is measured, twice: of many
    that lie near a limit, some meet it once by luck. If none does, the nearest.
    """
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
    """Whether everything takes longer, or less, than when the table was measured: then other work on the machine began or ended."""
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
    tell(f"none of the {len(rows)} best networks met the limits when it was measured; the nearest, {nearest['key']}, is the best")
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
