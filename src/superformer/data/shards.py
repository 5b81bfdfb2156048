"""Pictures in tar files (shards, as webdataset writes them): found once, then read by number, wherever they lie.

A picture's label is what lies beside it under the same name: ``NAME.cls`` (a number or a name), or ``label`` in
``NAME.json``; without any, the folder in its path. Nothing is extracted: a picture is a stretch of bytes of a shard.
Links, folders and all other members are passed over."""

from __future__ import annotations

import functools
import json
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from superformer.data.index import Arrays, Index, Names, kept, natural_order
from superformer.data.stores import ENDINGS, Encoded, Ints, digest
from superformer.errors import SuperformerError

OPEN = 64
"""Shards that a process holds open."""
Label = int | str


@dataclass
class Shards(Encoded):
    """Pictures in tar files: picture i is ``sizes[i]`` bytes from ``offsets[i]`` on of shard ``shard[i]``."""

    paths: tuple[Path, ...]
    index: Index

    def __post_init__(self) -> None:
        a = self.index.arrays
        self.names, self.shard, self.offsets, self.sizes = self.index.names, a["shard"], a["offsets"], a["sizes"]
        self.stamps = [tuple(stamp) for stamp in self.index.belongs]

    def __len__(self) -> int:
        return len(self.names)

    def encoded(self, i: int, most: int = -1) -> bytes:
        k, size = int(self.shard[i]), int(self.sizes[i])
        opened = _open(str(self.paths[k]), self.stamps[k])
        return os.pread(opened.number, size if most < 0 else min(size, most), int(self.offsets[i]))

    def name(self, i: int) -> str:
        return f"{self.names[i]} in {self.paths[int(self.shard[i])]}"

    def digest(self) -> str:
        """Of what lies where in shards of which names and sizes, not of when they were written: copies are equal."""
        shards = json.dumps([stamp[:2] for stamp in self.stamps]).encode()
        where = [a.tobytes() for a in (self.names.text, self.names.ends, self.shard, self.offsets, self.sizes)]
        return digest([shards, *where])


class _Open:
    """A shard that is open, until nobody reads it any more."""

    def __init__(self, path: str):
        self.number = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


@functools.lru_cache(OPEN)
def _open(path: str, stamp: tuple[Any, ...]) -> _Open:
    opened = _Open(path)
    if os.fstat(opened.number).st_size != stamp[1]:
        raise SuperformerError(f"{path} has changed since it was indexed: begin again")
    return opened


def shards_of(path: Path) -> tuple[Path, ...]:
    """The tar files that a path means, in natural order: of a folder without folders; a file; ``{000..099}`` for
    numbers and ``*`` for anything in a name. None if it means something else."""
    if path.is_dir():
        inside = [e for e in os.scandir(path) if not e.name.startswith(".")]
        plain = not any(e.is_dir() for e in inside)
        return _ordered(path / e.name for e in inside if plain and e.name.lower().endswith(".tar"))
    if path.suffix.lower() != ".tar" or path.exists():
        return (path,) if path.suffix.lower() == ".tar" else ()
    if (numbers := re.search(r"\{(\d+)\.\.(\d+)\}", path.name)) is not None:
        first, last = numbers.groups()
        names = [f"{n:0{len(first)}}".join(path.name.split(numbers[0], 1)) for n in range(int(first), int(last) + 1)]
        return tuple(path.with_name(name) for name in names)
    return _ordered(path.parent.glob(path.name))


