"""Trained networks for other tools: ONNX Runtime, timm, Hugging Face's transformers.

Every export ends with a proof: the tool reads what was written, and must compute the logits that the network computes, to 1e-4. Until then
nothing lies under the name that was asked for.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from superformer import files
from superformer.errors import SuperformerError, nearest
from superformer.files import CONFIG
from superformer.telling import doing

if TYPE_CHECKING:
    from rich.console import Console

    from superformer.export.proof import Proof
    from superformer.stored import Stored

FORMATS = {"onnx": "onnx", "timm": "timm_folder", "hf": "hf"}
"""The module of each format."""
TOOLS = {"onnx": "ONNX Runtime", "timm": "timm", "hf": "transformers without superformer"}
MARKS = {"timm": ("architecture", "superformer"), "hf": ("model_type", "superformer")}
"""By what the configuration of an export is known."""


def export(stored: Stored, out: str | Path, to: str, console: Console | None = None, seed: int = 0) -> Proof:
    """Write a stored network into a folder, ``to`` one of ``"onnx"``, ``"timm"`` and ``"hf"``, and prove that it works there.

    An earlier export of the same format in that folder is replaced; beside any other network it is an error. ``seed``: of the random
    pictures that the proof compares.
    """
    known(to)
    if stored.net.space.size > 1:
        raise SuperformerError(f"this is a supernet of {stored.net.space.size:.3g} architectures: export net.extract(arch)")
    out = Path(out)
    _check(out, to)
    from superformer.export import proof

    form = importlib.import_module(f"superformer.export.{FORMATS[to]}")
    partial = out / f"export{files.PARTIAL}" if out.is_dir() else out.with_name(out.name + files.PARTIAL)
    with files.storage(partial):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    try:
        with doing(console, f"writing the {to} export"):
            form.write(stored, partial)
        with doing(console, f"proving it: read back by {TOOLS[to]}"):
            batches = proof.random_batches(stored, seed)
            theirs = form.answers(partial, batches)
            proven = proof.prove(list(partial.iterdir()), proof.logits(stored, batches), theirs, f"superformer and {TOOLS[to]}")
        return replace(proven, files=_place(partial, out))
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def known(to: str) -> None:
    """Refuse a format that is not there."""
    if to not in FORMATS:
        raise SuperformerError(f"unknown format {to!r}: {nearest(to, FORMATS)}")


def _check(out: Path, to: str) -> None:
    """Whether an export may be written there."""
    if out.exists() and not out.is_dir():
        raise SuperformerError(f"{out} is a file: an export is a folder, choose another name")
    if to not in MARKS or not (out / CONFIG).exists():
        return
    key, value = MARKS[to]
    try:
        same = json.loads((out / CONFIG).read_text()).get(key) == value
    except (OSError, ValueError, AttributeError):
        same = False
    if not same:
        raise SuperformerError(f"{out} holds another network ({CONFIG}), which an export would overwrite: choose another folder")


def _place(partial: Path, out: Path) -> tuple[Path, ...]:
    """Give the files their own folder. Where there is one, its configuration goes first and the new one comes last."""
    names = sorted((f.name for f in partial.iterdir()), key=lambda name: (name == CONFIG, name))
    with files.storage(out):
        if not out.exists():
            os.replace(partial, out)
        else:
            if CONFIG in names:
                (out / CONFIG).unlink(missing_ok=True)
            for name in names:
                os.replace(partial / name, out / name)
    return tuple(out / name for name in names)
