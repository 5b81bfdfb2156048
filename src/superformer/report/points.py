"""Every architecture that was evaluated: its accuracy and costs, where it came from, and the architecture itself in few characters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superformer.cost import cost
from superformer.errors import SuperformerError
from superformer.report.charts import cleaned
from superformer.report.inputs import Inputs
from superformer.report.words import COSTS
from superformer.run import Run
from superformer.search.history import History, Record
from superformer.space.arch import Arch
from superformer.telling import Tell

Floats = NDArray[np.float64]
MOST = 8000
"""Points of a page; of longer histories the front, the best and a part of the rest are drawn."""
ROOM = 2_000_000
"""Characters for architectures."""


@dataclass(frozen=True)
class Points:
    """Columns of one length, in the order of evaluation. ``front`` has the places of the front's rows, ``best`` that of the best one."""

    records: list[Record]
    accuracy: Floats
    costs: dict[str, Floats]
    inside: NDArray[np.bool_]
    front: list[int]
    measured: dict[int, float]
    best: int | None

    def __len__(self) -> int:
        return len(self.records)

    @property
    def keys(self) -> list[str]:
        return [record.key.partition("@")[0] for record in self.records]

    def shown(self) -> list[int]:
        """The places of those that are drawn."""
        if len(self) <= MOST:
            return list(range(len(self)))
        first = [*self.front, *np.argsort(-self.accuracy, kind="stable")[: MOST // 4].tolist()]
        rest = np.random.default_rng(0).permutation(len(self)).tolist()
        return sorted(list(dict.fromkeys([*first, *rest]))[:MOST])

    def columns(self) -> dict[str, Any]:
        """For the page: columns of those that are drawn, and their architectures."""
        places = self.shown()
        new = {old: k for k, old in enumerate(places)}
        keys = self.keys
        return {
            "key": [keys[k] for k in places],
            "accuracy": cleaned(100 * self.accuracy[places]),
            **{name: cleaned(values[places], 7) for name, values in self.costs.items()},
            "measured": {new[k]: v for k, v in self.measured.items()},
            "search": [self.records[k].search for k in places],
            "round": [self.records[k].round for k in places],
            "kind": [self.records[k].kind for k in places],
            "inside": [int(self.inside[k]) for k in places],
            "front": [new[k] for k in self.front],
            "best": None if self.best is None else new[self.best],
            "archs": compact([self.records[k].arch_json for k in places], [new[k] for k in self.front]),
        }


def points(inputs: Inputs, tell: Tell = lambda text: None) -> Points | None:
    """What the history knows of the run's supernet, on the pictures of its last search; None if nothing was evaluated."""
    records = history(inputs.run, inputs.front.get("weights"))
    if not records:
        return None
    accuracy = np.asarray([record.values.get("accuracy", np.nan) for record in records])
    costs = _costs(inputs, records, tell)
    inside = np.ones(len(records), dtype=bool)
    for name, (low, high) in inputs.limits.items():
        if name in costs:
            inside &= ~((costs[name] < low) | (costs[name] > high))
    rows = inputs.front.get("front", [])
    places = _places(records, rows)
    measured = {k: float(row["measured"]) for row, k in zip(rows, places, strict=True) if k is not None and "measured" in row}
    best = next((k for row, k in zip(rows, places, strict=True) if row["key"] == inputs.front.get("best")), None)
    return Points(records, accuracy, costs, inside, [k for k in places if k is not None], measured, best)


def history(run: Run, weights: str | None = None) -> list[Record]:
    """The evaluations of these weights (or of the supernet that is there); of several sets of pictures, the one searched last."""
    if not run.history_file.exists():
        return []
    opened = History.latest(run.history_file, weights or (run.fingerprint() if run.supernet_file.exists() else ""))
    if opened is None:
        return []
    with opened:
        return opened.all()


def _costs(inputs: Inputs, records: Sequence[Record], tell: Tell) -> dict[str, Floats]:
    """MACs and parameters of all; latency and throughput as the run's tables predict them; other costs where the front tells them."""
    costs = {name: np.asarray([r.values.get(name, np.nan) for r in records]) for name in COSTS}
    table, large = inputs.table, inputs.large
    if table is not None or large is not None or any(np.isnan(costs[name]).any() for name in ("macs", "params")):
        tell(f"counting the costs of {len(records):,} architectures")
        try:
            genes = inputs.space.encode([Arch.from_json(r.arch_json) for r in records])
            counted = cost(inputs.space, genes, num_classes=max(len(inputs.facts.get("classes", ())), 1))
            costs |= {"macs": counted.macs.astype(np.float64), "params": counted.params.astype(np.float64)}
            if table is not None:
                costs["latency"] = table.latency(inputs.space, genes)
            if large is not None:
                costs["throughput"] = large.batch / large.latency(inputs.space, genes)
        except SuperformerError as error:
            tell(f"not every cost can be told: {error}")
    rows = inputs.front.get("front", [])
    for row, k in zip(rows, _places(records, rows), strict=True):
        for name in COSTS:
            if k is not None and name in row and np.isnan(costs[name][k]):
                costs[name][k] = row[name]
    return {name: values for name, values in costs.items() if np.isfinite(values).any()}


def _places(records: Sequence[Record], rows: Sequence[dict[str, Any]]) -> list[int | None]:
    """Where the rows of a front are among the evaluations. Networks of one key may have been evaluated at several places of a supernet."""
    known: dict[tuple[str, float], list[int]] = {}
    for k, record in enumerate(records):
        known.setdefault((record.key.partition("@")[0], record.values.get("accuracy", np.nan)), []).append(k)
    return [found.pop(0) if (found := known.get((row["key"], row["accuracy"]))) else None for row in rows]


def compact(archs: Sequence[str], first: Sequence[int], room: int = ROOM) -> dict[str, Any]:
    """Architectures by numbers: of heads (what holds for the whole network), stages' values and blocks that are listed once.

    An architecture is [head, [values, block, block, ...], ...]. Where the room ends, those after it are None; ``first`` come first.
    """
    listed: dict[str, dict[str, int]] = {"heads": {}, "values": {}, "blocks": {}}

    def place(kind: str, value: object) -> int:
        nonlocal room
        text = json.dumps(value, sort_keys=True)
        room -= 0 if text in listed[kind] else len(text)
        return listed[kind].setdefault(text, len(listed[kind]))

    codes: list[list[Any] | None] = [None] * len(archs)
    for k in dict.fromkeys([*first, *range(len(archs))]):
        arch = json.loads(archs[k])
        head = place("heads", {name: arch.get(name, {}) for name in ("family", "resolution", "choices", "options")})
        code = [head, *([place("values", s.get("choices", {})), *(place("blocks", b) for b in s["blocks"])] for s in arch["stages"])]
        room -= len(json.dumps(code, separators=(",", ":")))
        if room < 0:
            break
        codes[k] = code
    return {**{kind: [json.loads(value) for value in values] for kind, values in listed.items()}, "codes": codes}
