"""Boxes and instance masks in COCO's json, with pictures in a folder.

A folder holds ``instances_train.json`` (or ``annotations/instances_train2017.json``, or ``train/`` with a json and the
pictures beside it, as Roboflow writes) and the same for the test part; pictures lie in ``train/``, ``train/images/``,
``images/train/`` or beside the json. Crowd regions are not trained on, and are ignored in the test as COCO does."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from superformer.data.sources import TEST, TRAIN
from superformer.data.stores import Store, digest
from superformer.errors import SuperformerError, shown
from superformer.transfer.examples.settings import ExampleSettings
from superformer.transfer.examples.sources import (
    Words,
    carve,
    folder_of,
    held_out,
    leave_out,
    named,
    parts,
    read_json,
    read_picture,
    sizes,
    where_pictures_are,
)
from superformer.transfer.examples.variation import Draw, Variation
from superformer.transfer.task import Example, TaskData

FORMS = (
    "a folder with instances_train.json and instances_test.json (or val) and the pictures, a json in COCO's format, "
    "or train=FILE.json,test=FILE.json"
)
MOST_UNSOUND = 0.1
"""The largest share of annotations that is skipped: more, and the numbers are likely of another form."""

FARTHEST = 10
"""How many sides of the picture a polygon may reach beyond it."""


@dataclass(frozen=True)
class Instance:
    """One object of a picture: ``box`` x1 y1 x2 y2 in pixels as stored, ``label`` from 1 on, COCO's ``segmentation``
    (polygons, or runs) if the file has one."""

    box: tuple[float, float, float, float]
    label: int
    area: float
    crowd: bool
    segmentation: Any = None


@dataclass(frozen=True)
class Picture:
    """A picture of the store with its objects."""

    place: int
    image_id: Any
    size: tuple[int, int]
    instances: tuple[Instance, ...]

    @property
    def empty(self) -> bool:
        return all(i.crowd for i in self.instances)


@dataclass(frozen=True)
class Boxes:
    """A split of pictures with boxes, and with masks if ``masks``."""

    store: Store
    pictures: tuple[Picture, ...]
    variation: Variation
    masks: bool

    def __len__(self) -> int:
        return len(self.pictures)

    def given(self, k: int) -> tuple[int, int]:
        """Height and width of picture k as a network gets it in a test."""
        return self.variation.given(self.pictures[k].size)

    def example(self, k: int, draw: Draw | None = None) -> Example:
        own = self.pictures[k]
        objects = [i for i in own.instances if not i.crowd]
        things = {"picture": read_picture(self.store, own.place, own.size)}
        things["boxes"] = torch.tensor([i.box for i in objects], dtype=torch.float32).reshape(-1, 4)
        if self.masks:
            drawn = [rasterised(i.segmentation, own.size) for i in objects]
            things["masks"] = torch.from_numpy(np.stack(drawn) if drawn else np.zeros((0, *own.size), np.uint8))
        out = self.variation(things, draw)
        height, width = out["picture"].shape[-2:]
        boxes = out["boxes"].clamp(torch.zeros(4), torch.tensor([width, height, width, height], dtype=torch.float32))
        kept = (boxes[:, 2:] - boxes[:, :2] >= 1).all(1)  # a crop cuts some away
        if self.masks:
            kept &= (out["masks"] > 0).flatten(1).any(1)
        labels = torch.tensor([i.label for i in objects], dtype=torch.int64)
        target: dict[str, Any] = {"boxes": boxes[kept], "labels": labels[kept]}
        if self.masks:
            target["masks"] = out["masks"][kept]
        return Example(out["picture"], target | {"image_id": own.image_id, "size": own.size})

    def take(self, index: Iterable[int]) -> Boxes:
        """The pictures of these numbers."""
        return replace(self, pictures=tuple(self.pictures[i] for i in index))


def rasterised(segmentation: Any, size: tuple[int, int]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """COCO's polygons or runs as a mask (height, width) of 0 and 1."""
    from pycocotools import mask

    runs = encoded(segmentation, size)
    return np.ascontiguousarray(mask.decode(runs), dtype=np.uint8)


