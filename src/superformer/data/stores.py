"""Where the pixels are: in memory, as JPEG files laid end to end, in files, or behind one of timm's readers.

A store reads a picture by its number, as uint8 of shape (height, width, 3).

timm reads `torch/NAME`, `hfds/NAME`, `hfids/NAME`, `tfds/NAME`, `wds/NAME`. A folder may follow after a colon
(`torch/cifar10:FOLDER`): where the data lies or is downloaded to; torchvision's sets go to the user's cache else."""

from __future__ import annotations

import abc
import hashlib
import io
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from superformer.data.index import Index, Names
from superformer.errors import SuperformerError

Ints = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
HEAD = 16 * 1024
"""Bytes of a picture that are read for its height and width; all of it where they are not enough."""
PREFIXES = ("torch/", "hfds/", "hfids/", "tfds/", "wds/")
"""Of the data sets that timm reads."""


class Store(Protocol):
    """Pictures that can be read one by one; ``decoded`` ones cost nothing to read again.

    ``read`` fails by any exception. ``size`` is height and width, from the header where there is one. ``name`` is what
    messages call a picture. ``digest`` changes when the pictures do."""

    decoded: bool

    def __len__(self) -> int: ...
    def read(self, i: int) -> Pixels: ...
    def size(self, i: int) -> tuple[int, int]: ...
    def name(self, i: int) -> str: ...
    def digest(self) -> str: ...


@dataclass(frozen=True)
class LabelledStore:
    """Pictures with labels 0..n-1 and the names of the classes; nothing is decoded yet."""

    store: Store
    labels: Ints
    classes: tuple[str, ...]


def digest(parts: Iterable[bytes | memoryview]) -> str:
    """A hash of all parts, one after another."""
    h = hashlib.blake2b(digest_size=16)
    for part in parts:
        h.update(part)
    return h.hexdigest()


@dataclass
class Arrays:
    """Pictures in memory: one array of shape (n, height, width, 3), or one array a picture."""

    images: Pixels | list[Pixels]

    decoded = True

    def __len__(self) -> int:
        return len(self.images)

    def read(self, i: int) -> Pixels:
        picture = self.images[i]
        return picture if picture.ndim == 3 else np.repeat(picture[..., None], 3, axis=-1)  # grey: (h, w) -> (h, w, 3)

    def size(self, i: int) -> tuple[int, int]:
        return self.images[i].shape[0], self.images[i].shape[1]

    def name(self, i: int) -> str:
        return f"picture {i}"

    def digest(self) -> str:
        arrays = [self.images] if isinstance(self.images, np.ndarray) else self.images
        return digest(part for a in arrays for part in (str(a.shape).encode(), np.ascontiguousarray(a).data))


