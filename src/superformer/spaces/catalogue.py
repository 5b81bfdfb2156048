"""What there is to tell of the published spaces and architectures, from a file, so that telling it needs neither torch
nor numpy.

``python -m superformer.spaces.describe`` writes the file anew, after a change to `superformer.spaces` or to what
networks cost."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from superformer.errors import unknown

FILE = Path(__file__).with_name("catalogue.json")
Entry = Mapping[str, Any]


def spaces() -> Mapping[str, Entry]:
    """Of each published space its ``summary``, its ``table`` and the ``space`` itself, as `superformer.spaces.describe`
    and its JSON have them."""
    return _read()["spaces"]


def models() -> Mapping[str, Entry]:
    """Of each published architecture its ``summary``."""
    return _read()["models"]


def space(name: str) -> Entry:
    """A published space."""
    if name not in spaces():
        raise unknown("space", name, spaces())
    return spaces()[name]


def model(name: str) -> Entry:
    """A published architecture."""
    if name not in models():
        raise unknown("model", name, models())
    return models()[name]


@functools.cache
def _read() -> Mapping[str, Mapping[str, Entry]]:
    found: Mapping[str, Mapping[str, Entry]] = json.loads(FILE.read_text("utf-8"))
    return found


def write(entries: Mapping[str, Mapping[str, Entry]]) -> None:
    """Write the file, a line for each space and architecture."""
    kinds = []
    for kind, rows in entries.items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in rows.items())
        kinds.append(f" {json.dumps(kind)}: {{\n{lines}\n }}")
    FILE.write_text("{\n" + ",\n".join(kinds) + "\n}\n", "utf-8")