def encoded(segmentation: Any, size: tuple[int, int]) -> Any:
    """COCO's polygons or runs as one compressed run-length code."""
    from pycocotools import mask

    if isinstance(segmentation, list):
        return mask.merge(mask.frPyObjects(segmentation, *size))
    return mask.frPyObjects(segmentation, *size) if isinstance(segmentation["counts"], list) else segmentation


# --- reading ---


@dataclass(frozen=True)
class Found:
    """A json with what may name its pictures' folder."""

    file: Path
    words: Words


def look(path: Path, words: Words) -> Found | None:
    """The json of a part of a folder."""
    if path.is_file():
        return Found(path, words) if path.suffix == ".json" else None
    places = [p for p in (path, path / "annotations") if p.is_dir()]
    found = named((f for p in places for f in p.glob("*.json")), words)
    if not found and words and (inner := folder_of(path, words)) is not None:
        found = sorted(inner.glob("*.json"))
    usual = [f for f in found if f.name.startswith(("instances", "_annotations"))] or found
    return Found(usual[0], words) if usual else None


def load(spec: str, settings: ExampleSettings, masks: bool) -> TaskData:
    """Training, choice and test pictures with boxes (and masks) from COCO's json."""
    _check_installed()
    skipped: Counter[str] = Counter()
    first, second = parts(spec, look, FORMS)
    known, classes, ids, mark = _read(first.file, settings, masks, skipped)
    if second is None:
        rest, out = held_out(len(known))
        test, tested = known.take(out.tolist()), mark
        known = known.take(rest.tolist())
    else:
        test, others, other_ids, tested = _read(second.file, settings, masks, skipped)
        if (others, other_ids) != (classes, ids):
            raise SuperformerError(
                f"{second.file} has other categories than {first.file}: {_difference(classes, others)}"
            )
    rest, out = carve(len(known), settings.choice, "choice")
    train, choice = known.take(rest.tolist()), known.take(out.tolist())
    if not settings.empty and (lonely := sum(p.empty for p in train.pictures)):
        train = replace(train, pictures=tuple(p for p in train.pictures if not p.empty))
        skipped["training pictures without objects"] += lonely
    if not len(train):
        raise SuperformerError(f"{first.file} has no object to learn: annotate some, or give another file")
    return TaskData(train, choice, test, classes, mark, tested, dict(skipped), {"categories": ids})


def _check_installed() -> None:
    try:
        import pycocotools.mask  # noqa: F401
    except ImportError as problem:
        advice = "pip install 'superformer[transfer]'"
        raise SuperformerError(f"detection needs pycocotools, which is not installed: {advice}") from problem


def _difference(train: Sequence[str], test: Sequence[str]) -> str:
    told = [f"{shown(c)} only in training" for c in train if c not in test]
    told += [f"{shown(c)} only in the test" for c in test if c not in train]
    return ", ".join(told[:5]) or "the same names in another order or with other ids"


