"""What is found out about a large set of pictures is kept, in plain arrays: names, sizes, labels, heights and widths.

An index is a .npz beside the data, or in the user's cache where that may not be written. It says what it belongs to,
and is made anew where that has changed or the file is damaged (a .npz has a checksum of each array). Without it all
is found out again: it saves time only."""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from superformer import files
from superformer.errors import SuperformerError

Ints = npt.NDArray[np.int64]
Arrays = dict[str, npt.NDArray[Any]]

FORMAT = 1
LARGE = 10_000
"""Pictures in folders from which an index is kept; fewer are found again in no time."""
UNREADABLE = (ValueError, LookupError, TypeError, OSError, EOFError, zipfile.BadZipFile)
"""What numpy raises for a file that is no .npz, or an array of Python objects, and what makes no sense in one."""


NUMBER = re.compile(r"(\d+)")


def natural_order(name: str) -> tuple[list[Any], str]:
    """Sorts 2 before 10, as timm does."""
    parts: list[Any] = NUMBER.split(name.lower())  # text and numbers take turns
    parts[1::2] = map(int, parts[1::2])
    return parts, name


class Names:
    """Many names in two arrays. Lists of as many texts would be copied by worker processes, one by one as they are
    read, since Python counts references where an object lies."""

    def __init__(self, text: npt.NDArray[np.uint8], ends: Ints):
        self.text, self.ends = text, ends

    @staticmethod
    def of(names: Iterable[str]) -> Names:
        encoded = [os.fsencode(n) for n in names]
        ends = np.cumsum([len(e) for e in encoded], dtype=np.int64)
        return Names(np.frombuffer(b"".join(encoded), np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> str:
        at = range(len(self))[i]
        return os.fsdecode(self.text[self.ends[at - 1] if at else 0 : self.ends[at]].tobytes())

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))


@dataclass
class Index:
    """The arrays of a set of pictures, what they belong to, and where they may be kept."""

    arrays: Arrays
    belongs: Any = None
    places: tuple[Path, ...] = ()

    @property
    def names(self) -> Names:
        return Names(self.arrays["names"], self.arrays["ends"])

    @property
    def shapes(self) -> Ints:
        """Height and width of each picture, (n, 2); zeros where the header was not read, or could not be."""
        if "shapes" not in self.arrays:
            self.arrays["shapes"] = np.zeros((len(self.arrays["ends"]), 2), dtype=np.int64)
        return self.arrays["shapes"]

    def keep(self) -> None:
        """Write the index in the first place that takes it, whole or not at all, whoever else does the same."""
        about = np.frombuffer(json.dumps([FORMAT, sorted(self.arrays), self.belongs]).encode(), np.uint8)
        for path in self.places:
            partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                files.write_by(partial, lambda to: _save(to, {**self.arrays, "about": about}))
                os.replace(partial, path)
                return
            except (SuperformerError, OSError):
                with contextlib.suppress(OSError):
                    partial.unlink(missing_ok=True)


def _save(path: Path, arrays: Arrays) -> None:
    with open(path, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub thinks of allow_pickle


def kept(
    beside: Path, name: str, belongs: Callable[[Any], bool], make: Callable[[], tuple[Any, Arrays]], least: int = 0
) -> Index:
    """The index of that name in a folder (or in the user's cache), if it still ``belongs`` to the data; else what is
    made: what it belongs to, as JSON, and its arrays, kept if there are at ``least`` as many pictures."""
    key = files.digest(name.encode())[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "superformer" / "index"
    whole = files.digest(os.fsencode(beside.resolve()) + b"\0" + name.encode())
    places = (beside / f".superformer-{key}.npz", cache / f"{whole}.npz")
    why = ""
    for path in places:
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
            version, names, about = json.loads(arrays.pop("about").tobytes())
            if version == FORMAT and names == sorted(arrays) and _whole(arrays) and belongs(about):
                return Index(arrays, about, places)
            why = why or f"{path} is of other data, or of before these changed"
        except FileNotFoundError:
            continue
        except UNREADABLE as problem:
            why = why or f"{path} is damaged ({str(problem) or type(problem).__name__})"
    if why:
        warnings.warn(f"the index {why}: it is made anew", stacklevel=2)
    about, arrays = make()
    if len(arrays["ends"]) < least:
        return Index(arrays)
    made = Index(arrays, about, places)
    made.keep()
    return made


def _whole(arrays: Arrays) -> bool:
    """Whether all arrays have as many entries as there are pictures, and names end one after another."""
    ends, per_picture = arrays["ends"], [a for k, a in arrays.items() if k not in ("names", "classes")]
    rising = bool(len(ends)) and bool((np.diff(ends, prepend=0) >= 0).all()) and ends[-1] == len(arrays["names"])
    return rising and all(len(a) == len(ends) and a.dtype == np.int64 for a in per_picture)
