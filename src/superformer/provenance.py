"""The commands that made a run: ``commands.jsonl``, a line each, with the versions and the machine they ran with."""

from __future__ import annotations

import json
import os
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from superformer import files

FILE = "commands.jsonl"
_words: list[str] = []


def began(words: list[str]) -> None:
    """The command line says with which words it was called; a library call has none, and notes nothing."""
    _words[:] = words


def note(folder: Path) -> None:
    """Note the command in a run's folder, unless it is the one that was noted last."""
    if not _words or ((before := last(folder)) is not None and before["words"] == _words):
        return
    from superformer.cost.latency import machine

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
