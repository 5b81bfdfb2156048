"""Runs: a run is a folder with everything that it produced; runs listed and compared; the commands that made them.

``recipe.yaml`` (complete), ``run.json`` (the data and their classes), ``space.json``, ``checkpoints/``,
``metrics.jsonl``, ``supernet.safetensors`` (once training has ended), ``commands.jsonl`` (a line for each command, with
the versions and the machine it ran with), and what search, retraining and the report add."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from superformer import files
from superformer.errors import StoppedError, SuperformerError, nearest
from superformer.machine import machine
from superformer.recipes import Recipe, differences, dump, from_tree, parse_yaml
from superformer.space import Space
from superformer.space.arch import Arch

COMMANDS = "commands.jsonl"
_command: list[str] = []
"""The words of the command line that runs now."""


class RunError(SuperformerError):
    """A run that is not there, or is not what it is used as."""


class Run:
    def __init__(self, folder: Path):
        self.folder = folder
        self.recipe_file = folder / "recipe.yaml"
        self.space_file = folder / "space.json"
        self.facts_file = folder / "run.json"
        self.checkpoints = folder / "checkpoints"
        self.metrics_file = folder / "metrics.jsonl"
        self.supernet_file = folder / "supernet.safetensors"
        self.history_file = folder / "history.db"
        self.front_file = folder / "front.json"

    def begin(self, recipe: Recipe, space: Space, facts: Mapping[str, Any]) -> None:
        """Make the folder of a new run; one that is there already, with the same recipe and data, is gone on with."""
        self.check(recipe, facts)
        if self.recipe_file.exists():
            return
        with files.disk_errors(self.folder):
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        files.write(self.space_file, space.to_json())
        files.write(self.facts_file, json.dumps(dict(facts), indent=1))
        files.write(self.recipe_file, dump(recipe))  # the last: a folder with it is a run

    def check(self, recipe: Recipe, facts: Mapping[str, Any]) -> None:
        """Refuse a folder that is something else, or a run with other settings or pictures. Nothing is changed."""
        if not self.recipe_file.exists():
            own = {".lock", self.checkpoints.name, self.space_file.name, self.facts_file.name}  # killed while it began
            own |= {"spaces", "evolution.json", COMMANDS}  # what evolving the space leaves before the last training
            entries = self.folder.iterdir() if self.folder.is_dir() else ()
            strange = any(f.name.removesuffix(files.PARTIAL) not in own for f in entries)
            if strange or (self.folder.exists() and not self.folder.is_dir()):
                what = f"{self.folder} is there, and is not a run (it has no recipe.yaml)"
                raise RunError(f"{what}: choose a new or an empty folder")
            return
        lines = differences(self.recipe().model_dump(mode="json"), recipe.model_dump(mode="json"))
        pairs = {key: (self.facts().get(key), facts[key]) for key in ("data", "fingerprint")}
        lines += [f"{key}: {before!r} before, {now!r} now" for key, (before, now) in pairs.items() if before != now]
        if lines:
            what = f"{self.folder} was begun with other settings ({'; '.join(lines)})"
            raise RunError(f"{what}: go on with the same words, or choose another --run")

    @staticmethod
    def open(folder: str | Path) -> Run:
        """An existing run."""
        run = Run(Path(folder))
        if not run.recipe_file.exists():
            what = "there is no run" if not run.folder.exists() else "there is no recipe.yaml, so no run,"
            raise RunError(f"{what} in {folder}: superformer train --recipe NAME --data SPEC --run {folder} makes one")
        return run

    def require_trained(self) -> None:
        """Refuse what needs a trained supernet, if there is none yet."""
        if not self.supernet_file.exists():
            how = "the words that began the run go on with it (superformer train ...)"
            raise RunError(f"the supernet of {self.folder} is not trained yet: {how}")

    def fingerprint(self) -> str:
        """Of the supernet's file: results of other weights are never mixed in."""
        with open(self.supernet_file, "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()

    def require_pictures(self, fingerprint: str) -> None:
        """Refuse pictures that the run was not trained on."""
        facts = self.facts()
        if fingerprint != facts["fingerprint"]:
            raise RunError(f"the pictures of {facts['data']} are not those that {self.folder} was trained on")

    def front(self) -> dict[str, Any]:
        """What the last search found."""
        if not self.front_file.exists():
            raise RunError(f"{self.folder} was not searched yet: superformer search --run {self.folder} --macs-max ...")
        return dict(json.loads(self._text(self.front_file)))

    @property
    def retrained(self) -> bool:
        return (self.folder / "model" / files.CONFIG).exists()

    def model_folder(self) -> Path:
        """The folder of the retrained network."""
        if not self.retrained:
            how = f"superformer retrain --run {self.folder}, or --arch best for inherited weights"
            raise RunError(f"{self.folder} has no retrained network yet: {how}")
        return self.folder / "model"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Only one process may write to a run. The lock goes with its process."""
        files.make_folder(self.folder)
        with files.disk_errors(self.folder):
            handle = open(self.folder / ".lock", "a")  # noqa: SIM115  # kept open as long as the lock is held
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                what = f"another process is writing to the run {self.folder}"
                raise RunError(f"{what}: wait until it ends, or choose another folder") from error
            yield

    def recipe(self) -> Recipe:
        where = str(self.recipe_file)
        return from_tree(parse_yaml(self._text(self.recipe_file), where), where)

    def space(self) -> Space:
        return Space.from_json(self._text(self.space_file))

    def facts(self) -> dict[str, Any]:
        return dict(json.loads(self._text(self.facts_file)))

    def arch(self, which: str) -> Arch:
        """What a word means: smallest, largest, best (of the last search), baseline (what it was compared with), a key
        of its front, or a file."""
        if which in ("smallest", "largest"):
            return self.space().smallest() if which == "smallest" else self.space().largest()
        if Path(which).is_file():
            arch = Arch.from_json(self._text(Path(which)))
            self.space().encode([arch])  # an error if it is not in the space
            return arch
        found = (
            self.front() if which in ("best", "baseline") or self.front_file.exists() else {"front": [], "best": None}
        )
        key = found["best"] if which == "best" else which
        rows = [*found["front"], *([{**by_hand, "key": "baseline"}] if (by_hand := found.get("baseline")) else [])]
        row = next((row["arch"] for row in rows if row["key"] == key), None)
        if row is None:
            known = ["smallest", "largest", "best", "baseline", *(row["key"] for row in found["front"])]
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
        for line in self.metrics_file.read_text().splitlines() if self.metrics_file.exists() else ():
            with suppress(json.JSONDecodeError):
                out.append(json.loads(line))
        return out


def overview(folders: Sequence[Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for each run, and what differs between them where several runs themselves were named."""
    named = [Run(f) for f in folders if Run(f).recipe_file.exists()]
    inside = [Run(f.parent) for folder in folders for f in sorted(folder.glob("*/recipe.yaml"))]
    found = named + (inside if len(named) < len(folders) else [])
    if not found:
        how = "superformer train --recipe NAME --data SPEC --run DIR makes one"
        raise SuperformerError(f"there are no runs in {', '.join(map(str, folders))}: {how}")
    lines, first = [], found[0]
    for other in named[1:]:
        old, new = (run.recipe().model_dump(mode="json", exclude={"name", "about"}) for run in (first, other))
        told = differences(old, new)
        if first.facts()["data"] != other.facts()["data"]:
            told.append(f"data: {first.facts()['data']} before, {other.facts()['data']} now")
        told = [line.replace(" before,", " there,").replace(" now", " here") for line in told]
        lines += [f"{other.folder} against {first.folder}: {line}" for line in told]
    return [summary(run) for run in found], lines


def summary(run: Run) -> dict[str, Any]:
    """What a run is and how far it is; ``best``: the newest accuracy of its best network, on the split ``of``."""
    recipe, metrics = run.recipe(), run.metrics()
    steps, health = ([row for row in metrics if row["kind"] == kind] for kind in ("step", "health"))
    state = f"training, epoch {steps[-1]['epoch']:.3g} of {recipe.train.epochs:g}" if steps else "begun"
    reached = {"retrained": run.retrained, "searched": run.front_file.exists(), "trained": run.supernet_file.exists()}
    state = next((name for name, there in reached.items() if there), state)
    best, of = None, ""
    if (table := run.folder / "retrained.json").exists():
        best, of = max(row["accuracy"] for row in json.loads(table.read_text())["rows"]), "test"
    elif run.front_file.exists():
        best, of = max((row["accuracy"] for row in run.front()["front"]), default=None), "search"
    elif health:
        best, of = max(health[-1]["accuracy"].values()), "search"
    data = Path(run.facts()["data"]).name
    return {"run": str(run.folder), "recipe": recipe.name, "data": data, "state": state, "best": best, "of": of}


def set_command(words: list[str]) -> None:
    """The command line says with which words it was called; a library call has none, and notes nothing."""
    _command[:] = words


def note_command(folder: Path) -> None:
    """Note the command in a run's folder, unless it is the one that was noted last."""
    if not _command or ((before := last_command(folder)) is not None and before["words"] == _command):
        return
    entry = {"time": time.time(), "words": list(_command), "folder": os.getcwd(), "machine": machine()}
    for name in ("superformer", "torch", "timm"):
        entry[name] = ""
        with suppress(PackageNotFoundError):
            entry[name] = version(name)
    files.make_folder(folder)
    path = folder / COMMANDS
    files.write(path, (path.read_text() if path.exists() else "") + json.dumps(entry) + "\n")


def last_command(folder: Path) -> dict[str, Any] | None:
    """The newest entry."""
    path = folder / COMMANDS
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(json.loads(lines[-1])) if lines else None
