"""The front of a search: the best architectures within the limits, none better than another in every objective.

In phases: `select` the front from everything that the history knows; `rejudge` the most accurate on more pictures, to
find the best; measure for real, where latency or throughput is limited by what a table predicts (`best_measured`); and
set beside it what nobody had to search for (`hand_made`)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from superformer.cost.latency_table import LatencyTable
from superformer.cost.scaling import baseline
from superformer.evaluation.evaluator import Evaluator, Score
from superformer.progress import Tell
from superformer.search.history import Evaluation, History, Record
from superformer.search.problem import Floats, front
from superformer.search.scores import FINALISTS, JUDGED, agreed, ranked
from superformer.search.task import Task
from superformer.space.arch import Arch
from superformer.space.sampling import say_cost

VARIED = "moved_"
"""What the names of the values on more pictures begin with."""
AT_ONCE, MEASURED, SECONDS = 6, 12, 1.0
"""Networks that are measured in turn, the best first, until one meets the limits; the most accurate of a front, which
are all measured; for each network."""
DRIFT, ENOUGH = 1.25, 3
"""How far the median of so many measured networks may be from what was predicted before it is told."""
TOLD, KEYS = 8, {"latency": "measured", "throughput": "measured_throughput"}
"""Rows that are told, and under which name a row has what was measured."""

Row = dict[str, Any]


def find_front(
    task: Task, history: History, plain: Evaluator, varied: Evaluator | None, tell: Tell, judged: int = JUDGED
) -> Row:
    """The front over everything that the history knows of this supernet, from the most accurate down, and the best of
    it, which is among the rows even if another one is more accurate on the fewer pictures. ``plain`` judges as the
    search did, ``varied`` on more pictures, ``judged`` of them."""
    known, inside, on_front = select(task, history)
    rows = {k: known.row(k) for k in on_front}
    finalists = [] if varied is None else rejudge(known, inside, varied, history, tell, judged)
    candidates = {k: rows.get(k) or known.row(k) for k in [*finalists, *rows]}
    best = best_measured(task, list(candidates.values()), list(rows.values()), tell)
    rows |= {k: row for k, row in candidates.items() if row is best}
    shown = [rows[k] for k in known.sort(rows)]
    tell(f"{len(known.archs)} architectures known, {len(on_front)} on the front")
    by_hand = hand_made(task, history, plain, best) if best else None
    told = [row for k, row in enumerate(shown) if k < TOLD or row is best] + ([by_hand] if by_hand else [])
    for row in told:
        measured = {n: f" ({say_cost(n, row[KEYS[n]])} measured)" for n in KEYS if KEYS[n] in row}
        units = task.problem.units
        costs = "  ".join(f"{say_cost(n, row[n], units.get(n))} {n}{measured.get(n, '')}" for n in known.costs)
        role = "  <- best" * (row is best) + "  <- by hand: the largest, scaled to the limits" * (row is by_hand)
        tell(f"  {row['key']}  {100 * row['accuracy']:.2f} %  {costs}{role}")
    settings = {**task.settings, "weights": task.run.fingerprint(), "evaluated": len(known.archs)}
    return {**settings, "best": best["key"] if best else None, "front": shown, "baseline": by_hand}


def hand_made(task: Task, history: History, judge: Evaluator, best: Row) -> Row | None:
    """The largest network of the space, uniformly scaled to the limits (without any, to the MACs of the best), with the
    weights it inherits: what a search must beat. It is no candidate, and not in the history."""
    limits = task.problem.limits or {"macs": (0.0, best["macs"])}
    arch = baseline(task.net.space, task.problem.costs, limits)
    if arch is None:
        return None
    score = history.get([arch.path]).get(arch.path) or judge.scores([arch])[0]._asdict()
    costs = {name: float(column[0]) for name, column in task.problem.costs(task.net.space.encode([arch])).items()}
    row = {"key": arch.key, **{n: score[n] for n in ("accuracy", "loss") if math.isfinite(score.get(n, math.nan))}}
    row |= costs | {"arch": json.loads(arch.to_json())}
    if measured_here(task):
        measure(task, [row])
    return row


@dataclass(frozen=True)
class Known:
    """What a history knows of a supernet. Architectures are told by their places in it."""

    records: list[Record]
    archs: list[Arch]
    rank: Floats
    costs: dict[str, Floats]

    def sort(self, places: Iterable[int]) -> list[int]:
        """From the most accurate down; of equals the one with fewer MACs first."""
        return sorted(map(int, places), key=lambda k: (-self.rank[k], self.costs["macs"][k], k))

    def row(self, k: int) -> Row:
        values = self.records[k].values
        return {
            "key": self.archs[k].key,
            **{name: values[name] for name in ("accuracy", "loss") if name in values},
            **{name: float(column[k]) for name, column in self.costs.items()},
            "arch": json.loads(self.archs[k].to_json()),
        }


def select(task: Task, history: History) -> tuple[Known, list[int], list[int]]:
    """What is known, what of it lies within the limits, and the front of that. Of equal accuracy the lower loss counts
    as the better (`superformer.search.scores.ranked`)."""
    problem, records = task.problem, history.all()
    archs = [Arch.from_json(r.arch_json) for r in records]
    genes = task.net.space.encode(archs)
    known = Known(records, archs, ranked([_score(r.values) for r in records]), problem.costs(genes))
    columns = [known.rank if o.name == "accuracy" else known.costs[o.name] for o in problem.objectives]
    inside = np.flatnonzero(problem.feasible(genes))
    best = inside[front(np.stack(columns, 1)[inside], problem.maximise)]
    return known, known.sort(inside), known.sort(best)


def rejudge(
    known: Known, inside: Sequence[int], varied: Evaluator, history: History, tell: Tell, judged: int = JUDGED
) -> list[int]:
    """Of the ``FINALISTS`` most accurate, those that are first by accuracy and loss together
    (`superformer.search.scores.agreed`), from the best down when they are judged again, on more pictures. The scores
    are kept beside the others, and nobody is judged so twice."""

    def best(places: Sequence[int], which: str, records: Mapping[int, Mapping[str, float]]) -> list[int]:
        order = np.argsort(-agreed([_score(records[k], which) for k in places]), kind="stable")
        return [places[n] for n in order]

    values = {k: known.records[k].values for k in inside[:FINALISTS]}
    first = best(inside[:FINALISTS], "", values)[:judged]
    tell(f"judging the {len(first)} best again, on the search split and moved copies of it: {varied.pictures} pictures")
    todo = [k for k in first if f"{VARIED}accuracy" not in values[k]]
    rows = []
    for k, score in zip(todo, varied.scores([known.archs[k] for k in todo]), strict=True):
        values[k] = {f"{VARIED}{name}": v for name, v in score._asdict().items() if math.isfinite(v)}
        rows.append(Evaluation(known.records[k].key, known.records[k].arch_json, values[k]))
    history.put(rows)
    return best(first, VARIED, values)


def _score(values: Mapping[str, float], which: str = "") -> Score:
    return Score(values.get(which + "accuracy", math.nan), values.get(which + "loss", math.nan))


def best_measured(task: Task, rows: list[Row], on_front: list[Row], tell: Tell) -> Row | None:
    """The first of the rows. Where latency or throughput is limited, the first that meets the limits when it is
    measured, twice: of many that lie near a limit, some meet it once by luck. If none does, the nearest."""
    if not rows or not measured_here(task):
        return rows[0] if rows else None
    best = _first_within(task, rows, tell)
    left = [row for row in on_front[:MEASURED] if not any(key in row for key in KEYS.values())]
    if left:
        tell(f"measuring {len(left)} more networks of the front")
        measure(task, left)
    for line in drift(list({row["key"]: row for row in (*rows, *on_front)}.values())):
        tell(line)
    return best


def _first_within(task: Task, rows: list[Row], tell: Tell) -> Row:
    limited = any(name in task.problem.limits for name in measured_here(task))
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
    best = f"the nearest, {nearest['key']}, is the best"
    tell(f"none of the {len(rows)} best networks met the limits when it was measured; {best}")
    return nearest


def measured_here(task: Task) -> dict[str, LatencyTable]:
    """Of this machine: what was imported cannot be measured again here."""
    tables = {"latency": task.latency, "throughput": task.throughput}
    return {name: table for name, table in tables.items() if table is not None and not table.imported}


def _excess(task: Task, row: Row) -> float:
    """How far what was measured lies outside the limits, as a part of them."""
    low, _ = task.problem.limits.get("throughput", (0.0, math.inf))
    _, high = task.problem.limits.get("latency", (0.0, math.inf))
    return float(max(row.get("measured", 0.0) / high - 1, low / row.get("measured_throughput", math.inf) - 1, 0.0))


def measure(task: Task, rows: list[Row]) -> None:
    """The median of a second; of several seconds the slowest."""
    archs = [Arch.from_json(json.dumps(row["arch"])) for row in rows]
    for name, table in measured_here(task).items():
        found = table.against(task.net.space, archs, SECONDS, [task.net.extract(a).eval() for a in archs])
        for row, median in zip(rows, (one.timing.median for one in found), strict=True):
            if name == "latency":
                row["measured"] = max(median, row.get("measured", 0.0))
            else:
                row["measured_throughput"] = min(table.batch / median, row.get("measured_throughput", math.inf))


def drift(rows: Sequence[Row]) -> Iterator[str]:
    """Whether everything takes longer, or less, than when the table was measured: then other work on the machine began
    or ended."""
    ratios = [row["measured"] / row["latency"] for row in rows if "measured" in row and "latency" in row]
    ratio = float(np.median(ratios)) if len(ratios) >= ENOUGH else 1.0
    if not 1 / DRIFT <= ratio <= DRIFT:
        yield (
            f"networks now take {ratio:.2f} times as long as predicted: other work on this machine "
            f"{'began' if ratio > 1 else 'ended'} since the table was measured. On a quiet machine, "
            "delete the latency-*.json of the run and search again (nothing is evaluated twice)"
        )