class Encoded(abc.ABC):
    """Pictures in files: each is decoded when it is read, and tells its size in its header.

    ``index``: what is known of them already, if it is kept."""

    decoded = False
    index: Index | None = None

    @abc.abstractmethod
    def encoded(self, i: int, most: int = -1) -> bytes:
        """The picture's file, or so many bytes of its beginning."""

    def read(self, i: int) -> Pixels:
        return np.asarray(self.image(i))

    def image(self, i: int) -> Image.Image:
        """The picture as Pillow decodes it, RGB: what timm's transforms begin with."""
        with open_picture(self.encoded(i)) as picture:
            return rgb_image(picture)

    def header(self, i: int) -> tuple[int, int]:
        """Height and width, read from the file."""
        head = self.encoded(i, HEAD)
        if (plain := jpeg_size(head)) is not None:
            return plain
        try:
            opened = open_picture(head)
        except Exception:  # a header that is longer, or no picture
            opened = open_picture(self.encoded(i))
        with opened as picture:
            return picture.height, picture.width

    def size(self, i: int) -> tuple[int, int]:
        height, width = (0, 0) if self.index is None else self.index.shapes[i].tolist()
        return (height, width) if height else self.header(i)


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Height and width of a plain JPEG, in an eighth of Pillow's time; None for all that Pillow might refuse or see
    otherwise. All headers are read before a large set is trained on."""
    at, size = 2, None
    while data[:2] == b"\xff\xd8" and at + 10 <= len(data) and data[at] == 0xFF:
        kind, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4])
        if kind == 0xDA:  # the pixels begin
            return size
        if kind in (0xC0, 0xC2):  # baseline, progressive
            bits, height, width, channels = struct.unpack(">BHHB", data[at + 4 : at + 10])
            if bits != 8 or channels not in (1, 3) or not 0 < height * width < 2**26 or length != 8 + 3 * channels:
                return None
            size = height, width
        elif kind == 0xDB:  # tables of 64 bytes
            if (length - 2) % 65 or any(first > 15 for first in data[at + 4 : at + 2 + length : 65]):
                return None
        elif kind == 0xE0:
            if length < 16 or data[at + 4 : at + 9] != b"JFIF\0":
                return None
        elif kind not in (0xC4, 0xDD, 0xFE) or length < 2:  # further tables, restarts, comments
            return None
        at += 2 + length
    return None


def open_picture(data: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data))
    except UnidentifiedImageError:  # which names an object in memory
        raise UnidentifiedImageError("not a picture that Pillow knows") from None


@dataclass
class Packed(Encoded):
    """Encoded files (JPEG, PNG) laid end to end: picture i is ``data[offsets[i] : offsets[i + 1]]``."""

    data: Pixels
    offsets: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def encoded(self, i: int, most: int = -1) -> bytes:
        data = self.data[self.offsets[i] : self.offsets[i + 1]]
        return (data if most < 0 else data[:most]).tobytes()

    def name(self, i: int) -> str:
        return f"picture {i}"

    def digest(self) -> str:
        return digest([np.ascontiguousarray(self.data).data, self.offsets.tobytes()])


@dataclass
class Files(Encoded):
    """Picture files below a folder. What is kept of them, if anything, has their sizes in bytes, too."""

    root: Path
    paths: Sequence[str] | Names
    index: Index | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def encoded(self, i: int, most: int = -1) -> bytes:
        with open(os.path.join(self.root, self.paths[i]), "rb", buffering=0) as file:
            return file.read(most)

    def name(self, i: int) -> str:
        return str(self.root / self.paths[i])

    def digest(self) -> str:
        known = {} if self.index is None else self.index.arrays
        sizes = known["bytes"].tolist() if "bytes" in known else ((self.root / p).stat().st_size for p in self.paths)
        return digest(os.fsencode(f"{path}\0{size}\0") for path, size in zip(self.paths, sizes, strict=True))


@dataclass
class Reader:
    """A data set of timm or torchvision that gives (picture, label) by number."""

    title: str
    dataset: Any

    decoded = False

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
        return digest([f"{self.title} {len(self)}".encode()])


def decode(file: Any) -> Pixels:
    """A picture file as uint8 RGB."""
    with Image.open(file) as picture:
        return rgb(picture)


def rgb(picture: Image.Image) -> Pixels:
    """Grey (also of 16 bits), palette and transparent pictures as uint8 RGB; transparency is dropped."""
    return np.asarray(rgb_image(picture))


def rgb_image(picture: Image.Image) -> Image.Image:
    """The same as a picture."""
    if picture.mode.startswith("I"):
        grey = np.clip(np.asarray(picture).astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        return Image.fromarray(np.repeat(grey[..., None], 3, axis=-1))  # (h, w) -> (h, w, 3)
    if picture.mode == "P" and "transparency" in picture.info:
        picture = picture.convert("RGBA")
    return picture.convert("RGB")


class UnlabelledError(ValueError):
    """A part of a data set has no labels."""


def read_timm(spec: str, memory: float) -> tuple[LabelledStore, LabelledStore | None]:
    """The training and the test part, None if the set has none: timm can only tell by opening it; decodes nothing.
    A part without labels, as ImageNet's for its contest, is none."""
    name, _, root = spec.partition(":")
    torchvision = name.startswith("torch/")
    if name in ("torch/image_folder", "torch/folder"):  # timm would read training pictures as test pictures
        raise SuperformerError(f"--data {spec!r} reads folders, which need no reader: give the folder itself")
    train = _first_split(name, root, ("train",), memory)
    if isinstance(train, Exception):
        raise _unread(spec, train) from train
    splits = ("validation",) if torchvision else ("test", "validation")
    test = _first_split(name, root, splits, memory, train.classes)
    if isinstance(test, LabelledStore):
        return train, test
    if torchvision or not isinstance(test, (KeyError, ValueError)):  # what the others raise where there is no split
        raise _unread(f"the test part of {spec}", test) from test
    return train, None


