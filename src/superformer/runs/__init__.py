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
from superformer.errors import SuperformerError, nearest
from superformer.machine import machine
from superformer.recipes import (
    Recipe,
    differences,
    dump,
    from_tree,
    names,
    of_earlier_version,
    parse_yaml,
    places,
    resolve,
)
from superformer.runs import stored
from superformer.runs.stored import COMMANDS as COMMANDS
from superformer.runs.stored import RunError as RunError
from superformer.space import Space
from superformer.space.arch import Arch

SUPERNET = "supernet.safetensors"
_command: list[str] = []
"""The words of the command line that runs now."""
_locks: set[int] = set()
"""Files that this process holds locked."""


def _forked() -> None:
    """A lock goes with its process: workers that outlive it must not hold it."""
    for handle in _locks:
        os.close(handle)
    _locks.clear()


os.register_at_fork(after_in_child=_forked)


class Run:
    def __init__(self, folder: Path):
        self.folder = folder
        self.recipe_file = folder / stored.RECIPE
        self.space_file = folder / stored.SPACE
        self.facts_file = folder / stored.FACTS
        self.checkpoints = folder / "checkpoints"
        self.metrics_file = folder / stored.METRICS
        self.supernet_file = folder / SUPERNET
        self.history_file = folder / "history.db"
        self.front_file = folder / "front.json"

    def begin(self, recipe: Recipe, space: Space, facts: Mapping[str, Any]) -> None:
        """Make the folder of a new run; one that is there already, with the same recipe and data, is gone on with."""
        self.check(recipe, facts)
        if self.recipe_file.exists():
            return
        with files.disk_errors(self.folder):
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        stored.begin(self.folder, dump(recipe, self.folder), space, dict(facts))

    def check(self, recipe: Recipe, facts: Mapping[str, Any]) -> None:
        """Refuse a folder that is something else, or a run with other settings or pictures. Nothing is changed."""
        if not self.recipe_file.exists():
            self.refuse_strange()
            return
        begun, known = self.recipe(), self.facts()
        lines = differences(begun.model_dump(mode="json"), recipe.model_dump(mode="json"))
        others = [
            f"{k}: {known[k]!r} before, {facts[k]!r} now" for k in ("data", "fingerprint") if known[k] != facts[k]
        ]
        if lines or others:
            what = f"{self.folder} was begun with other settings ({'; '.join(lines + others)})"
            how = "go on with the same words"
            if begun.name == recipe.name and not others:  # its numbers may be others in another version of superformer
                how = f"--recipe {self.recipe_file} goes on with its own settings; or give the same words"
            raise RunError(f"{what}: {how}, or choose another --run")

    def refuse_strange(self) -> None:
        """Refuse a folder without a recipe that holds what no beginning run leaves in it."""
        own = {".lock", self.checkpoints.name, self.space_file.name, self.facts_file.name}  # killed while it began
        own |= {"spaces", "evolution.json", COMMANDS}  # what evolving the space leaves before the last training
        # what fitting a pretrained network does before it
        own |= {"original", "original.json", "orders.json", "minutes.json", "teacher", "taught"}
        entries = self.folder.iterdir() if self.folder.is_dir() else ()
        strange = any(f.name.removesuffix(files.PARTIAL) not in own for f in entries)
        if strange or (self.folder.exists() and not self.folder.is_dir()):
            what = f"{self.folder} is there, and is not a run (it has no recipe.yaml)"
            raise RunError(f"{what}: choose a new or an empty folder")

    @staticmethod
    def open(folder: str | Path) -> Run:
        """An existing run."""
        run = Run(Path(folder))
        if not run.recipe_file.exists():
            what = "there is no run" if not run.folder.exists() else "there is no recipe.yaml, so no run,"
            raise RunError(f"{what} in {folder}: superformer train --recipe NAME --data SPEC --run {folder} makes one")
        stored.of_earlier_version(run.folder)  # an error if it is of a later one
        return run

    def require_trained(self) -> None:
        """Refuse what needs a trained supernet, if there is none yet."""
        if not self.supernet_file.exists():
            how = "the words that began the run go on with it (superformer train ...)"
            raise RunError(f"the supernet of {self.folder} is not trained yet: {how}")

    def fingerprint(self) -> str:
        """Of the supernet's file: results of other weights are never mixed in."""
        self.require_trained()
        with files.readable(self.supernet_file, stored.SUPERNET_HOW), open(self.supernet_file, "rb") as file:
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
        return stored.read(self.front_file)

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
            handle = os.open(self.folder / ".lock", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        _locks.add(handle)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                what = f"another process is writing to the run {self.folder}"
                raise RunError(f"{what}: wait until it ends, or choose another folder") from error
            yield
        finally:
            _locks.discard(handle)
            fcntl.flock(handle, fcntl.LOCK_UN)  # also for a child that was just forked
            os.close(handle)

    def recipe(self) -> Recipe:
        where, text = str(self.recipe_file), stored.read_recipe(self.folder)
        with files.understood(self.recipe_file, stored.FILES[stored.RECIPE].how):
            tree = parse_yaml(text, where)
            if self.earlier_version:
                tree = of_earlier_version(tree)
            return from_tree(places.found(tree, self.folder), where)

    @property
    def earlier_version(self) -> bool:
        """Whether the run was begun before runs told their format: newer settings then mean what held at that time."""
        return stored.of_earlier_version(self.folder)

    def space(self) -> Space:
        return stored.read_space(self.folder)

    def facts(self) -> dict[str, Any]:
        return stored.facts(self.folder)

    def input_size(self) -> int | None:
        """The size of pictures of its networks; None is each one's own, in a space of several."""
        return int(self.facts()["img_size"]) if len(self.space().widths("resolution")) == 1 else None

    def arch(self, which: str) -> Arch:
        """What a word means: smallest, largest, best (of the last search), baseline (what it was compared with), a key
        of its front, or a file."""
        if which in ("smallest", "largest"):
            return self.space().smallest() if which == "smallest" else self.space().largest()
        if Path(which).is_file():
            arch = Arch.from_json(files.read(Path(which), "give the JSON file of an architecture"))
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

    def metrics(self) -> list[dict[str, Any]]:
        """Everything that was measured, in order."""
        return stored.read_lines(self.metrics_file)


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
    rows = []
    for run in found:
        try:
            rows.append(summary(run))
        except files.DamagedError as error:
            lines.append(str(error))
            nothing = {"recipe": "", "data": "", "state": "damaged", "best": None, "of": ""}
            rows.append({"run": str(run.folder), **nothing})
    return rows, lines


def summary(run: Run) -> dict[str, Any]:
    """What a run is and how far it is; ``best``: the newest accuracy of its best network, on the split ``of``."""
    recipe, metrics = run.recipe(), run.metrics()
    steps, health = ([row for row in metrics if row["kind"] == kind] for kind in ("step", "health"))
    state = f"training, epoch {steps[-1]['epoch']:.3g} of {recipe.train.epochs:g}" if steps else "begun"
    reached = {"retrained": run.retrained, "searched": run.front_file.exists(), "trained": run.supernet_file.exists()}
    state = next((name for name, there in reached.items() if there), state)
    best, of = None, ""
    if table := stored.read(run.folder / "retrained.json"):
        best, of = max((row["accuracy"] for row in table["rows"]), default=None), "test"
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
    files.write(path, "".join(map(files.line, [*stored.read_lines(path), entry])))


def recipe_of_command(folder: Path, name: str, changes: Sequence[str], words: Sequence[str]) -> Recipe:
    """The recipe that the words of a command line ask for. Published ones change from version to version: a run that
    these very words began goes on with its own."""
    asked, run = resolve(name, changes), Run(folder)
    same = name in names() and any(line["words"] == list(words) for line in stored.read_lines(folder / COMMANDS))
    return run.recipe() if same and run.recipe_file.exists() else asked


def last_command(folder: Path) -> dict[str, Any] | None:
    """The newest entry."""
    lines = stored.read_lines(folder / COMMANDS)
    return lines[-1] if lines else None
