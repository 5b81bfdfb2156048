"""Which networks a word means: a published model, one of timm's, a folder with a network, those of a run. Nothing heavy is imported."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from superformer.catalogue import models
from superformer.cost import RUNTIMES
from superformer.errors import SuperformerError, nearest
from superformer.files import CONFIG
from superformer.run import Run
from superformer.space.arch import Arch

MOST = 8
"""Networks of a front: the most accurate ones."""


class Meant(NamedTuple):
    """A sub-network (of the run that was named), a folder with a network, or else a model by its name."""

    name: str
    arch: Arch | None = None
    folder: Path | None = None


def networks(what: str, which: Sequence[str] = (), runtimes: Sequence[str] = ()) -> list[Meant]:
    """The networks that ``what`` means; of a run, those that ``which`` names, or its retrained one and its front. A mistake is an error."""
    if strange := [r for r in runtimes if r not in RUNTIMES]:
        raise SuperformerError(f"unknown runtime {strange[0]!r}: {nearest(strange[0], RUNTIMES)}")
    folder = Path(what)
    if Run(folder).recipe_file.exists():
        return _of_run(Run(folder), which)
    if which:
        raise SuperformerError(f"--arch names a network of a run, and {what} is none")
    if (folder / CONFIG).exists():
        return [Meant(folder.resolve().name, folder=folder)]
    if what in models() or what.partition(".")[0] in _named_by_timm():
        return [Meant(what)]
    if folder.is_dir():
        raise SuperformerError(f"{what} holds neither a run (recipe.yaml) nor a network ({CONFIG} and model.safetensors)")
    raise unknown(what)


def unknown(what: str) -> SuperformerError:
    """That no network has this name."""
    near = difflib.get_close_matches(what, [*models(), *_named_by_timm()], n=1, cutoff=0.7)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return SuperformerError(
        f"{what!r} is no model and no folder: {hint}possible: {', '.join(models())}; any model of timm; the folder of a run or of a network"
    )


def _of_run(run: Run, which: Sequence[str]) -> list[Meant]:
    if which:
        return [Meant("model", folder=run.model()) if word == "model" else Meant(word, run.arch(word)) for word in which]
    run.trained()
    out = [Meant("model", folder=run.model())] if run.retrained else []
    rows = run.front()["front"][:MOST] if run.front_file.exists() or not out else []
    return out + [Meant(row["key"], Arch.from_json(json.dumps(row["arch"]))) for row in rows]


def _named_by_timm() -> set[str]:
    """The names of timm's models, and those that were registered with it since it was imported."""
    loaded = sys.modules.get("timm")
    return written_by_timm() | (set() if loaded is None else set(loaded.list_models()))


@functools.cache
def written_by_timm() -> set[str]:
    """The names of timm's models, those of before included, read from its files: importing it takes seconds."""
    found = importlib.util.find_spec("timm")
    folders = (found.submodule_search_locations if found is not None else None) or []
    texts = [file.read_text("utf-8") for folder in folders for file in Path(folder, "models").glob("*.py")]
    names = {name for text in texts for name in re.findall(r"^@register_model\ndef (\w+)", text, re.M)}
    lists = [old for text in texts for old in re.findall(r"^register_model_deprecations\(__name__, \{(.*?)^\}", text, re.M | re.S)]
    return names | {name for old in lists for name in re.findall(r"'(\w+)'\s*:", old)}
