"""Where the pixels are: in memory, as JPEG files laid end to end, in files, or behind one of timm's readers.

A store reads a picture by its number, as uint8 of shape (height, width, 3).
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]


class Store(Protocol):
    """Pictures that can be read one by one; ``decoded`` ones cost nothing to read again."""

    decoded: bool

    def __len__(self) -> int: ...

    def read(self, i: int) -> Pixels:
        """Picture ``i``; any exception means that it does not decode."""

    def size(self, i: int) -> tuple[int, int]:
        """Height and width of picture ``i``, from its header where there is one."""

    def name(self, i: int) -> str:
        """What to call picture ``i`` in a message."""

    def digest(self) -> str:
        """Changes when the pictures do."""


@dataclass
class Arrays:
    """Pictures in memory: one array of shape (n, height, width, 3), or one array a picture."""

    images: Pixels | list[Pixels]
    decoded: bool = field(default=True, init=False)

    def __len__(self) -> int:
        return len(self.images)

    def read(self, i: int) -> Pixels:
        picture = self.images[i]
        return picture if picture.ndim == 3 else np.repeat(picture[..., None], 3, axis=-1)

    def size(self, i: int) -> tuple[int, int]:
        height, width = self.images[i].shape[:2]
        return height, width

    def name(self, i: int) -> str:
        return f"picture {i}"

    def digest(self) -> str:
        h = hashlib.blake2b(digest_size=16)
        for picture in [self.images] if isinstance(self.images, np.ndarray) else self.images:
            h.update(str(picture.shape).encode())
            h.update(np.ascontiguousarray(picture).data)
        return h.hexdigest()


@dataclass
class Packed:
    """Encoded files (JPEG, PNG) laid end to end: picture i is ``data[offsets[i] : offsets[i + 1]]``."""

    data: Pixels
    offsets: npt.NDArray[np.int64]
    decoded: bool = field(default=False, init=False)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def _file(self, i: int) -> io.BytesIO:
        return io.BytesIO(self.data[self.offsets[i] : self.offsets[i + 1]].tobytes())

    def read(self, i: int) -> Pixels:
        return decode(self._file(i))

    def size(self, i: int) -> tuple[int, int]:
        return _header(self._file(i))

    def name(self, i: int) -> str:
        return f"picture {i}"

    def digest(self) -> str:
        h = hashlib.blake2b(np.ascontiguousarray(self.data).data, digest_size=16)
        h.update(self.offsets.tobytes())
        return h.hexdigest()


@dataclass
class Files:
    """Picture files below a folder."""

    root: Path
    paths: Sequence[str]
    decoded: bool = field(default=False, init=False)

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, i: int) -> Pixels:
        with open(self.root / self.paths[i], "rb") as file:
            return decode(file)

    def size(self, i: int) -> tuple[int, int]:
        with open(self.root / self.paths[i], "rb") as file:
            return _header(file)

    def name(self, i: int) -> str:
        return str(self.root / self.paths[i])

    def digest(self) -> str:
        h = hashlib.blake2b(digest_size=16)
        for path in self.paths:
            h.update(f"{path}\0{(self.root / path).stat().st_size}\0".encode())
        return h.hexdigest()


@dataclass
class Reader:
    """A data set of timm or torchvision that gives (picture, label) by number."""

    title: str
    dataset: Any
    decoded: bool = field(default=False, init=False)

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, i: int) -> Pixels:
        return rgb(self.dataset[i][0])

    def size(self, i: int) -> tuple[int, int]:
        width, height = self.dataset[i][0].size
        return height, width

    def name(self, i: int) -> str:
        return f"picture {i} of {self.title}"

    def digest(self) -> str:
        return hashlib.blake2b(f"{self.title} {len(self)}".encode(), digest_size=16).hexdigest()


def decode(file: Any) -> Pixels:
    """A picture file as uint8 RGB."""
    with Image.open(file) as picture:
        return rgb(picture)


def rgb(picture: Image.Image) -> Pixels:
    """Grey (also of 16 bits), palette and transparent pictures as uint8 RGB; transparency is dropped."""
    if picture.mode.startswith("I"):
        grey = np.clip(np.asarray(picture).astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=-1)
    if picture.mode == "P" and "transparency" in picture.info:
        picture = picture.convert("RGBA")
    return np.asarray(picture.convert("RGB"))


def _header(file: Any) -> tuple[int, int]:
    with Image.open(file) as picture:
        return picture.height, picture.width