def _ordered(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(sorted(paths, key=lambda p: natural_order(p.name)))


def title(paths: Sequence[Path]) -> str:
    """What messages call shards."""
    return f"{paths[0]}" + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def read_shards(paths: tuple[Path, ...]) -> tuple[Shards, Ints, tuple[str, ...] | None]:
    """The pictures of shards, their labels, and the names of the classes; None where labels are numbers."""
    missing = [path for path in paths if not path.is_file()]
    if missing:
        advice = "all shards must be there; name those that are, such as train-{0000..0099}.tar"
        raise SuperformerError(f"there is no {title(missing)}: {advice}")
    stats = [(path.name, path.stat()) for path in paths]
    stamps = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
    key = "\0".join(path.name for path in paths)
    index = kept(paths[0].parent, key, lambda known: bool(known == stamps), lambda: (stamps, _found_in(paths)))
    names = json.loads(index.arrays["classes"].tobytes())
    return Shards(paths, index), index.arrays["labels"], None if names is None else tuple(names)


def _found_in(paths: tuple[Path, ...]) -> Arrays:
    names: list[str] = []
    rows: list[tuple[int, int, int]] = []
    said: list[Label | None] = []
    for k, path in enumerate(paths):
        for name, offset, size, label in _pictures(path):
            names.append(name)
            rows.append((k, offset, size))
            said.append(label)
    if not names:
        raise SuperformerError(f"{title(paths)}: no pictures in it ({', '.join(ENDINGS)})")
    labels, classes = _labels(paths, names, rows, said)
    found, (shard, offsets, sizes) = Names.of(names), np.array(rows, dtype=np.int64).T.copy()
    about = np.frombuffer(json.dumps(classes).encode(), np.uint8)
    of_names: Arrays = {"names": found.text, "ends": found.ends, "classes": about, "labels": labels}
    return of_names | {"shard": shard, "offsets": offsets, "sizes": sizes}


def _labels(
    paths: Sequence[Path], names: list[str], rows: list[tuple[int, int, int]], said: list[Label | None]
) -> tuple[Ints, list[str] | None]:
    if not any(label is not None for label in said):
        said = [os.path.basename(os.path.dirname(name)) or None for name in names]
    if None in said:
        k = said.index(None)
        first = f"{names[k]} in {paths[rows[k][0]]}"
        advice = "put NAME.cls or NAME.json with label beside each NAME.jpg, or each class in a folder of its name"
        raise SuperformerError(
            f"{said.count(None)} of {len(said)} pictures have no label, the first is {first}: {advice}"
        )
    kinds = {type(label) for label in said}
    if kinds == {int}:
        return np.array(said, dtype=np.int64), None
    if len(kinds) > 1:
        k = next(k for k, label in enumerate(said) if type(label) is not type(said[0]))
        both = f"{said[0]!r} of {names[0]} and {said[k]!r} of {names[k]}"
        raise SuperformerError(f"{title(paths)}: some labels are numbers, some names ({both}): use one or the other")
    classes = sorted({str(label) for label in said}, key=natural_order)
    number = {name: i for i, name in enumerate(classes)}
    return np.array([number[str(label)] for label in said], dtype=np.int64), classes


def _pictures(path: Path) -> Iterator[tuple[str, int, int, Label | None]]:
    """Name, first byte, size and label of each picture of a shard; the label is None if nothing beside it says it."""
    pictures: list[tuple[str, int, int]] = []
    beside: dict[str, list[tuple[str, int, int]]] = {}
    for name, offset, size in _members(path):
        stem, ending = os.path.splitext(name)
        if os.path.basename(name).startswith("."):
            continue
        if ending.lower() in ENDINGS:
            pictures.append((name, offset, size))
        elif ending.lower() in (".cls", ".json"):
            beside.setdefault(stem, []).append((name, offset, size))
    opened = _Open(str(path))
    for name, offset, size in pictures:
        said = [_said(opened, path, *member) for member in beside.get(os.path.splitext(name)[0], [])]
        labels = list(dict.fromkeys(label for label in said if label is not None))
        if len(labels) > 1:
            both = f"{labels[0]!r} and {labels[1]!r}"
            raise SuperformerError(f"{name} in {path} has two labels, {both}: leave the right one")
        yield name, offset, size, labels[0] if labels else None


def _said(opened: _Open, path: Path, name: str, offset: int, size: int) -> Label | None:
    """The label that a member says; None if it is JSON about something else."""
    data = os.pread(opened.number, size, offset)
    try:
        text = data.decode().strip()
        label = (int(text) if text.isdecimal() else text) if name.lower().endswith(".cls") else json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise SuperformerError(f"{name} in {path} cannot be read ({problem}): repair it") from problem
    if isinstance(label, dict):
        label = label.get("label")
    if label is None or (type(label) in (int, str) and label != ""):
        return label
    raise SuperformerError(f"{name} in {path} says the label {label!r}: it must be one whole number or one name")


def _members(path: Path) -> Iterator[tuple[str, int, int]]:
    """Name, first byte and size of each file in a tar."""
    advice = "write it again, or leave it out"
    try:
        with tarfile.open(path, "r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
                if member.isreg() and not member.issparse():
                    yield member.name, member.offset_data, member.size
            end, file = tar.offset, _Open(str(path))
        if os.pread(file.number, tarfile.BLOCKSIZE, end) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError(f"no end of the archive at byte {end}, where it should be")
    except (tarfile.TarError, ValueError, OSError, EOFError) as problem:
        raise SuperformerError(f"{path} is no whole, plain tar ({problem}): {advice}") from problem