def _unread(what: str, problem: Exception) -> SuperformerError:
    advice = "check the name, the network and that the reader's package is installed; a folder may follow after a colon"
    return SuperformerError(f"timm could not read {what} ({type(problem).__name__}: {problem}): {advice}")


def _first_split(
    name: str, root: str, splits: Sequence[str], memory: float, classes: tuple[str, ...] = ()
) -> LabelledStore | Exception:
    """The first split that there is, or the last one's error."""
    from timm.data.dataset_factory import create_dataset

    if not root and name.startswith("torch/"):
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "superformer" / "data"
        cache.mkdir(parents=True, exist_ok=True)
        root = str(cache)
    problem: Exception = SuperformerError("no split")
    for split in splits:
        try:
            return _read(name, create_dataset(name, root=root or None, split=split, download=True), memory, classes)
        except SuperformerError:
            raise
        except Exception as error:  # timm and the packages behind it raise anything, assertions included
            problem = error
    return problem


def _read(name: str, dataset: Any, memory: float, classes: tuple[str, ...]) -> LabelledStore:
    kind = type(dataset)
    if hasattr(kind, "__getitem__") and hasattr(dataset, "__len__") and not hasattr(kind, "__iter__"):
        store: Store = Reader(name, dataset)
        labels = _labels(dataset)
    else:
        store, labels = _stream(name, dataset, memory)
    classes = classes or _class_names(dataset) or tuple(str(c) for c in range(int(labels.max()) + 1))
    if labels.max() < 0:
        raise UnlabelledError(f"the pictures of {name} have no labels")
    if labels.min() < 0 or labels.max() >= len(classes):
        given = f"labels go from {labels.min()} to {labels.max()}"
        raise SuperformerError(f"{name}: {given}, but there are {len(classes)} classes")
    return LabelledStore(store, labels, classes)


def _labels(dataset: Any) -> Ints:
    """All labels, without decoding pictures where the data set has them apart."""
    for key in ("targets", "labels", "_labels"):
        values = getattr(dataset, key, None)
        if values is not None and len(values) == len(dataset):
            return np.asarray(values).astype(np.int64)
    reader = getattr(dataset, "reader", None)
    if reader is not None and hasattr(reader, "label_key"):
        return np.asarray(reader.dataset[reader.label_key]).astype(np.int64)
    return np.array([dataset[i][1] for i in range(len(dataset))], dtype=np.int64)


def _class_names(dataset: Any) -> tuple[str, ...]:
    names = getattr(dataset, "classes", None)
    if names is None:
        number = getattr(getattr(dataset, "reader", None), "class_to_idx", None) or {}
        names = sorted(number, key=lambda n: number[n])
    return tuple(", ".join(map(str, n)) if isinstance(n, tuple) else str(n) for n in names)


def _stream(name: str, dataset: Any, memory: float) -> tuple[Store, Ints]:
    """A data set that can only be read from its beginning is kept whole."""
    pictures, labels, size = [], [], 0
    for picture, label in dataset:
        pictures.append(rgb(picture))
        labels.append(int(label))
        size += pictures[-1].nbytes
        if size > memory * 1e9:
            told = f"{name} can only be read from its beginning and does not fit {memory:g} GB"
            raise SuperformerError(f"{told}: raise data.memory, or give it as a folder")
    if not pictures:
        raise SuperformerError(f"{name} holds no pictures")
    return Arrays(pictures), np.array(labels, dtype=np.int64)
