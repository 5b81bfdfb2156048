"""Data sets that timm can read: `torch/NAME`, `hfds/NAME`, `hfids/NAME`, `tfds/NAME`, `wds/NAME`.

A folder may follow after a colon (`torch/cifar10:FOLDER`): where the data lies or is downloaded to. Hugging Face and TensorFlow sets
have their own caches; torchvision's are put in the user's cache otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from superformer.data.split import Ints
from superformer.data.stores import Arrays, Reader, Store, rgb
from superformer.errors import SuperformerError

PREFIXES = ("torch/", "hfds/", "hfids/", "tfds/", "wds/")
Read = tuple[Store, Ints, tuple[str, ...]]


def read_timm(spec: str, memory: float) -> tuple[Read, Read | None]:
    """The training and the test part, the second None if the set has none.

    timm gives no way to see whether there is a test part but to open it; its pictures are not decoded here.
    """
    name, _, root = spec.partition(":")
    if name in ("torch/image_folder", "torch/folder"):  # without a test folder, timm would read training pictures as test pictures
        raise SuperformerError(f"--data {spec!r} reads folders, which need no reader: give the folder itself")
    train = _part(name, root, ("train",), memory)
    if isinstance(train, Exception):
        raise _unread(spec, train) from train
    test = _part(name, root, ("validation",) if name.startswith("torch/") else ("test", "validation"), memory, train[2])
    if not isinstance(test, Exception):
        return train, test
    if name.startswith("torch/") or not isinstance(test, (KeyError, ValueError)):  # what the others raise for a split that is not there
        raise _unread(f"the test part of {spec}", test) from test
    return train, None


def _unread(what: str, problem: Exception) -> SuperformerError:
    return SuperformerError(
        f"timm could not read {what} ({type(problem).__name__}: {problem}): check the name, the network and that the reader's package is "
        f"installed; a folder may follow after a colon"
    )


def _part(name: str, root: str, splits: Sequence[str], memory: float, classes: tuple[str, ...] = ()) -> Read | Exception:
    """The first split that there is, or the last one's error."""
    from timm.data.dataset_factory import create_dataset

    folder = root or (_cache() if name.startswith("torch/") else None)
    problem: Exception = SuperformerError("no split")
    for split in splits:
        try:
            return _read(name, create_dataset(name, root=folder, split=split, download=True), memory, classes)
        except SuperformerError:
            raise
        except Exception as error:  # timm and the packages behind it raise anything, assertions included
            problem = error
    return problem


def _read(name: str, dataset: Any, memory: float, classes: tuple[str, ...]) -> Read:
    random_access = hasattr(type(dataset), "__getitem__") and hasattr(dataset, "__len__") and not hasattr(type(dataset), "__iter__")
    store: Store
    if random_access:
        store, labels = Reader(name, dataset), _labels(dataset)
    else:
        store, labels = _stream(name, dataset, memory)
    found = classes or _classes(dataset) or tuple(str(c) for c in range(int(labels.max()) + 1))
    if labels.min() < 0 or labels.max() >= len(found):
        raise SuperformerError(f"{name}: labels go from {labels.min()} to {labels.max()}, but there are {len(found)} classes")
    return store, labels, found


def _labels(dataset: Any) -> Ints:
    """All labels, without decoding pictures where the data set has them apart."""
    reader = getattr(dataset, "reader", None)
    for owner, key in ((dataset, "targets"), (dataset, "labels"), (dataset, "_labels")):
        values = getattr(owner, key, None)
        if values is not None and len(values) == len(dataset):
            return np.asarray(values).astype(np.int64)
    if reader is not None and hasattr(reader, "label_key"):
        return np.asarray(reader.dataset[reader.label_key]).astype(np.int64)
    return np.array([dataset[i][1] for i in range(len(dataset))], dtype=np.int64)


def _classes(dataset: Any) -> tuple[str, ...]:
    named = getattr(dataset, "classes", None)
    if named is None:
        number = getattr(getattr(dataset, "reader", None), "class_to_idx", None) or {}
        named = sorted(number, key=lambda n: number[n])
    return tuple(n if isinstance(n, str) else ", ".join(map(str, n)) if isinstance(n, tuple) else str(n) for n in named)


def _stream(name: str, dataset: Any, memory: float) -> tuple[Store, Ints]:
    """A data set that can only be read from its beginning is kept whole."""
    pictures, labels, size = [], [], 0
    for picture, label in dataset:
        pictures.append(rgb(picture))
        labels.append(int(label))
        size += pictures[-1].nbytes
        if size > memory * 1e9:
            raise SuperformerError(
                f"{name} can only be read from its beginning and does not fit {memory:g} GB: raise data.memory, or give it as a folder"
            )
    if not pictures:
        raise SuperformerError(f"{name} holds no pictures")
    return Arrays(pictures), np.array(labels, dtype=np.int64)


def _cache() -> str:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "superformer" / "data"
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)
