"""What a run folder holds so far, every architecture that was evaluated, and how numbers are written.

What is not there yet is empty; what is there and cannot be read is told."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superformer.cost.latency_table import LatencyTable
from superformer.errors import SuperformerError, amount
from superformer.progress import Tell
from superformer.recipes import Recipe
from superformer.report.markup import cleaned
from superformer.runs import Run, stored
from superformer.runs.devices import imported_costs
from superformer.search.history import History, Record
from superformer.search.problem import exact_costs, predicted_costs
from superformer.space import Space
from superformer.space.arch import Arch

Row = dict[str, Any]
Floats = NDArray[np.float64]

COSTS = {
    "macs": "MACs", "params": "parameters", "latency": "latency", "throughput": "throughput", "memory": "peak memory",
}  # fmt: skip
MEASURED = {"latency": "measured", "throughput": "measured_throughput"}
"""Costs that are predicted, and under which name a row has what was measured of them (`superformer.search.front`)."""
NOTHING = "\u2013"
"""Where a number is not known."""
SUPERSCRIPT = str.maketrans("0123456789", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
MOST = 8000
"""Points of a page; of longer histories the front, the best and a part of the rest are drawn."""
ROOM = 2_000_000
"""Characters for architectures."""


def number(value: object) -> float | None:
    """A number from a file, if it is one."""
    plain = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if plain else None  # type: ignore[arg-type]


def percent(accuracy: object, digits: int = 2) -> str:
    """A share in percent."""
    return NOTHING if (value := number(accuracy)) is None else f"{100 * value:.{digits}f} %"


def chance(accuracy: object, pictures: object) -> str:
    """The standard error of an accuracy that so many pictures tell (binomial), in points."""
    share, n = number(accuracy), number(pictures)
    if share is None or not n or not 0 <= share <= 1:
        return ""
    return f" \u00b1 {100 * math.sqrt(share * (1 - share) / n):.1f}"


def seconds(time: object) -> str:
    if (value := number(time)) is None:
        return NOTHING
    if value < 1e-3:
        return f"{1e6 * value:.3g} µs"
    if value < 1:
        return f"{1e3 * value:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 7200 else f"{value / 3600:.3g} h"


def cost_text(name: str, value: object, unit: str | None = None) -> str:
    """A cost with its unit; that of an imported cost is told."""
    if (own := number(value)) is None:
        return NOTHING
    if unit is not None:
        return f"{own:.3g} {unit}"
    return seconds(own) if name == "latency" else amount(own) + {"throughput": "/s", "memory": "B"}.get(name, "")


def count(n: int) -> str:
    """A count, of architectures for instance, that may have many digits."""
    if n < 10**6:
        return f"{n:,}"
    digits, power = f"{n:.1e}".split("e")
    return f"{digits} \u00d7 10{str(int(power)).translate(SUPERSCRIPT)}"


def counted(n: int, one: str) -> str:
    return f"{n:,} {one if n == 1 else one + 's'}"


@dataclass(frozen=True)
class Inputs:
    """The files of a run. ``folder`` is the path as it was given, for the commands that the page tells."""

    run: Run
    recipe: Recipe
    recipe_text: str
    facts: Row
    space: Space
    metrics: list[Row] = field(default_factory=list)
    front: Row = field(default_factory=dict)
    evolution: list[Row] = field(default_factory=list)
    retrained: list[Row] = field(default_factory=list)
    comparison: list[Row] = field(default_factory=list)
    bench: Row = field(default_factory=dict)
    int8: list[Row] = field(default_factory=list)
    analysis: Row = field(default_factory=dict)
    fit: Row = field(default_factory=dict)
    orders: Row = field(default_factory=dict)
    commands: list[Row] = field(default_factory=list)
    latency_table: LatencyTable | None = None
    throughput_table: LatencyTable | None = None
    """Of the time of large batches, from which throughput follows."""
    fits: list[Row] = field(default_factory=list)
    """What the tables of latencies say of themselves."""
    imported: dict[str, LatencyTable] = field(default_factory=dict)
    """Costs of other kinds that the last search used."""

    @property
    def folder(self) -> str:
        return str(self.run.folder)

    @property
    def costs(self) -> dict[str, str]:
        """What networks cost in this run, with titles."""
        return COSTS | {name: name for name in self.imported}

    def cost_text(self, name: str, value: object) -> str:
        """A cost with its unit."""
        return cost_text(name, value, self.imported[name].unit if name in self.imported else None)

    @property
    def trained(self) -> bool:
        return self.run.supernet_file.exists()

    @property
    def num_classes(self) -> int:
        return max(len(self.facts.get("classes", ())), 1)

    @property
    def limits(self) -> dict[str, tuple[float, float]]:
        """(low, high) of what the last search limited."""
        ends = self.front.get("limits") or {}
        return {name: (low or 0.0, float("inf") if high is None else high) for name, (low, high) in ends.items()}

    @property
    def best(self) -> Row | None:
        """The row of the front that the last search chose."""
        return next((row for row in self.front.get("front", []) if row["key"] == self.front.get("best")), None)

    @property
    def baseline(self) -> Row | None:
        """The network that one would draw by hand for the same limits; searches of before have none."""
        row = self.front.get("baseline")
        return row if isinstance(row, dict) and number(row.get("accuracy")) is not None else None

    def of(self, kind: str) -> list[Row]:
        """The metrics of a kind: step, health, conflict, skipped."""
        return [line for line in self.metrics if line.get("kind") == kind]


def read(folder: str | Path) -> Inputs:
    run = Run.open(folder)
    tables = [(path, stored.read(path)) for path in sorted(run.folder.glob("latency-*.json"))]
    others = [stored.read(path) for path in sorted(run.folder.glob("cost-*.json"))]
    front = stored.read(run.front_file)
    fast = any("throughput" in row for row in front.get("front", []))
    analysis = stored.read(run.folder / "analysis.json")
    known = analysis.get("supernet")
    if known is not None and not (run.supernet_file.exists() and known == run.fingerprint()):
        analysis = {}  # that of another supernet
    return Inputs(
        run=run,
        recipe=run.recipe(),
        recipe_text=stored.read_recipe(run.folder),
        facts=run.facts(),
        space=run.space(),
        metrics=run.metrics(),
        front=front,
        evolution=stored.read(run.folder / "evolution.json").get("spaces", []),
        retrained=stored.read(run.folder / "retrained.json").get("rows", []),
        comparison=stored.read(run.folder / "comparison.json").get("rows", []),
        fit=stored.read(run.folder / "fit.json"),
        orders=stored.read(run.folder / "orders.json"),
        bench=stored.read(run.folder / "bench.json"),
        int8=stored.read(run.folder / "int8.json").get("rows", []),
        analysis=analysis,
        commands=stored.read_lines(run.folder / stored.COMMANDS),
        latency_table=_table(tables, front, "batch"),
        throughput_table=_table(tables, front, "throughput_batch") if fast else None,
        fits=[*(raw for _, raw in tables), *others],
        imported=imported_costs(run, front.get("units") or {}),
    )


def _table(tables: list[tuple[Path, Row]], front: Row, batch: str) -> LatencyTable | None:
    """The table that the last search used for a batch of that name; one of another machine predicts nothing here."""
    options = front.get("options") or {}
    wanted = {"runtime": options.get("runtime"), "threads": options.get("threads"), "batch": options.get(batch)}
    wanted["device"] = front.get("device")
    for path, raw in tables:
        if all(value is None or raw.get(name) == value for name, value in wanted.items()):
            conditions = {name: raw[name] for name in ("threads", "runtime", "device", "batch") if name in raw}
            try:
                return LatencyTable.load(path, **conditions)
            except (SuperformerError, TypeError):
                continue
    return None


@dataclass(frozen=True)
class Points:
    """Every architecture that was evaluated, in that order: columns of one length. ``front`` has the places of the
    front's rows, ``best`` that of the best one."""

    records: list[Record]
    accuracy: Floats
    costs: dict[str, Floats]
    inside: NDArray[np.bool_]
    front: list[int]
    measured: dict[int, float]
    best: int | None

    def __len__(self) -> int:
        return len(self.records)

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
        new, records = {old: k for k, old in enumerate(places)}, [self.records[k] for k in places]
        return {
            "key": [_key(record) for record in records],
            "accuracy": cleaned(100 * self.accuracy[places]),
            **{name: cleaned(values[places], 7) for name, values in self.costs.items()},
            "measured": {new[k]: v for k, v in self.measured.items()},
            **{name: [getattr(record, name) for record in records] for name in ("search", "round", "kind")},
            "inside": [int(self.inside[k]) for k in places],
            "front": [new[k] for k in self.front],
            "best": None if self.best is None else new[self.best],
            "archs": compact([record.arch_json for record in records], [new[k] for k in self.front]),
        }


