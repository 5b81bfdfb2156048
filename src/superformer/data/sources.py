"""What ``--data`` may say, resolved into pictures that have been found but not read.

`digits`; a folder of one folder per class; a folder with `train/` and `test/`, `val/` or `validation/`; a `.npz`; a
pair `train=PATH,test=PATH` of folders or `.npz` files; a reader of timm (`superformer.data.stores`)."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from superformer.data.stores import PREFIXES, Arrays, Files, Ints, Packed, Pixels, Store, read_timm
from superformer.errors import SuperformerError, nearest

FORMS = (
    "digits, a folder of one folder per class, a folder with train/ and test/ (or val/), a .npz with images and labels, "
    "train=PATH,test=PATH, or a timm reader such as torch/cifar10 or hfds/NAME"
)
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
TRAIN = ("train", "training")
TEST = ("test", "val", "validation", "valid")


@dataclass(frozen=True)
class Found:
    """Pictures with labels and the names of the classes; nothing is decoded yet."""

    store: Store
    labels: Ints
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """A training set, and how to open the test set, if one was given."""

    train: Found
    test: Callable[[], Found] | None = None
    test_origin: str = ""


def resolve(spec: str, memory: float = 2.0) -> Source:
    """The pictures that a ``--data`` text means."""
    spec = spec.strip()
    if spec == "digits":
        return Source(checked(_digits(), spec))
    if spec.startswith(("train=", "test=")):
        return _pair(spec)
    path = Path(spec).expanduser()
    if spec.startswith(PREFIXES) and not path.exists():
        train, test = (Found(*found) if found else None for found in read_timm(spec, memory))
        assert train is not None
        return Source(
            checked(train, spec), None if test is None else lambda: test, f"the test part of {spec}" if test else ""
        )
    if path.is_dir() and (sub := _parts(path)):
        return (
            _given(path / sub[0], path / sub[1]) if sub[1] else Source(checked(_one(path / sub[0]), str(path / sub[0])))
        )
    return Source(checked(_one(path), str(path)))


def checked(found: Found, spec: str) -> Found:
    """A training set that can be learned: two classes or more, a picture of each."""
    if len(found.classes) < 2:
        raise SuperformerError(
            f"{spec} has only one class, {found.classes[0]!r}: give pictures of two classes or more, one folder per class"
        )
    empty = [found.classes[c] for c in np.flatnonzero(np.bincount(found.labels, minlength=len(found.classes)) == 0)]
    if empty:
        raise SuperformerError(
            f"{spec} has no picture of {_some(empty)}: number the labels from 0 without gaps, or leave these classes out"
        )
    return found


def _digits() -> Found:
    """scikit-learn's 1797 handwritten digits, 8 x 8 grey."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    grey = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return Found(Arrays(grey), labels.astype(np.int64), tuple(str(d) for d in range(10)))


def _pair(spec: str) -> Source:
    head, comma, tail = spec.partition(",test=")
    if not head.startswith("train=") or not head.removeprefix("train="):
        raise SuperformerError(f"--data {spec!r} names no training set: write train=PATH,test=PATH")
    train = Path(head.removeprefix("train=")).expanduser()
    if not comma:
        return Source(checked(_one(train), str(train)))
    if not tail:
        raise SuperformerError(
            f"--data {spec!r} names no test set: write train=PATH,test=PATH, or train=PATH to hold a part of it out"
        )
    return _given(train, Path(tail).expanduser())


def _given(train: Path, test: Path) -> Source:
    """A training and a test set. The test set's class names are compared at once; its pictures and labels are not
    touched yet."""
    found = checked(_one(train), str(train))
    _exists(test)
    names = _folder_classes(test) if test.is_dir() else class_names(test)
    if names is not None:
        _same(found.classes, names, str(test))

    def opened() -> Found:
        other = _one(test, found.classes)
        _same(found.classes, other.classes, str(test))
        return other

    return Source(found, opened, str(test))


