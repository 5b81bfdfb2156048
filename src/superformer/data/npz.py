"""Pictures and labels in a `.npz` file.

Either ``images`` (uint8, of shape (n, height, width, 3), or grey without or with a last axis of 1), or ``jpeg`` (encoded files laid end to
end, uint8) with ``offsets`` (n + 1); and ``labels``, whole numbers from 0. ``class_names`` may name the classes. Nothing is ever unpickled.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from superformer.data.split import Ints
from superformer.data.stores import Arrays, Packed, Pixels, Store
from superformer.errors import SuperformerError

Array = npt.NDArray[Any]


def read_npz(path: Path, classes: tuple[str, ...] | None = None) -> tuple[Store, Ints, tuple[str, ...]]:
    """Pictures, labels and class names; ``classes`` where the file names none (a test set takes those of its training set)."""
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
        raise SuperformerError(f"{path} is not a .npz of plain arrays ({problem}): write it with numpy.savez") from problem
    if not hasattr(file, "files"):
        raise SuperformerError(f"{path} holds one array, not a .npz: write it with numpy.savez(path, images=..., labels=...)")
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
        raise SuperformerError(f"{path}: offsets must be n + 1 whole numbers that rise from 0 to the length of jpeg ({len(data)})")
    if len(offsets) == 1:
        raise SuperformerError(f"{path} holds no pictures")
    bytes_: Pixels = data
    return Packed(bytes_, offsets.astype(np.int64))


def _labels(path: Path, labels: Array, n: int, names: tuple[str, ...] | None) -> Ints:
    if labels.dtype.kind not in "iu":
        raise SuperformerError(f"{path}: labels are {labels.dtype}, they must be whole numbers from 0; put names in class_names")
    if labels.shape != (n,):
        raise SuperformerError(f"{path}: labels have shape {labels.shape}, but there are {n} pictures: one label a picture is needed")
    if labels.min() < 0:
        raise SuperformerError(f"{path}: labels start at {labels.min()}, they must start at 0")
    if names is not None and labels.max() >= len(names):
        raise SuperformerError(f"{path}: labels go up to {labels.max()}, but there are {len(names)} classes (0 to {len(names) - 1})")
    if names is None and labels.max() >= 10 * n + 1000:
        raise SuperformerError(f"{path}: labels go up to {labels.max()} for {n} pictures; number the classes from 0 without gaps")
    return labels.astype(np.int64)
