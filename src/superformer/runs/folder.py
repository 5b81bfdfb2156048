"""A run: a folder with everything that it produced.

``recipe.yaml`` (complete), ``run.json`` (the data and their classes), ``space.json``, ``checkpoints/``, ``metrics.jsonl``,
``supernet.safetensors`` (once training has ended), and what search, retraining and the report add.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from superformer import files
from superformer.cost.machine import machine
from superformer.errors import StoppedError, SuperformerError, nearest
from superformer.recipes import Recipe, check, differences, dump, parse
from superformer.space import Space
from superformer.space.arch import Arch


class RunError(SuperformerError):
    """A run that is not there, or is not what it is used as."""


@dataclass(frozen=True)
class Run:
    folder: Path

    @property
    def recipe_file(self) -> Path:
        return self.folder / "recipe.yaml"

    @property
    def space_file(self) -> Path:
        return self.folder / "space.json"

    @property
    def facts_file(self) -> Path:
        return self.folder / "run.json"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def metrics_file(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def supernet_file(self) -> Path:
        return self.folder / "supernet.safetensors"

    @property
    def history_file(self) -> Path:
        return self.folder / "history.db"

    @property
    def front_file(self) -> Path:
        return self.folder / "front.json"

    # --- begin, go on, look ---

    def begin(self, recipe: Recipe, space: Space, facts: Mapping[str, Any]) -> None:
        """Make the folder of a new run; one that is there already, with the same recipe and data, is gone on with."""
        self.check(recipe, facts)
        if self.recipe_file.exists():
            return
        with files.storage(self.folder):
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        files.write(self.space_file, space.to_json())
        files.write(self.facts_file, json.dumps(dict(facts), indent=1))
        files.write(self.recipe_file, dump(recipe))  # the last: a folder with it is a run

    def check(self, recipe: Recipe, facts: Mapping[str, Any]) -> None:
        """Refuse a folder that is something else, or a run with other settings or pictures. Nothing is changed."""
        if not self.recipe_file.exists():
            own = {
                ".lock",
                self.checkpoints.name,
                self.space_file.name,
                self.facts_file.name,
            }  # a run that was killed while it began
            own |= {"spaces", "evolution.json", FILE}  # what evolving the space leaves before the last training
            if self.folder.exists() and (
                not self.folder.is_dir()
                or any(f.name.removesuffix(files.PARTIAL) not in own for f in self.folder.iterdir())
            ):
                raise RunError(
                    f"{self.folder} is there, and is not a run (it has no recipe.yaml): choose a new or an empty folder"
                )
            return
        lines = differences(self.recipe().model_dump(mode="json"), recipe.model_dump(mode="json"))
        before = self.facts()
        lines += [
            f"{key}: {before.get(key)!r} before, {facts[key]!r} now"
            for key in ("data", "fingerprint")
            if before.get(key) != facts[key]
        ]
        if lines:
            raise RunError(
                f"{self.folder} was begun with other settings ({'; '.join(lines)}): go on with the same words, or choose another --run"
            )

    @staticmethod
    def open(folder: str | Path) -> Run:
        """An existing run."""
        run = Run(Path(folder))
        if not run.recipe_file.exists():
            what = "there is no run" if not run.folder.exists() else "there is no recipe.yaml, so no run,"
            raise RunError(f"{what} in {folder}: superformer train --recipe NAME --data SPEC --run {folder} makes one")
        return run

    def trained(self) -> None:
        """Refuse what needs a trained supernet, if there is none yet."""
        if not self.supernet_file.exists():
            raise RunError(
                f"the supernet of {self.folder} is not trained yet: the words that began the run go on with it (superformer train ...)"
            )

    def fingerprint(self) -> str:
        """Of the supernet's file: results of other weights are never mixed in."""
        with open(self.supernet_file, "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()

    def same_pictures(self, fingerprint: str) -> None:
        """Refuse pictures that the run was not trained on."""
        facts = self.facts()
        if fingerprint != facts["fingerprint"]:
            raise RunError(f"the pictures of {facts['data']} are not those that {self.folder} was trained on")

    def front(self) -> dict[str, Any]:
        """What the last search found."""
        if not self.front_file.exists():
            raise RunError(f"{self.folder} was not searched yet: superformer search --run {self.folder} --macs-max ...")
        found: dict[str, Any] = json.loads(self._text(self.front_file))
        return found

    def model(self) -> Path:
        """The folder of the retrained network."""
        if not self.retrained:
            raise RunError(
                f"{self.folder} has no retrained network yet: superformer retrain --run {self.folder}, or --arch best for inherited weights"
            )
        return self.folder / "model"

    @property
    def retrained(self) -> bool:
        return (self.folder / "model" / files.CONFIG).exists()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Only one process may write to a run. The lock goes with its process."""
        with files.storage(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = open(self.folder / ".lock", "a")  # noqa: SIM115  # kept open as long as the lock is held
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RunError(
                    f"another process is writing to the run {self.folder}: wait until it ends, or choose another folder"
                ) from error
            yield
        finally:
            handle.close()

    # --- what is in it ---

    def recipe(self) -> Recipe:
        return check(parse(self._text(self.recipe_file), str(self.recipe_file)), str(self.recipe_file))

    def space(self) -> Space:
        return Space.from_json(self._text(self.space_file))

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._text(self.facts_file))
        return found

    def arch(self, which: str) -> Arch:
        """What a word means: smallest, largest, best (of the last search), a key of its front, or a file."""
        path = Path(which)
        if which in ("smallest", "largest"):
            return self.space().smallest() if which == "smallest" else self.space().largest()
        if path.is_file():
            arch = Arch.from_json(self._text(path))
            self.space().encode([arch])  # an error if it is not in the space
            return arch
        found = self.front() if which == "best" or self.front_file.exists() else {"front": [], "best": None}
        key = found["best"] if which == "best" else which
        row = next((row["arch"] for row in found["front"] if row["key"] == key), None)
        if row is None:
            known = ["smallest", "largest", "best", *(row["key"] for row in found["front"])]
            raise SuperformerError(f"unknown architecture {which!r}, and no file of that name: {nearest(which, known)}")
        return Arch.from_json(json.dumps(row))

    @staticmethod
    def _text(path: Path) -> str:
        try:
            return path.read_text()
        except OSError as error:
            raise StoppedError(f"{path} cannot be read: {error.strerror}") from error

    def metrics(self) -> list[dict[str, Any]]:
        """Everything that was measured, in order. A last line that was cut off is left out."""
        out = []
        if self.metrics_file.exists():
            for line in self.metrics_file.read_text().splitlines():
                try:
                    out.append(json.loads(line))
                except json.JSONDecodeError:
                    continue
        return out


# Runs listed and compared.


def overview(folders: Sequence[Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for each run, and what differs between them where several runs themselves were named."""
    named = [Run(f) for f in folders if Run(f).recipe_file.exists()]
    inside = (
        [Run(f.parent) for folder in folders for f in sorted(folder.glob("*/recipe.yaml"))]
        if len(named) < len(folders)
        else []
    )
    found = named + inside
    if not found:
        raise SuperformerError(
            f"there are no runs in {', '.join(map(str, folders))}: superformer train --recipe NAME --data SPEC --run DIR makes one"
        )
    lines = []
    for other in named[1:]:
        first = named[0]
        old, new = (run.recipe().model_dump(mode="json", exclude={"name", "about"}) for run in (first, other))
        told = differences(old, new)
        if first.facts()["data"] != other.facts()["data"]:
            told.append(f"data: {first.facts()['data']} before, {other.facts()['data']} now")
        lines += [
            f"{other.folder} against {first.folder}: {line.replace(' before,', ' there,').replace(' now', ' here')}"
            for line in told
        ]
    return [summary(run) for run in found], lines


def summary(run: Run) -> dict[str, Any]:
    """What a run is and how far it is; ``best``: the newest accuracy of its best network, on the split that ``of`` names."""
    recipe = run.recipe()
    best, of = _best(run)
    return {
        "run": str(run.folder),
        "recipe": recipe.name,
        "data": Path(run.facts()["data"]).name,
        "state": _state(run),
        "best": best,
        "of": of,
    }


def _state(run: Run) -> str:
    if run.retrained:
        return "retrained"
    if run.front_file.exists():
        return "searched"
    if run.supernet_file.exists():
        return "trained"
    steps = [row for row in run.metrics() if row["kind"] == "step"]
    return f"training, epoch {steps[-1]['epoch']:.3g} of {run.recipe().train.epochs:g}" if steps else "begun"


def _best(run: Run) -> tuple[float | None, str]:
    table = run.folder / "retrained.json"
    if table.exists():
        return max(row["accuracy"] for row in json.loads(table.read_text())["rows"]), "test"
    if run.front_file.exists():
        return max((row["accuracy"] for row in run.front()["front"]), default=None), "search"
    health = [row for row in run.metrics() if row["kind"] == "health"]
    return (max(health[-1]["accuracy"].values()), "search") if health else (None, "")


# The commands that made a run: ``commands.jsonl``, a line each, with the versions and the machine they ran with.


FILE = "commands.jsonl"
_words: list[str] = []


def began(words: list[str]) -> None:
    """The command line says with which words it was called; a library call has none, and notes nothing."""
    _words[:] = words


def note(folder: Path) -> None:
    """Note the command in a run's folder, unless it is the one that was noted last."""
    if not _words or ((before := last(folder)) is not None and before["words"] == _words):
        return
    entry = {
        "time": time.time(),
        "words": list(_words),
        "folder": os.getcwd(),
        "machine": machine(),
        **{name: _version(name) for name in ("superformer", "torch", "timm")},
    }
    with files.storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    files.write(path, (path.read_text() if path.exists() else "") + json.dumps(entry) + "\n")


def last(folder: Path) -> dict[str, Any] | None:
    """The newest entry."""
    path = folder / FILE
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(json.loads(lines[-1])) if lines else None


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