def _read(
    file: Path, settings: ExampleSettings, masks: bool, skipped: Counter[str]
) -> tuple[Boxes, tuple[str, ...], tuple[int, ...], str]:
    """The pictures of a json, names and ids of its categories, and what changes when any of it does."""
    content = read_json(file)
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            has = ", ".join(content) if isinstance(content, dict) else type(content).__name__
            raise SuperformerError(f"{file} has no list of {key} (it has {has or 'nothing'}): COCO's format is needed")
    ids, classes = _categories(file, content["categories"])
    records = [r for r in content["images"] if isinstance(r, dict) and isinstance(r.get("file_name"), str)]
    records = [r for r in records if "id" in r and not isinstance(r["id"], list | dict)]
    bad = len(content["images"]) - len(records)
    leave_out("image records without id or file_name", ["one of them"] * bad, len(content["images"]), skipped)
    if not records:
        raise SuperformerError(f"{file} lists no pictures: give a json with images")
    if len({r["id"] for r in records}) < len(records):
        raise SuperformerError(f"{file} has an image id twice; every picture needs its own")
    names = [r["file_name"] for r in records]
    store = where_pictures_are(names, _folders(file), file)
    of_place = _sizes(store, records, settings.workers, skipped)
    by_id: dict[Any, list[Any]] = {records[place]["id"]: [] for place in of_place}
    gone = {r["id"] for r in records} - set(by_id)
    numbers = {category: k for k, category in enumerate(ids, 1)}
    size_of = {records[place]["id"]: size for place, size in of_place.items()}
    _sort_in(content["annotations"], by_id, gone, size_of, numbers, masks, skipped)
    if not any(by_id.values()):
        raise SuperformerError(
            f"{file} has no box at all in {len(records)} pictures: annotate some, or give another file"
        )
    pictures = (Picture(p, records[p]["id"], size, tuple(by_id[records[p]["id"]])) for p, size in of_place.items())
    mark = digest([file.read_bytes(), *(f"{names[p]} {of_place[p]}".encode() for p in of_place)])
    return Boxes(store, tuple(pictures), Variation(settings), masks), classes, ids, mark


