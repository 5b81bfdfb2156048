"""Mistakes that are told before torch is imported, which takes seconds. The library looks again; nothing is decided
here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def recipe(name: str, changes: Sequence[str] | None) -> None:
    """A recipe that is not there, or has no such key."""
    from superformer.recipes import resolve

    resolve(name, changes or ())


def run(folder: str) -> None:
    """A run that is not there."""
    from superformer.runs.folder import Run

    Run.open(folder)


def trained(folder: str, *archs: str) -> None:
    """A run that is not trained yet, or has no such architectures."""
    from superformer.runs.folder import Run

    opened = Run.open(folder)
    opened.require_trained()
    for arch in archs:
        if arch not in ("smallest", "largest"):
            opened.arch(arch)


def search(folder: str, method: str | None, changes: Mapping[str, Any]) -> None:
    """A run that is not trained yet; a method that is not there, or has no such settings."""
    from superformer.recipes.search import method_with_changes, split_options
    from superformer.runs.folder import Run

    trained(folder)
    method_with_changes(Run.open(folder).recipe().search, method, split_options(changes)[1])


def export(folder: str, arch: str | None, to: str) -> None:
    """A format that is not there; a run without a network to export."""
    from superformer.interop.export import known
    from superformer.runs.folder import Run

    known(to)
    if arch is None:
        Run.open(folder).model_folder()
    else:
        trained(folder, arch)


def retrain(folder: str, arch: str, changes: Sequence[str]) -> None:
    """A run that is not trained or searched yet; an architecture or a key that is not there."""
    from superformer.recipes.retrain import read_changes
    from superformer.runs.folder import Run

    trained(folder, arch)
    read_changes(Run.open(folder).recipe(), changes, f"{folder} retrained")


def analyse(folder: str, parts: Sequence[str], changes: Mapping[str, Any]) -> None:
    """A part or a setting that is not there."""
    from superformer.analysis.settings import chosen

    run(folder)
    chosen(parts, changes)


def bench(what: str, which: Sequence[str], runtimes: Sequence[str]) -> None:
    """A name that means no network."""
    from superformer.analysis.bench import networks

    networks(what, which, runtimes)