def _same(train: Sequence[str], test: Sequence[str], where: str) -> None:
    if tuple(train) == tuple(test):
        return
    missing, extra = [c for c in train if c not in test], [c for c in test if c not in train]
    told = [f"{_some(missing)} only in training"] if missing else []
    told += [f"{_some(extra)} only in the test set"] if extra else []
    raise SuperformerError(
        f"{where} has other classes than the training set: {'; '.join(told) or 'the same names in another order'}"
    )


def _exists(path: Path) -> None:
    if path.exists():
        return
    hint = nearest(str(path), ["digits"]) + "; " if "/" not in str(path) and "." not in str(path) else ""
    raise SuperformerError(f"there is no {path}: {hint}--data takes {FORMS}")


def _one(path: Path, classes: tuple[str, ...] | None = None) -> Found:
    """A folder or a .npz; ``classes`` of the training set for a .npz that names none."""
    _exists(path)
    if path.is_dir():
        return _folder(path)
    if path.suffix != ".npz":
        raise SuperformerError(f"{path} is a file that is not .npz: --data takes {FORMS}")
    return Found(*read_npz(path, classes))


# --- folders ---


def _folder(root: Path) -> Found:
    """Every picture below a folder; its class is the name of the folder it lies in, however deep, as timm reads
    them."""
    paths: list[str] = []
    for folder, inner, files in os.walk(root, followlinks=True):
        inner[:] = [d for d in inner if not d.startswith(".")]
        where = os.path.relpath(folder, root)
        paths += [
            os.path.join(where, f)
            for f in files
            if f.lower().endswith(ENDINGS) and not f.startswith(".") and where != "."
        ]
    if not paths:
        loose = sum(f.name.lower().endswith(ENDINGS) for f in root.iterdir())
        has = f"{loose} pictures but no folders of classes" if loose else "no pictures in folders of classes"
        raise SuperformerError(
            f"{root} has {has}: put the pictures of each class in a folder of the class's name ({', '.join(ENDINGS)})"
        )
    paths.sort(key=_natural)
    names = [os.path.basename(os.path.dirname(p)) for p in paths]
    classes = sorted(set(names), key=_natural)
    number = {name: i for i, name in enumerate(classes)}
    return Found(Files(root, paths), np.array([number[n] for n in names], dtype=np.int64), tuple(classes))


