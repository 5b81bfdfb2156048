"""What ``--data`` may say, resolved into pictures that have been found but not read.

`digits`; a folder of one folder per class; a folder of tar files (`superformer.data.shards`); a folder with `train/`
and `test/`, `val/` or `validation/`; a `.npz`; a pair `train=PATH,test=PATH` of folders, tar files (such as
`train-{0000..0099}.tar`) or `.npz` files; a reader of timm (`superformer.data.stores`).

A `.npz` has either ``images`` (uint8, of shape (n, height, width, 3), or grey without or with a last axis of 1), or
``jpeg`` (encoded files laid end to end, uint8) with ``offsets`` (n + 1); and ``labels``, whole numbers from 0.
``class_names`` may name the classes. Nothing is ever unpickled."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from superformer.data import index, shards
from superformer.data.index import UNREADABLE, Names, natural_order
from superformer.data.stores import ENDINGS, PREFIXES, Arrays, Files, Ints, LabelledStore, Packed, Store, read_timm
from superformer.errors import SuperformerError, nearest

FORMS = (
    "digits, a folder of one folder per class or of tar files, a folder with train/ and test/ (or val/), a .npz with "
    "images and labels, train=PATH,test=PATH, or a timm reader such as torch/cifar10 or hfds/NAME"
)
TRAIN = ("train", "training")
SAMPLE = 64
"""Files of a large folder whose sizes are looked at: rewriting pictures in place does not change their folder."""
TEST = ("test", "val", "validation", "valid")


@dataclass(frozen=True)
class Source:
    """A training set, and how to open the test set, if one was given."""

    train: LabelledStore
    test: Callable[[], LabelledStore] | None = None
    test_origin: str = ""


def label(spec: str) -> str:
    """Pictures by the name of their file or folder, wherever it lies: what is told of them is for others."""
    return Path(spec.partition(",")[0].rpartition("=")[2]).name if "/" in spec else spec


def resolve(spec: str, memory: float = 2.0) -> Source:
    """The pictures that a ``--data`` text means."""
    spec = spec.strip()
    if spec == "digits":
        return Source(_learnable(_digits(), spec))
    if spec.startswith(("train=", "test=")):
        return _pair(spec)
    path = Path(spec).expanduser()
    if spec.startswith(PREFIXES) and not path.exists():
        train, test = read_timm(spec, memory)
        known = _learnable(train, spec)
        return Source(known) if test is None else Source(known, lambda: test, f"the test part of {spec}")
    if path.is_dir():
        folders = {entry.name.lower(): path / entry.name for entry in os.scandir(path) if entry.is_dir()}
        if (inner := next((folders[n] for n in TRAIN if n in folders), None)) is not None:
            tests = (folders[n] for n in TEST if n in folders and _holds_pictures(folders[n]))
            return _train_and_test(inner, next(tests, None))
    return _train_and_test(path, None)


def _holds_pictures(folder: Path) -> bool:
    return any(entry.is_dir() or entry.name.lower().endswith(".tar") for entry in os.scandir(folder))


def _pair(spec: str) -> Source:
    head, comma, tail = spec.partition(",test=")
    if not head.startswith("train=") or not head.removeprefix("train="):
        raise SuperformerError(f"--data {spec!r} names no training set: write train=PATH,test=PATH")
    if comma and not tail:
        forms = "train=PATH,test=PATH, or train=PATH to hold a part of it out"
        raise SuperformerError(f"--data {spec!r} names no test set: write {forms}")
    test = Path(tail).expanduser() if comma else None
    return _train_and_test(Path(head.removeprefix("train=")).expanduser(), test)


def _train_and_test(train: Path, test: Path | None) -> Source:
    """A training set, perhaps with a test set, of which only the names of the classes are read yet."""
    tars = shards.shards_of(train)
    held = shards.shards_of(test) if test is not None else ()
    words = {path: set(re.findall("[a-z]+", path.stem.lower())) for path in tars}  # of set-train-00: set, train
    rest = tuple(path for path in tars if not words[path] & set(TEST))
    if test is None and 0 < len(rest) < len(tars):  # one folder with the shards of both
        held = next(found for w in TEST if (found := tuple(path for path in tars if w in words[path])))
        tars, test = rest, train
    known = _learnable(_tars(tars) if tars else _folder_or_npz(train), str(train))
    if test is None:
        return Source(known)
    origin, listed, names = str(test), None, None
    if held:
        origin = shards.title(held)
        listed = _tars(held, known.classes)
    elif test.is_dir():
        listed = _folder(test)
    else:
        _check_exists(test)
        if test.suffix == ".npz":
            with open_npz(test) as file:
                names = _named_classes(test, file)
    names = names if listed is None else listed.classes
    if names is not None:
        _check_same_classes(known.classes, names, origin)

    def open_test() -> LabelledStore:
        other = listed or _folder_or_npz(test, known.classes)
        _check_same_classes(known.classes, other.classes, origin)
        return other

    return Source(known, open_test, origin)


def _tars(paths: tuple[Path, ...], classes: tuple[str, ...] | None = None) -> LabelledStore:
    """The pictures of shards; ``classes`` of the training set for shards that number theirs."""
    store, labels, names = shards.read_shards(paths)
    names = names or classes
    labels = _labels(shards.title(paths), labels, len(store), names)
    return LabelledStore(store, labels, names or tuple(str(c) for c in range(int(labels.max()) + 1)))


def _learnable(found: LabelledStore, spec: str) -> LabelledStore:
    """A training set that can be learned: two classes or more, a picture of each."""
    if len(found.classes) < 2:
        one = f"{spec} has only one class, {found.classes[0]!r}"
        raise SuperformerError(f"{one}: give pictures of two classes or more, one folder per class")
    empty = [found.classes[c] for c in np.flatnonzero(np.bincount(found.labels, minlength=len(found.classes)) == 0)]
    if empty:
        advice = "number the labels from 0 without gaps, or leave these classes out"
        raise SuperformerError(f"{spec} has no picture of {_listed(empty)}: {advice}")
    return found


def _check_same_classes(train: Sequence[str], test: Sequence[str], where: str) -> None:
    if tuple(train) == tuple(test):
        return
    missing, extra = [c for c in train if c not in test], [c for c in test if c not in train]
    differences = [f"{_listed(missing)} only in training"] if missing else []
    differences += [f"{_listed(extra)} only in the test set"] if extra else []
    told = "; ".join(differences) or "the same names in another order"
    raise SuperformerError(f"{where} has other classes than the training set: {told}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(n) for n in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _check_exists(path: Path) -> None:
    if not path.exists():
        hint = nearest(str(path), ["digits"]) + "; " if "/" not in str(path) and "." not in str(path) else ""
        raise SuperformerError(f"there is no {path}: {hint}--data takes {FORMS}")


def _folder_or_npz(path: Path, classes: tuple[str, ...] | None = None) -> LabelledStore:
    """A folder or a .npz; ``classes`` of the training set for a .npz that names none."""
    _check_exists(path)
    if path.is_dir():
        return _folder(path)
    if path.suffix != ".npz":
        raise SuperformerError(f"{path} is a file that is neither .npz nor .tar: --data takes {FORMS}")
    return _npz(path, classes)


def _digits() -> LabelledStore:
    """scikit-learn's 1797 handwritten digits, 8 x 8 grey; of its file, since importing it takes a second or two."""
    found = importlib.util.find_spec("sklearn")
    places = (found.submodule_search_locations if found is not None else None) or ["."]
    path = Path(places[0]) / "datasets" / "data" / "digits.csv.gz"
    if path.exists():
        table = np.loadtxt(path, delimiter=",")
    else:  # another version, another place
        from sklearn.datasets import load_digits

        table = np.column_stack(load_digits(return_X_y=True))
    grey = np.round(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # (pictures, rows, columns)
    return LabelledStore(Arrays(grey), table[:, -1].astype(np.int64), tuple(str(d) for d in range(10)))


def _folder(root: Path) -> LabelledStore:
    """Every picture below a folder; its class is the name of the folder it lies in, however deep, as in timm."""
    where = root.resolve()
    known = index.kept(
        where.parent, where.name, lambda about: _unchanged(root, about), lambda: _found_in(root), index.LARGE
    )
    classes = tuple(json.loads(known.arrays["classes"].tobytes()))
    return LabelledStore(Files(root, known.names, known if known.places else None), known.arrays["labels"], classes)


def _found_in(root: Path) -> tuple[Any, index.Arrays]:
    """The pictures below a folder; and its folders, with the times at which they last changed."""
    paths: list[str] = []
    folders: list[tuple[str, int]] = []
    for folder, inner, files in os.walk(root, followlinks=True):
        inner[:] = [d for d in inner if not d.startswith(".")]
        where = os.path.relpath(folder, root)
        folders.append((where, os.stat(folder).st_mtime_ns))
        if where != ".":
            shown = (f for f in files if f.lower().endswith(ENDINGS) and not f.startswith("."))
            paths += [f"{where}{os.sep}{f}" for f in shown]
    if not paths:
        loose = sum(f.name.lower().endswith(ENDINGS) for f in root.iterdir())
        has = f"{loose} pictures but no folders of classes" if loose else "no pictures in folders of classes"
        advice = f"put the pictures of each class in a folder of the class's name ({', '.join(ENDINGS)})"
        raise SuperformerError(f"{root} has {has}: {advice}")
    paths.sort(key=natural_order)
    names = [f"{os.sep}{p}".rsplit(os.sep, 2)[1] for p in paths]
    classes = sorted(set(names), key=natural_order)
    number = {name: i for i, name in enumerate(classes)}
    found, labels = Names.of(paths), np.array([number[n] for n in names], dtype=np.int64)
    about = np.frombuffer(json.dumps(classes).encode(), np.uint8)
    arrays: index.Arrays = {"names": found.text, "ends": found.ends, "classes": about, "labels": labels}
    if len(paths) < index.LARGE:
        return None, arrays
    arrays["bytes"] = np.array([_bytes(root, p) for p in paths], dtype=np.int64)
    sample = range(0, len(paths), max(len(paths) // SAMPLE, 1))
    return {"folders": folders, "sample": [(paths[i], int(arrays["bytes"][i])) for i in sample]}, arrays


def _unchanged(root: Path, about: Any) -> bool:
    """Whether a folder is as it was listed: its folders have changed at the same times, and some files are as large."""
    times = all(os.stat(root / folder).st_mtime_ns == time for folder, time in about["folders"])
    return times and all(_bytes(root, path) == size for path, size in about["sample"])


def _bytes(root: Path, path: str) -> int:
    try:
        return os.stat(f"{root}{os.sep}{path}").st_size
    except OSError:  # a link to nothing: a picture that does not decode
        return -1


def _npz(path: Path, classes: tuple[str, ...] | None) -> LabelledStore:
    with open_npz(path) as file:
        has = set(file.files)
        if not ({"images", "labels"} <= has or {"jpeg", "offsets", "labels"} <= has):
            wanted = "images (uint8, n x height x width x 3) and labels, or jpeg, offsets and labels"
            raise SuperformerError(f"{path} holds {', '.join(file.files) or 'nothing'}: it needs {wanted}")
        names = _named_classes(path, file) or classes
        store = image_store(path, read_array(path, file, "images")) if "images" in has else _packed(path, file)
        labels = _labels(path, read_array(path, file, "labels"), len(store), names)
    return LabelledStore(store, labels, names or tuple(str(c) for c in range(int(labels.max()) + 1)))


def open_npz(path: Path) -> Any:
    try:
        file = np.load(path, allow_pickle=False)
    except UNREADABLE as problem:
        told = f"{path} is not a .npz of plain arrays ({problem})"
        raise SuperformerError(f"{told}: write it with numpy.savez") from problem
    if not hasattr(file, "files"):
        advice = "write it with numpy.savez(path, images=..., labels=...)"
        raise SuperformerError(f"{path} holds one array, not a .npz: {advice}")
    return file


def read_array(path: Path, file: Any, key: str) -> npt.NDArray[Any]:
    try:
        return np.asarray(file[key])
    except UNREADABLE as problem:
        advice = "arrays of Python objects are refused, store plain numbers or text"
        raise SuperformerError(f"{path}: {key} cannot be read ({problem}); {advice}") from problem


def _named_classes(path: Path, file: Any) -> tuple[str, ...] | None:
    if "class_names" not in file.files:
        return None
    names = tuple(str(n) for n in read_array(path, file, "class_names").ravel())
    if len(set(names)) < len(names):
        raise SuperformerError(f"{path}: class_names has a name twice; every class needs its own")
    return names


def image_store(path: Path, images: npt.NDArray[Any]) -> Store:
    if images.dtype != np.uint8:
        raise SuperformerError(f"{path}: images are {images.dtype}, they must be uint8 (0 to 255)")
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]  # (n, height, width)
    if not (images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3)) or 0 in images.shape[1:3]:
        allowed = "(n, height, width, 3), or (n, height, width) for grey"
        raise SuperformerError(f"{path}: images have shape {images.shape}, it must be {allowed}")
    if not len(images):
        raise SuperformerError(f"{path} holds no pictures")
    return Arrays(np.ascontiguousarray(images))


def _packed(path: Path, file: Any) -> Store:
    data, offsets = read_array(path, file, "jpeg"), read_array(path, file, "offsets")
    if data.dtype != np.uint8 or data.ndim != 1:
        raise SuperformerError(f"{path}: jpeg is {data.dtype} of shape {data.shape}, it must be uint8 of one dimension")
    sound = offsets.ndim == 1 and len(offsets) and offsets.dtype.kind in "iu"
    if not sound or offsets[0] < 0 or (np.diff(offsets.astype(np.int64)) < 0).any() or offsets[-1] > len(data):
        allowed = f"n + 1 whole numbers that rise from 0 to the length of jpeg ({len(data)})"
        raise SuperformerError(f"{path}: offsets must be {allowed}")
    if len(offsets) == 1:
        raise SuperformerError(f"{path} holds no pictures")
    return Packed(data, offsets.astype(np.int64))


def _labels(path: Path | str, labels: npt.NDArray[Any], n: int, names: tuple[str, ...] | None) -> Ints:
    if labels.dtype.kind not in "iu":
        wrong = f"are {labels.dtype}, they must be whole numbers from 0; put names in class_names"
    elif labels.shape != (n,):
        wrong = f"have shape {labels.shape}, but there are {n} pictures: one label a picture is needed"
    elif labels.min() < 0:
        wrong = f"start at {labels.min()}, they must start at 0"
    elif names is not None and labels.max() >= len(names):
        wrong = f"go up to {labels.max()}, but there are {len(names)} classes (0 to {len(names) - 1})"
    elif names is None and labels.max() >= 10 * n + 1000:
        wrong = f"go up to {labels.max()} for {n} pictures; number the classes from 0 without gaps"
    else:
        return labels.astype(np.int64)
    raise SuperformerError(f"{path}: labels {wrong}")
