"""What ``--data`` may say for tasks beyond classification, and pictures that have been found and can be read.

A folder that tells its training and test part by names (train, training; test, val, validation, valid), a folder or
file of which a part is held out, or ``train=PATH,test=PATH``."""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from superformer.data.augment import generator
from superformer.data.dataset import BROKEN, HELD_OUT, SPLIT_SEED
from superformer.data.sources import TEST, TRAIN
from superformer.data.stores import ENDINGS, PREFIXES, Files, Ints, Store
from superformer.errors import SuperformerError

P = TypeVar("P")
Words = tuple[str, ...]
Look = Callable[[Path, Words], P | None]
"""Finds the part of a folder that is named by one of these words, or the only one if there are no words."""


def parts(spec: str, look: Look[P], forms: str) -> tuple[P, P | None]:
    """The training part that a ``--data`` text means, and the test part, if there is one."""
    spec = spec.strip()
    if spec.startswith(("train=", "test=")):
        head, comma, tail = spec.partition(",test=")
        if not head.removeprefix("train=") or head.startswith("test=") or (comma and not tail):
            raise SuperformerError(f"--data {spec!r} names no training or no test set: write train=PATH,test=PATH")
        return _part(head.removeprefix("train="), look, forms), _part(tail, look, forms) if comma else None
    path = _existing(spec, forms)
    if path.is_dir() and (found := look(path, TRAIN)) is not None:
        return found, look(path, TEST)
    return _part(spec, look, forms), None


def _part(text: str, look: Look[P], forms: str) -> P:
    found = look(_existing(text, forms), ())
    if found is None:
        raise SuperformerError(f"{text} holds nothing to learn from: --data takes {forms}")
    return found


def _existing(text: str, forms: str) -> Path:
    if text.startswith(PREFIXES):
        told = f"{text}: data sets behind timm's readers are for --task classify (timm reads one label a picture)"
        raise SuperformerError(f"{told}; save the pictures as files: --data takes {forms}")
    path = Path(text).expanduser()
    if not path.exists():
        raise SuperformerError(f"there is no {path}: --data takes {forms}")
    return path


def named(files: Iterable[Path], words: Words) -> list[Path]:
    """Files whose names have one of the words in them (instances_train2017.json has train); all without words.
    Those with the first word come first."""
    found = sorted(files)
    if not words:
        return found
    return [f for w in words for f in found if re.search(rf"(?<![a-z]){w}(?![a-z])", f.stem.lower())]


def folder_of(root: Path, words: Words) -> Path | None:
    """The folder that has one of the words as its name."""
    folders = {p.name.lower(): p for p in root.iterdir() if p.is_dir()}
    return next((folders[w] for w in words if w in folders), None)


def read_json(path: Path) -> Any:
    """A JSON file, however it is nested."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as problem:
        raise SuperformerError(f"{path} cannot be read as JSON ({problem}): repair it or give another") from problem


def pictures_below(folder: Path) -> list[str]:
    """Names of the pictures in a folder, sorted."""
    return sorted(p.name for p in folder.iterdir() if p.name.lower().endswith(ENDINGS) and not p.name.startswith("."))


def carve(n: int, share: float, purpose: str) -> tuple[Ints, Ints]:
    """Numbers that stay and numbers that are carved off, rising; always the same. At least one of each."""
    if not share:
        return np.arange(n), np.arange(0)
    if n < 2:
        raise SuperformerError(f"the {purpose} part is carved from {n} training pictures: give two or more")
    order = generator(SPLIT_SEED, f"transfer {purpose}").permutation(n)
    out = min(max(round(share * n), 1), n - 1)
    return np.sort(order[out:]), np.sort(order[:out])


def held_out(n: int) -> tuple[Ints, Ints]:
    """The same for the test part of data that has none."""
    return carve(n, HELD_OUT, "test")


# --- what is broken ---


def leave_out(what: str, broken: Sequence[str], total: int, skipped: Counter[str], most: float = BROKEN) -> None:
    """Count what is left out; more than a share of all is an error. ``broken``: what each of them is."""
    if not broken:
        return
    told = f"{what}: {len(broken)} of {total}, the first is {broken[0]}"
    if len(broken) > most * total:
        raise SuperformerError(f"{told}; more than {most:.0%} are not skipped: repair or remove them")
    warnings.warn(f"{told}; skipped", stacklevel=3)
    skipped[what] += len(broken)


def sizes(store: Store, threads: int) -> list[tuple[int, int] | str]:
    """Height and width of every picture from its header, or why there is none."""

    def attempt(i: int) -> tuple[int, int] | str:
        try:
            return store.size(i)
        except FileNotFoundError:
            return "missing"
        except Exception as problem:  # decoders raise anything
            return f"unreadable ({problem})"

    with ThreadPoolExecutor(max(threads, 1)) as pool:
        return list(pool.map(attempt, range(len(store))))


def read_picture(store: Store, i: int, size: tuple[int, int]) -> Tensor:
    """A picture as uint8 (3, height, width). Bad content under a sound header is only found now: plain grey stands in
    for it, with a warning."""
    try:
        pixels = store.read(i)
    except Exception as problem:
        warnings.warn(f"{store.name(i)} does not decode ({problem}); grey stands in for it", stacklevel=2)
        pixels = np.full((*size, 3), 128, dtype=np.uint8)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def where_pictures_are(names: Sequence[str], folders: Iterable[Path], file: Path) -> Files:
    """The names as files of the first of the folders that has most of them."""
    looked = list(dict.fromkeys(f for f in folders if f.is_dir()))
    some = [names[int(i)] for i in np.linspace(0, len(names) - 1, min(len(names), 50))]
    hits = [sum((folder / name).is_file() for name in some) for folder in looked]
    if not hits or not max(hits):
        where = ", ".join(str(f) for f in looked)
        raise SuperformerError(f"the pictures of {file} ({names[0]}, ...) are in none of {where}: put them there")
    return Files(looked[hits.index(max(hits))], list(names))
