"""The folder of a transfer: ``transfer.yaml`` (settings), ``transfer.json`` (the backbone, the data and their classes),
``checkpoints/``, ``metrics.jsonl``, ``commands.jsonl``, and in the end ``network.safetensors``, ``scores.json`` and
``pictures/``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from superformer import files
from superformer.recipes import differences
from superformer.runs import COMMANDS, Run, RunError, stored
from superformer.runs.stored import TRANSFER
from superformer.settings import load_yaml
from superformer.train.steps import CHECKPOINTS
from superformer.transfer.settings import MAIN, Transfer, dump

SETTINGS, NETWORK, SCORES, PICTURES = "transfer.yaml", "network.safetensors", "scores.json", "pictures"


class TransferRun:
    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.settings_file, self.facts_file = self.folder / SETTINGS, self.folder / TRANSFER
        self.network_file, self.scores_file = self.folder / NETWORK, self.folder / SCORES
        self.lock = Run(self.folder).lock

    @property
    def begun(self) -> bool:
        return self.settings_file.exists()

    @staticmethod
    def there(folder: str | Path) -> bool:
        """Whether a folder is one of a transfer."""
        return (Path(folder) / TRANSFER).exists()

    @staticmethod
    def open(folder: str | Path) -> TransferRun:
        """One that was trained."""
        run = TransferRun(folder)
        if not run.begun:
            raise RunError(f"there is no transfer in {folder}: superformer transfer ... --out {folder} makes one")
        if not run.network_file.exists():
            raise RunError(f"the transfer in {folder} is not done: the words that began it go on with it")
        return run

    def settings(self) -> Transfer:
        path, how = self.settings_file, "put back a copy of it, or begin a new one in another folder"
        text = files.unseal(files.read(path, how), path, how, sealed=True)
        with files.understood(path, how):
            return Transfer.read(load_yaml(text, str(path)), str(path))

    def facts(self) -> dict[str, Any]:
        return stored.read(self.facts_file)

    def begin(self, settings: Transfer, facts: Mapping[str, Any]) -> None:
        """Make the folder of a new one; settings are the last: a folder with them is complete."""
        self.check(settings, facts)
        if self.begun:
            return
        files.make_folder(self.folder / CHECKPOINTS)
        files.write_object(self.facts_file, {**facts, "format": stored.FORMAT})
        files.write(self.settings_file, files.seal(dump(settings)))

    def check(self, settings: Transfer, facts: Mapping[str, Any]) -> None:
        """Refuse a folder that is something else, or was begun with other settings, pictures or networks."""
        if not self.begun:
            own = {".lock", CHECKPOINTS, TRANSFER, COMMANDS}
            entries = self.folder.iterdir() if self.folder.is_dir() else ()
            strange = any(f.name.removesuffix(files.PARTIAL) not in own for f in entries)
            if strange or (self.folder.exists() and not self.folder.is_dir()):
                what = f"{self.folder} is there, and is not a transfer (it has no {SETTINGS})"
                raise RunError(f"{what}: choose a new or an empty folder")
            return
        known = self.facts()
        lines = differences(self.settings().model_dump(mode="json"), settings.model_dump(mode="json"))
        before, now = ({k: f[k] for k in ("data", "fingerprint", "backbone")} for f in (known, facts))
        lines += differences(before, now)
        if lines:
            what = f"{self.folder} was begun with other settings ({'; '.join(lines)})"
            raise RunError(f"{what}: go on with the same words, or choose another --out")

    def scores(self) -> dict[str, Any]:
        return stored.read(self.scores_file)


def overview(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """A row for each transfer of some folders, or that is one of them, as runs have them."""
    named = [f for f in folders if TransferRun(f).begun]
    inside = [f.parent for folder in folders for f in sorted(folder.glob(f"*/{SETTINGS}"))]
    return [_row(TransferRun(f)) for f in named + (inside if len(named) < len(folders) else [])]


def _row(run: TransferRun) -> dict[str, Any]:
    """What it is and how far; ``best``: the main figure of its task, on the test examples."""
    settings, facts, main = run.settings(), run.facts(), MAIN[run.settings().task]
    scores = stored.read(run.scores_file) if run.scores_file.exists() else {}
    best = scores.get("test", {}).get("metrics", {}).get(main)
    state = "judged" if scores else "trained" if run.network_file.exists() else "begun"
    what, of = f"{settings.task}, {settings.head_used}", f"test, {main}" if scores else ""
    data = Path(facts["data"]).name
    return {"run": str(run.folder), "recipe": what, "data": data, "state": state, "best": best, "of": of}
