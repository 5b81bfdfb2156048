"""The files of a run, each with its form and with what to do if it is damaged: the one place where they are read.

Since format 2 (``run.json``) every file has a checksum (`superformer.files`). A run without a format is of an earlier
version: its files are read without one, and those that are written into it since are checked. Weights are read by
`superformer.runs.storage` and evaluations by `superformer.search.history`, which check theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from superformer import files
from superformer.errors import SuperformerError
from superformer.space import Space

FORMAT = 2
RECIPE, SPACE, FACTS, METRICS, COMMANDS = "recipe.yaml", "space.json", "run.json", "metrics.jsonl", "commands.jsonl"
TIME, TRANSFER = "time.jsonl", "transfer.json"
NUMBER = int | float


class RunError(SuperformerError):
    """A run that is not there, or is not what it is used as."""


class Stored(NamedTuple):
    """What a file must hold (`superformer.files.has_form`), and what to do if it does not; ``{run}``: the folder."""

    form: object
    how: str


_anew = "delete it, and {} writes it again"
_begun = "put back a copy of it, or begin a new run in another folder"
SUPERNET_HOW = "delete it, and the words that began the run (superformer train ...) write it again from a checkpoint"
_row = {"key": str, "accuracy": NUMBER, "macs": NUMBER, "params": NUMBER}
FILES = {
    FACTS: Stored({"data": str, "fingerprint": str, "classes": [str], "img_size": int}, _begun),
    RECIPE: Stored(None, _begun),
    SPACE: Stored(None, _begun),
    METRICS: Stored({"kind": str, "step": int}, "delete it, or that line: only the report draws from it"),
    COMMANDS: Stored({"words": [str]}, "delete it, and give the words that began the run"),
    TIME: Stored({"step": int, "steps": int, "seconds": NUMBER}, _begun),
    "front.json": Stored(
        {"front": [{**_row, "arch": dict}], "best": str | None},
        _anew.format("superformer search --run {run} (nothing is evaluated twice)"),
    ),
    "searches.json": Stored(
        {"searches": [{"asked": dict, "minutes": NUMBER, "seconds": NUMBER}]},
        _anew.format("superformer search --run {run} (which chooses anew what fits into the time)"),
    ),
    "retrained.json": Stored({"rows": [{**_row, "weights": str}]}, _anew.format("superformer retrain --run {run}")),
    "comparison.json": Stored({"rows": [_row]}, _anew.format("superformer demo --run {run}")),
    "limits.json": Stored({"macs": [NUMBER], "latency": [NUMBER]}, _anew.format("superformer demo --run {run}")),
    "evolution.json": Stored({"spaces": [{"space": dict}]}, _anew.format("superformer evolve-space ... --run {run}")),
    "analysis.json": Stored({}, _anew.format("superformer analyse --run {run}")),
    "int8.json": Stored({"rows": [{"key": str, "how": str}]}, _anew.format("superformer bench {run} --int8")),
    "original.json": Stored({"macs": NUMBER, "latency": NUMBER, "shrink": NUMBER}, _anew.format("superformer fit ...")),
    "minutes.json": Stored(
        {"minutes": NUMBER, "parts": [{"name": str, "minutes": NUMBER, "begun": NUMBER}]},
        _anew.format("superformer fit ..."),
    ),
    "orders.json": Stored({"units": dict, "blocks": [list]}, _anew.format("superformer fit ...")),
    "picked.json": Stored({}, _anew.format("superformer fit ...")),
    "fit.json": Stored(
        {"cost": str, "limit": NUMBER, "original": _row, "found": [_row]}, _anew.format("superformer fit ...")
    ),
    TRANSFER: Stored({"task": str, "data": str, "fingerprint": str, "classes": [str], "backbone": dict}, _begun),
    "scores.json": Stored({}, _anew.format("superformer eval --run {run}")),
    "pictures.json": Stored({"pictures": [{"file": str}]}, _anew.format("superformer eval --run {run}")),
    "bench.json": Stored({"rows": [{"name": str, "runtime": str}]}, _anew.format("superformer bench {run}")),
}
TABLE = Stored(
    {"machine": str, "parts": dict, "fit": dict}, _anew.format("superformer search (or latency import) --run {run} ...")
)
"""Of a table of latencies."""


def _stored(path: Path) -> Stored:
    form, how = FILES.get(path.name, TABLE)
    return Stored(form, how.format(run=path.parent))


def facts(folder: Path) -> dict[str, Any]:
    """What ``run.json`` says, of a format that is known."""
    path = folder / FACTS
    form, how = _stored(path)
    found = files.read_object(path, how)
    given = found.setdefault("format", 1)
    if not isinstance(given, int) or not 1 <= given <= FORMAT:
        what = f"the run {folder} is of format {given!r} ({FACTS}), and this superformer knows 1 to {FORMAT}"
        raise RunError(f"{what}: update superformer")
    if not files.has_form(found, form):
        raise files.DamagedError(f"{path} does not hold what superformer writes there: {how}")
    return found


def of_earlier_version(folder: Path) -> bool:
    """Whether the files of a run, or of a folder that none has begun in yet, need not have checksums."""
    if (folder / TRANSFER).exists():  # there are no earlier ones
        return False
    return not (folder / FACTS).exists() or facts(folder)["format"] == 1


def read(path: Path) -> dict[str, Any]:
    """A JSON object of a run; empty if the file is not there."""
    if not path.exists():
        return {}
    form, how = _stored(path)
    return files.read_object(path, how, form, sealed=not of_earlier_version(path.parent))


def read_lines(path: Path, damaged: list[int] | None = None) -> list[dict[str, Any]]:
    """The lines of a run's metrics or commands, if there are any. A last one that was cut off is left out; so are
    damaged ones, if their numbers are asked for."""
    form, how = _stored(path)
    sealed = path.exists() and not of_earlier_version(path.parent)
    return files.read_lines(path, how, form, sealed=sealed, damaged=damaged)


def read_recipe(folder: Path) -> str:
    """The text of a run's recipe."""
    path = folder / RECIPE
    how = _stored(path).how
    return files.unseal(files.read(path, how), path, how, sealed=not of_earlier_version(folder))


def read_space(folder: Path) -> Space:
    """The space of a run. It is a plain file of a space: its checksum is in ``run.json``."""
    path = folder / SPACE
    how, known = _stored(path).how, facts(folder)
    content = files.read_object(path, how)
    if known["format"] > 1 and known.get("space") != files.checksum(content):
        raise files.DamagedError(f"{path} is not as it was written (its checksum in {FACTS} differs): {how}")
    with files.understood(path, how):
        return Space.from_json(json.dumps(content))


def begin(folder: Path, recipe: str, space: Space, about: dict[str, Any]) -> None:
    """The files of a new run. The recipe is the last: a folder with it is a run."""
    files.write(folder / SPACE, space.to_json())
    checksum = files.checksum(json.loads(space.to_json()))
    files.write_object(folder / FACTS, {**about, "format": FORMAT, "space": checksum})
    files.write(folder / RECIPE, files.seal(recipe))
