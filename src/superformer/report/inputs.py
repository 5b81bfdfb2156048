"""What a run folder holds so far. What is not there yet is empty; what is there and cannot be read is told."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from superformer.cost.latency_table import LatencyTable
from superformer.errors import StoppedError, SuperformerError
from superformer.recipes import Recipe
from superformer.run import Run
from superformer.space import Space

Row = dict[str, Any]


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
    analysis: Row = field(default_factory=dict)
    commands: list[Row] = field(default_factory=list)
    table: LatencyTable | None = None
    large: LatencyTable | None = None
    """Of latency, and of the time of large batches, from which throughput follows."""
    fits: list[Row] = field(default_factory=list)

    @property
    def folder(self) -> str:
        return str(self.run.folder)

    @property
    def trained(self) -> bool:
        return self.run.supernet_file.exists()

    @property
    def limits(self) -> dict[str, tuple[float, float]]:
        """(low, high) of what the last search limited."""
        ends = self.front.get("limits") or {}
        return {name: (low or 0.0, float("inf") if high is None else high) for name, (low, high) in ends.items()}

    @property
    def best(self) -> Row | None:
        """The row of the front that the last search chose."""
        return next((row for row in self.front.get("front", []) if row["key"] == self.front.get("best")), None)

    def of(self, kind: str) -> list[Row]:
        """The metrics of a kind: step, health, conflict, skipped."""
        return [line for line in self.metrics if line.get("kind") == kind]


def read(folder: str | Path) -> Inputs:
    run = Run.open(folder)
    tables = [(path, _object(path)) for path in sorted(run.folder.glob("latency-*.json"))]
    front = _object(run.front_file)
    return Inputs(
        run=run,
        recipe=run.recipe(),
        recipe_text=run.recipe_file.read_text(),
        facts=_object(run.facts_file),
        space=run.space(),
        metrics=[line for line in run.metrics() if isinstance(line, dict)],
        front=front,
        evolution=_rows(_object(run.folder / "evolution.json").get("spaces")),
        retrained=_rows(_object(run.folder / "retrained.json").get("rows")),
        comparison=_rows(_object(run.folder / "comparison.json").get("rows")),
        bench=_object(run.folder / "bench.json"),
        analysis=_analysis(run),
        commands=_lines(run.folder / "commands.jsonl"),
        table=_table(tables, front, "batch"),
        large=_table(tables, front, "throughput_batch") if any("throughput" in row for row in front.get("front", [])) else None,
        fits=[raw for _, raw in tables],
    )


def _object(path: Path) -> Row:
    """A JSON object of a run; empty if the file is not there."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise StoppedError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SuperformerError(f"{path} is damaged ({error}): remove it, or make it again, and write the report again") from error
    if not isinstance(found, dict):
        raise SuperformerError(f"{path} is not what superformer writes (a JSON object): remove it, or make it again")
    return found


def _analysis(run: Run) -> Row:
    """Empty if it is that of another supernet."""
    found = _object(run.folder / "analysis.json")
    known = found.get("supernet")
    return found if known is None or (run.supernet_file.exists() and known == run.fingerprint()) else {}


def _rows(found: object) -> list[Row]:
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _lines(path: Path) -> list[Row]:
    """One JSON object a line; a line that was cut off is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return _rows(found)


def _table(tables: list[tuple[Path, Row]], front: Row, batch: str) -> LatencyTable | None:
    """The table that the last search used for a batch of that name; one that was measured on another machine predicts nothing here."""
    options = front.get("options") or {}
    wanted = {"runtime": options.get("runtime"), "threads": options.get("threads"), "batch": options.get(batch)}
    for path, raw in tables:
        if all(value is None or raw.get(name) == value for name, value in wanted.items()):
            words = {name: raw[name] for name in ("threads", "runtime", "device", "batch") if name in raw}
            try:
                return LatencyTable.load(path, **words)
            except (SuperformerError, TypeError):
                continue
    return None
