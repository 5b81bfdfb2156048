"""Paths of a recipe that lie in its run's own folder are kept as places in it: a run that is moved, or gone on with
from another folder, still finds its teacher and what it began with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RUN = "{run}"
KEYS = {"start": ("run", "network", "orders"), "loss": ("teachers", "keep")}


def kept(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The tree of a recipe with ``{run}`` for its run's folder; networks that are retrained lie in that of their
    supernet."""
    home = folder.parent.parent if folder.parent.name == "retrained" else folder

    def place(path: str) -> str:
        inside = os.path.abspath(path).startswith(os.path.abspath(home) + os.sep)
        named = ":" in path or (os.sep not in path and not os.path.exists(path))  # a network of timm's
        return os.path.join(RUN, os.path.relpath(path, folder)) if inside and not named else path

    return _changed(tree, place)


def found(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The tree of a recipe with the paths that its places are now."""

    def path(place: str) -> str:
        if not place.startswith(RUN + "/"):
            return place
        where, rest = folder, place.removeprefix(RUN + "/")
        while rest.startswith("../"):
            where, rest = where.parent, rest[3:]
        return str(where / rest)

    return _changed(tree, path)


def _changed(tree: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    out = dict(tree)
    for part, names in KEYS.items():
        if isinstance(own := tree.get(part), Mapping):
            out[part] = {k: _one(v, change) if k in names else v for k, v in own.items()}
    return out


def _one(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [_one(v, change) for v in value]
    return change(value) if isinstance(value, str) else value