def _categories(file: Path, listed: Sequence[Any]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    sound = [c for c in listed if isinstance(c, dict) and isinstance(c.get("id"), int)]
    if not listed or len(sound) < len(listed):
        told = "an empty list of categories" if not listed else f"a category without a number as id: {shown(listed)}"
        raise SuperformerError(f'{file} has {told}: write "categories": [{{"id": 1, "name": "cat"}}, ...]')
    ordered = sorted(sound, key=lambda c: int(c["id"]))
    ids, names = tuple(c["id"] for c in ordered), tuple(str(c.get("name", c["id"])) for c in ordered)
    if len(set(ids)) < len(ids) or len(set(names)) < len(names):
        raise SuperformerError(f"{file} has an id or a name of a category twice; every category needs its own")
    return ids, names


def _folders(file: Path) -> Iterator[Path]:
    """Where the pictures of a json may be: beside it, or in the folder of its part."""
    stem = file.stem.lower()
    part = [w for w in (*TRAIN, *TEST) if named([file], (w,))]
    tails = [stem.rpartition("_")[2], *part]
    for root in (file.parent, file.parent.parent):
        for tail in tails:
            yield from (root / tail, root / tail / "images", root / "images" / tail)
    yield from (file.parent, file.parent / "images", file.parent.parent / "images")


def _sizes(
    store: Store, records: Sequence[Mapping[str, Any]], threads: int, skipped: Counter[str]
) -> dict[int, tuple[int, int]]:
    """Height and width of the pictures that are there and as large as the json says, by their place."""
    out: dict[int, tuple[int, int]] = {}
    missing, other = [], []
    for place, size in enumerate(sizes(store, threads)):
        said = (records[place].get("height"), records[place].get("width"))
        if isinstance(size, str):
            missing.append(f"{store.name(place)}, {size}")
        elif None not in said and size != said:
            other.append(f"{store.name(place)}, {size[1]} x {size[0]}, which the json calls {said[1]} x {said[0]}")
        else:
            out[place] = size
    leave_out("pictures missing or unreadable", missing, len(store), skipped)
    leave_out("pictures of another size than the json says", other, len(store), skipped)
    return out


def _sort_in(
    annotations: Sequence[Any], by_id: dict[Any, list[Any]], gone: set[Any], size_of: Mapping[Any, tuple[int, int]],
    numbers: Mapping[Any, int], masks: bool, skipped: Counter[str],
) -> None:  # fmt: skip
    """Put each sound annotation to its picture; count the others by what is wrong with them."""
    wrong: dict[str, list[str]] = {}
    for annotation in annotations:
        image = annotation.get("image_id") if isinstance(annotation, dict) else None
        if isinstance(image, list | dict) or image not in by_id:
            if isinstance(image, list | dict) or image not in gone:
                wrong.setdefault("annotations of pictures that are not listed", []).append(shown(annotation))
            continue
        made = _instance(annotation, size_of[image], numbers, masks)
        if isinstance(made, str):
            wrong.setdefault(made, []).append(f"{shown(annotation.get('bbox'))} in picture {image}")
        else:
            by_id[image].append(made)
    for what, those in wrong.items():
        leave_out(what, those, len(annotations), skipped, MOST_UNSOUND)


def _instance(
    annotation: Mapping[str, Any], size: tuple[int, int], numbers: Mapping[Any, int], masks: bool
) -> Instance | str:
    """An annotation as an object, its box cut at the border of the picture; or what is wrong with it."""
    box, category = annotation.get("bbox"), annotation.get("category_id")
    if not isinstance(category, int) or category not in numbers:
        return "annotations of categories that are not listed"
    if not isinstance(box, list) or len(box) != 4 or not all(isinstance(v, int | float) for v in box):
        return "boxes that are not [x, y, width, height]"
    x, y, w, h = (float(v) for v in box)
    if not all(math.isfinite(v) for v in (x, y, w, h)):
        return "boxes that are not [x, y, width, height]"
    x1, y1, x2, y2 = max(x, 0.0), max(y, 0.0), min(x + w, float(size[1])), min(y + h, float(size[0]))
    if w <= 0 or h <= 0:
        return "boxes without an area"
    if x2 <= x1 or y2 <= y1:
        return "boxes outside their picture"
    crowd, segmentation = annotation.get("iscrowd", 0) == 1, annotation.get("segmentation")
    problem = _wrong_outline(segmentation, size)
    if problem and masks:
        return problem
    area = annotation.get("area")
    area = float(area) if isinstance(area, int | float) and math.isfinite(area) and area > 0 else w * h
    return Instance((x1, y1, x2, y2), numbers[category], area, crowd, None if problem else segmentation)


def _wrong_outline(segmentation: Any, size: tuple[int, int]) -> str:
    """What is wrong with polygons or runs; nothing: an empty text."""
    if not segmentation:
        return "objects without a mask"
    if isinstance(segmentation, list):
        flat = all(isinstance(p, list) and len(p) >= 6 and len(p) % 2 == 0 for p in segmentation)
        most = FARTHEST * max(size)  # a rasteriser walks along each edge
        numbers = flat and all(isinstance(v, int | float) and abs(v) <= most for p in segmentation for v in p)
        return "" if numbers else "polygons that are not lists of x, y, x, y, ..."
    counts = segmentation.get("counts") if isinstance(segmentation, dict) else None
    if not isinstance(counts, list | str):
        return "masks that are neither polygons nor runs"
    if segmentation.get("size") != list(size):
        return "masks of another size than their picture"
    runs = counts if isinstance(counts, list) else run_lengths(counts)
    sound = all(isinstance(c, int) and c >= 0 for c in runs) and sum(runs) == size[0] * size[1]
    return "" if sound else "masks whose runs do not fill their picture"


def run_lengths(text: str) -> list[int]:
    """The lengths of runs that COCO's compressed text stands for: digits of 5 bits, the lowest first, and from the
    fourth run on differences to the last but one. pycocotools takes a wrong text without a word."""
    out: list[int] = []
    value, digit = 0, 0
    for letter in text:
        bits = ord(letter) - 48
        value |= (bits & 31) << 5 * digit
        digit += 1
        if not bits & 32:
            value |= -1 << 5 * digit if bits & 16 else 0
            out.append(value + (out[-2] if len(out) > 2 else 0))
            value, digit = 0, 0
    return out
