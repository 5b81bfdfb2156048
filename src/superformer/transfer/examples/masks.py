"""Semantic segmentation: pictures and masks of the same names in two folders.

``train/images/`` and ``train/masks/`` (or ``images/train/`` and ``masks/train/``; ``annotations`` and ``labels`` are
other names of ``masks``), and the same for the test part. A mask is a grey or palette picture that holds the number of
a class in each pixel. ``classes.json`` beside the parts names them: ``{"class_names": [...], "ignore_index": 11}``;
an ignored value may have a name, which is then no class; null: none is ignored. Values that are not 0, 1, 2, ... are
named by ``{"class_names": {"0": "nothing", "255": "thing"}}``. Without the file, the numbers that the training masks
hold are the classes (255 is ignored)."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from superformer.data.stores import Files, Ints, digest, open_picture
from superformer.errors import SuperformerError, shown
from superformer.transfer.examples.settings import ExampleSettings
from superformer.transfer.examples.sources import (
    Words,
    carve,
    folder_of,
    held_out,
    leave_out,
    parts,
    pictures_below,
    read_json,
    read_picture,
    sizes,
)
from superformer.transfer.examples.variation import IGNORED, Draw, Variation
from superformer.transfer.task import Example, TaskData

FORMS = (
    "a folder with train/images, train/masks and the same for test (or val), and perhaps classes.json; a folder with "
    "images and masks; or train=FOLDER,test=FOLDER"
)
IMAGES, MASKS = ("images", "image", "img"), ("masks", "annotations", "labels", "mask")
CHECKED = 5_000
"""Masks whose values are all looked at when data is loaded, evenly spaced; others when they are read."""
VALUES, UNKNOWN = 65_536, -1


@dataclass(frozen=True)
class Found:
    """Two folders of the same names, and where classes.json may be."""

    images: Path
    masks: Path
    names: tuple[Path, ...]


@dataclass(frozen=True)
class Classes:
    """Names of the classes, and the class of each value of a mask: `IGNORED`, or `UNKNOWN`."""

    names: tuple[str, ...]
    of_value: Ints


@dataclass(frozen=True)
class Segments:
    """A split of pictures with masks."""

    pictures: Files
    masks: Files
    sizes: tuple[tuple[int, int], ...]
    classes: Classes
    variation: Variation

    def __len__(self) -> int:
        return len(self.sizes)

    def given(self, k: int) -> tuple[int, int]:
        """Height and width of picture k as a network gets it in a test."""
        return self.variation.given(self.sizes[k])

    def truth(self, k: int) -> Ints:
        """The classes of the pixels of picture k as stored, (height, width)."""
        out = self.classes.of_value[read_mask(self.masks, k)]
        if (out == UNKNOWN).any():
            warnings.warn(f"{self.masks.name(k)} has values of no class; they are ignored", stacklevel=2)
            out = np.where(out == UNKNOWN, IGNORED, out)
        return np.asarray(out, dtype=np.int64)

    def example(self, k: int, draw: Draw | None = None) -> Example:
        mask = torch.from_numpy(self.truth(k).astype(np.uint8))[None]
        out = self.variation({"picture": read_picture(self.pictures, k, self.sizes[k]), "mask": mask}, draw)
        return Example(out["picture"], {"mask": out["mask"][0].long(), "size": self.sizes[k]})

    def take(self, index: Iterable[int]) -> Segments:
        """The pictures of these numbers."""
        index = list(index)
        own, masks = (Files(f.root, [f.paths[i] for i in index]) for f in (self.pictures, self.masks))
        return replace(self, pictures=own, masks=masks, sizes=tuple(self.sizes[i] for i in index))


def read_mask(masks: Files, k: int) -> npt.NDArray[np.uint16]:
    """The values of a mask, (height, width)."""
    with open_picture(masks.encoded(k)) as picture:
        values = np.asarray(picture)
    if values.ndim == 3:
        colours = values[..., : values.shape[-1] - (values.shape[-1] in (2, 4))]  # without transparency
        values = values[..., 0] if (colours == colours[..., :1]).all() else values  # grey, stored as colours
    if values.ndim != 2 or values.dtype.kind not in "bui" or (values.size and int(values.max()) >= VALUES):
        raise SuperformerError(
            f"{masks.name(k)} is a picture in colours; a mask holds the number of a class in each pixel"
        )
    return values.astype(np.uint16)


# --- reading ---


def look(path: Path, words: Words) -> Found | None:
    """The folders of a part."""
    if not path.is_dir():
        return None
    above = (path, path.parent)
    if not words:
        return _pair(folder_of(path, IMAGES), folder_of(path, MASKS), above)
    inner = folder_of(path, words)
    if inner is not None and (found := _pair(folder_of(inner, IMAGES), folder_of(inner, MASKS), above)) is not None:
        return found
    images, masks = folder_of(path, IMAGES), folder_of(path, MASKS)
    if images is None or masks is None:
        return None
    return _pair(folder_of(images, words), folder_of(masks, words), above)


def _pair(images: Path | None, masks: Path | None, names: tuple[Path, ...]) -> Found | None:
    return None if images is None or masks is None else Found(images, masks, names)


def load(spec: str, settings: ExampleSettings) -> TaskData:
    """Training, choice and test pictures with masks."""
    skipped: Counter[str] = Counter()
    first, second = parts(spec, look, FORMS)
    classes = _named(first, settings)
    pictures, masks, known_sizes = _paired(first, settings, skipped)
    held = _values(masks, classes is None, settings, skipped)
    if classes is None:
        values = sorted({int(v) for own in held.values() if own is not None for v in own})
        classes = _numbered({v: str(v) for v in values}, {IGNORED, *settings.ignore}, str(first.masks))
    known = Segments(pictures, masks, known_sizes, classes, Variation(settings))
    known = _sound(known, held, skipped)
    if second is None:
        rest, out = held_out(len(known))
        known, test = known.take(rest.tolist()), known.take(out.tolist())
    else:
        test = Segments(*_paired(second, settings, skipped), classes, Variation(settings))
        test = _sound(test, _values(test.masks, False, settings, skipped), skipped)
    mark, tested = (
        digest([s.pictures.digest().encode(), s.masks.digest().encode(), str(classes.names).encode()])
        for s in (known, test)
    )
    rest, out = carve(len(known), settings.choice, "choice")
    train, choice = known.take(rest.tolist()), known.take(out.tolist())
    return TaskData(train, choice, test, classes.names, mark, tested, dict(skipped), {"ignored": IGNORED})


def _named(found: Found, settings: ExampleSettings) -> Classes | None:
    """The classes that classes.json names, if there is one."""
    file = next((f for folder in found.names if (f := folder / "classes.json").is_file()), None)
    if file is None:
        return None
    content = read_json(file)
    known = content if isinstance(content, dict) else {"class_names": content}
    names = next((known[key] for key in ("class_names", "classes", "id2label") if key in known), content)
    numbered = isinstance(names, dict) and all(str(k).isdecimal() and int(k) < VALUES for k in names)
    listed = list(names.values()) if numbered else names
    if not isinstance(listed, list) or not all(isinstance(n, str) for n in listed) or len(set(listed)) < len(listed):
        form = '{"class_names": ["sky", "road", ...], "ignore_index": 255}'
        raise SuperformerError(f"{file} needs a list of different names, not {shown(names)}: write {form}")
    of_value = {int(k): n for k, n in names.items()} if numbered else dict(enumerate(listed))
    usual: list[int] | int = [] if numbered and IGNORED in of_value else IGNORED
    ignored = known.get("ignore_index", usual)
    values = [] if ignored is None else ignored if isinstance(ignored, list) else [ignored]
    if not all(isinstance(v, int) and 0 <= v < VALUES for v in values):
        told = f"{file}: ignore_index is {shown(ignored)}"
        raise SuperformerError(f"{told}; it must be a number from 0 to {VALUES - 1}, or null for none")
    return _numbered(of_value, {*values, *settings.ignore}, str(file))


def _numbered(names: dict[int, str], ignored: set[int], where: str) -> Classes:
    """Classes from 0 on in the order of their values, without those that are ignored."""
    kept = [v for v in sorted(names) if v not in ignored]
    if not 2 <= len(kept) <= IGNORED:
        given = f"{where} has {len(kept)} classes beside what is ignored ({', '.join(map(str, sorted(ignored)[:5]))})"
        how = f"two or more are needed, and at most {IGNORED}"
        if IGNORED in names and len(kept) == 1:
            form = f'{{"class_names": {{"{kept[0]}": "nothing", "{IGNORED}": "thing"}}}}'
            how = f"if {IGNORED} is a class, say so in classes.json beside the folders: {form}"
        raise SuperformerError(f"{given}: {how}")
    of_value = np.full(VALUES, UNKNOWN, dtype=np.int64)
    of_value[kept] = np.arange(len(kept))
    of_value[sorted(ignored)] = IGNORED
    return Classes(tuple(names[v] for v in kept), of_value)


def _paired(
    found: Found, settings: ExampleSettings, skipped: Counter[str]
) -> tuple[Files, Files, tuple[tuple[int, int], ...]]:
    """Pictures and masks of the same names and sizes."""
    pictures = {Path(n).stem: n for n in pictures_below(found.images)}
    masks = {Path(n).stem: n for n in pictures_below(found.masks)}
    if not pictures or not masks:
        empty = found.masks if pictures else found.images
        raise SuperformerError(f"{empty} holds no pictures: --data takes {FORMS}")
    total = len(pictures.keys() | masks.keys())
    alone = [f"{found.images / pictures[s]}" for s in sorted(pictures.keys() - masks.keys())]
    leave_out("pictures without a mask", alone, total, skipped)
    alone = [f"{found.masks / masks[s]}" for s in sorted(masks.keys() - pictures.keys())]
    leave_out("masks without a picture", alone, total, skipped)
    stems = sorted(pictures.keys() & masks.keys())
    files, drawn = Files(found.images, [pictures[s] for s in stems]), Files(found.masks, [masks[s] for s in stems])
    kept: dict[int, tuple[int, int]] = {}
    broken, other = [], []
    for k, (size, own) in enumerate(zip(sizes(files, settings.workers), sizes(drawn, settings.workers), strict=True)):
        if isinstance(size, str) or isinstance(own, str):
            broken.append(f"{files.name(k)}, {size}" if isinstance(size, str) else f"{drawn.name(k)}, {own}")
        elif size != own:
            other.append(f"{drawn.name(k)}, {own[1]} x {own[0]} for a picture of {size[1]} x {size[0]}")
        else:
            kept[k] = size
    leave_out("pictures or masks missing or unreadable", broken, total, skipped)
    leave_out("masks of another size than their picture", other, total, skipped)
    files, drawn = (Files(f.root, [f.paths[k] for k in kept]) for f in (files, drawn))
    return files, drawn, tuple(kept.values())


def _values(masks: Files, every: bool, settings: ExampleSettings, skipped: Counter[str]) -> dict[int, Ints | None]:
    """The values that masks hold, by number: of ``every`` one, or of some. None: it cannot be read, and is left out."""
    looked = range(len(masks))
    if not every and len(masks) > CHECKED:
        looked = range(0, len(masks), -(-len(masks) // CHECKED))

    def attempt(k: int) -> Ints | str:
        try:
            return np.flatnonzero(np.bincount(read_mask(masks, k).ravel()))
        except Exception as problem:  # decoders raise anything
            return str(problem)

    with ThreadPoolExecutor(max(settings.workers, 1)) as pool:
        held = dict(zip(looked, pool.map(attempt, looked), strict=True))
    unread = [own for own in held.values() if isinstance(own, str)]
    leave_out("masks that are no pictures of numbers", unread, len(masks), skipped)
    return {k: None if isinstance(own, str) else own for k, own in held.items()}


def _sound(split: Segments, held: dict[int, Ints | None], skipped: Counter[str]) -> Segments:
    """The pictures whose masks can be read and hold nothing but classes and ignored values."""
    strange: dict[int, str] = {}
    for k, own in held.items():
        if own is not None and (values := own[split.classes.of_value[own] == UNKNOWN]).size:
            known = ", ".join(split.classes.names[:8]) + (", ..." if len(split.classes.names) > 8 else "")
            strange[k] = f"{split.masks.name(k)} with {values[:5].tolist()} (classes are {known})"
    leave_out("masks with values of no class", list(strange.values()), len(split), skipped)
    gone = {*strange, *(k for k, own in held.items() if own is None)}
    return split.take([k for k in range(len(split)) if k not in gone])