def _key(record: Record) -> str:
    """Of its architecture; those of one key may have been evaluated at several places of a supernet."""
    return record.key.partition("@")[0]


def points(inputs: Inputs, tell: Tell) -> Points | None:
    """What the history knows of the run's supernet, on the pictures of its last search; None if it knows nothing."""
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
    found = list(zip(rows, _places(records, rows), strict=True))
    front = [k for _, k in found if k is not None]
    measured = {k: float(row["measured"]) for row, k in found if k is not None and "measured" in row}
    best = next((k for row, k in found if row["key"] == inputs.front.get("best")), None)
    return Points(records, accuracy, costs, inside, front, measured, best)


def history(run: Run, weights: str | None = None) -> list[Record]:
    """The evaluations of these weights (or of the supernet that is there), on the pictures that were searched last."""
    if not run.history_file.exists():
        return []
    opened = History.latest(run.history_file, weights or (run.fingerprint() if run.supernet_file.exists() else ""))
    if opened is None:
        return []
    with opened:
        return opened.all()


def _costs(inputs: Inputs, records: Sequence[Record], tell: Tell) -> dict[str, Floats]:
    """MACs and parameters of all; latency and throughput as the run's tables predict them; others as a front tells."""
    costs = {name: np.asarray([r.values.get(name, np.nan) for r in records]) for name in inputs.costs}
    latency, throughput = inputs.latency_table, inputs.throughput_table
    uncounted = any(np.isnan(costs[name]).any() for name in ("macs", "params"))
    if latency is not None or throughput is not None or uncounted or inputs.imported:
        tell(f"counting the costs of {len(records):,} architectures")
        try:
            genes = inputs.space.encode([Arch.from_json(r.arch_json) for r in records])
            costs |= exact_costs(inputs.space, genes, inputs.num_classes)
            costs |= predicted_costs(inputs.space, genes, latency, throughput, imported=inputs.imported)
        except SuperformerError as error:
            tell(f"not every cost can be told: {error}")
    rows = inputs.front.get("front", [])
    for row, k in zip(rows, _places(records, rows), strict=True):
        for name in inputs.costs:
            if k is not None and name in row and np.isnan(costs[name][k]):
                costs[name][k] = row[name]
    return {name: values for name, values in costs.items() if np.isfinite(values).any()}


def _places(records: Sequence[Record], rows: Sequence[Row]) -> list[int | None]:
    """Where the rows of a front are among the evaluations."""
    known: dict[tuple[str, float], list[int]] = {}
    for k, record in enumerate(records):
        known.setdefault((_key(record), record.values.get("accuracy", np.nan)), []).append(k)
    return [found.pop(0) if (found := known.get((row["key"], row["accuracy"]))) else None for row in rows]


def compact(archs: Sequence[str], first: Sequence[int], room: int = ROOM) -> dict[str, Any]:
    """Architectures as [head, [values, block, block, ...], ...]: numbers of heads (what holds for the whole network),
    stages' values and blocks, listed once. Where the room ends, those after it are None; ``first`` come first."""
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
        code: list[Any] = [head]
        for stage in arch["stages"]:
            code.append([place("values", stage.get("choices", {})), *(place("blocks", b) for b in stage["blocks"])])
        room -= len(json.dumps(code, separators=(",", ":")))
        if room < 0:
            break
        codes[k] = code
    return {**{kind: [json.loads(value) for value in values] for kind, values in listed.items()}, "codes": codes}