def _natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Sorts 2 before 10, as timm does."""
    return [(0, int(t), "") if t.isdecimal() else (1, 0, t) for t in re.split(r"(\d+)", name.lower())], name


def _folder_classes(root: Path) -> tuple[str, ...]:
    return _folder(root).classes


def _parts(root: Path) -> tuple[str, str] | None:
    """The names of the training and test folders below a folder, if it has them; the second is empty if there is none
    with classes."""
    folders = {p.name.lower(): p.name for p in root.iterdir() if p.is_dir()}
    train = next((folders[n] for n in TRAIN if n in folders), None)
    if train is None:
        return None
    test = next(
        (folders[n] for n in TEST if n in folders and any(p.is_dir() for p in (root / folders[n]).iterdir())), ""
    )
    return train, test


def _some(names: Sequence[str]) -> str:
    return ", ".join(repr(n) for n in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


# Pictures and labels in a `.npz` file.
#
# Either ``images`` (uint8, of shape (n, height, width, 3), or grey without or with a last axis of 1), or ``jpeg``
# (encoded files laid end to end, uint8) with ``offsets`` (n + 1); and ``labels``, whole numbers from 0.
# ``class_names`` may name the classes. Nothing is ever unpickled.


Array = npt.NDArray[Any]


def read_npz(path: Path, classes: tuple[str, ...] | None = None) -> tuple[Store, Ints, tuple[str, ...]]:
    """Pictures, labels and class names; ``classes`` where the file names none (a test set takes those of its training
    set)."""
    with _opened(path) as file:
        has = file.files
        form = {"images", "labels"} <= set(has) or {"jpeg", "offsets", "labels"} <= set(has)
        if not form:
            holds = ", ".join(has) or "nothing"
            raise SuperformerError(
                f"{path} holds {holds}: it needs images (uint8, n x height x width x 3) and labels, or jpeg, offsets and labels"
            )
        names = _names(path, file) or classes
        store = _images(path, _array(path, file, "images")) if "images" in has else _packed(path, file)
        labels = _labels(path, _array(path, file, "labels"), len(store), names)
    return store, labels, names or tuple(str(c) for c in range(int(labels.max()) + 1))


def class_names(path: Path) -> tuple[str, ...] | None:
    """The names of the classes alone, if the file has them."""
    if path.suffix != ".npz":
        return None
    with _opened(path) as file:
        return _names(path, file)


def _opened(path: Path) -> Any:
    try:
        file = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as problem:
        raise SuperformerError(
            f"{path} is not a .npz of plain arrays ({problem}): write it with numpy.savez"
        ) from problem
    if not hasattr(file, "files"):
        raise SuperformerError(
            f"{path} holds one array, not a .npz: write it with numpy.savez(path, images=..., labels=...)"
        )
    return file


def _array(path: Path, file: Any, key: str) -> Array:
    try:
        return np.asarray(file[key])
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as problem:
        raise SuperformerError(
            f"{path}: {key} cannot be read ({problem}); arrays of Python objects are refused, store plain numbers or text"
        ) from problem


def _names(path: Path, file: Any) -> tuple[str, ...] | None:
    if "class_names" not in file.files:
        return None
    names = tuple(str(n) for n in _array(path, file, "class_names").ravel())
    if len(set(names)) < len(names):
        raise SuperformerError(f"{path}: class_names has a name twice; every class needs its own")
    return names


def _images(path: Path, images: Array) -> Store:
    if images.dtype != np.uint8:
        raise SuperformerError(f"{path}: images are {images.dtype}, they must be uint8 (0 to 255)")
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    if not (images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3)) or 0 in images.shape[1:3]:
        raise SuperformerError(
            f"{path}: images have shape {images.shape}, it must be (n, height, width, 3), or (n, height, width) for grey"
        )
    if not len(images):
        raise SuperformerError(f"{path} holds no pictures")
    return Arrays(np.ascontiguousarray(images))


def _packed(path: Path, file: Any) -> Store:
    data, offsets = _array(path, file, "jpeg"), _array(path, file, "offsets")
    if data.dtype != np.uint8 or data.ndim != 1:
        raise SuperformerError(f"{path}: jpeg is {data.dtype} of shape {data.shape}, it must be uint8 of one dimension")
    sound = offsets.ndim == 1 and len(offsets) and offsets.dtype.kind in "iu"
    if not sound or offsets[0] < 0 or (np.diff(offsets.astype(np.int64)) < 0).any() or offsets[-1] > len(data):
        raise SuperformerError(
            f"{path}: offsets must be n + 1 whole numbers that rise from 0 to the length of jpeg ({len(data)})"
        )
    if len(offsets) == 1:
        raise SuperformerError(f"{path} holds no pictures")
    bytes_: Pixels = data
    return Packed(bytes_, offsets.astype(np.int64))


def _labels(path: Path, labels: Array, n: int, names: tuple[str, ...] | None) -> Ints:
    if labels.dtype.kind not in "iu":
        raise SuperformerError(
            f"{path}: labels are {labels.dtype}, they must be whole numbers from 0; put names in class_names"
        )
    if labels.shape != (n,):
        raise SuperformerError(
            f"{path}: labels have shape {labels.shape}, but there are {n} pictures: one label a picture is needed"
        )
    if labels.min() < 0:
        raise SuperformerError(f"{path}: labels start at {labels.min()}, they must start at 0")
    if names is not None and labels.max() >= len(names):
        raise SuperformerError(
            f"{path}: labels go up to {labels.max()}, but there are {len(names)} classes (0 to {len(names) - 1})"
        )
    if names is None and labels.max() >= 10 * n + 1000:
        raise SuperformerError(
            f"{path}: labels go up to {labels.max()} for {n} pictures; number the classes from 0 without gaps"
        )
    return labels.astype(np.int64)
