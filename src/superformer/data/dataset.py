"""A data set in three parts: training, search (carved from training data) and test, which nobody opens before it is
asked for. Pictures are decoded once where they fit the memory that is allowed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from superformer.data.augment import EvalTransform, generator, shrink
from superformer.data.sources import resolve
from superformer.data.stores import Arrays, Encoded, Ints, Pixels, Store, digest
from superformer.errors import SuperformerError
from superformer.recipes.settings import Data

T = TypeVar("T")

Each = Callable[[Callable[[int], None], Iterable[int]], Iterable[None]]
"""What ``map`` does, or a pool's."""
HELD_OUT = 0.2
"""Share of each class that is held out as the test part, where none is given."""
SPLIT_SEED = 20240229
"""Of every split: constant, so that all runs keep the same pictures apart, also one from another's weights."""
SHRINK_TO = 1.5
"""Where a training set fits only with shrunk pictures: the shorter side that is kept, in input sizes."""
BROKEN = 0.01
"""The largest share of pictures that do not decode which is skipped with a warning."""
GREY = 128
"""Of what stands in for a picture that does not decode."""
CHUNK = 64
"""Pictures that are read or cut at a time."""


class DataSet:
    """The parts of a data set. Each is read when it is first used; the splits are always the same.

    ``test_origin``: where the test part comes from. ``fingerprint`` changes when training or search pictures do."""

    def __init__(self, spec: str, settings: Data, img_size: int):
        self.spec, self.settings, self.img_size = spec, settings, img_size
        self.transform = EvalTransform(img_size, settings.crop, settings.interpolation)
        self._source = resolve(spec, settings.memory)
        self.classes, self.test_origin = self._source.train.classes, self._source.test_origin
        known = Pictures(self._source.train.store, self._source.train.labels, self.classes, settings.memory)
        self._held_out: Pictures | None = None
        if self._source.test is None:
            rest, out = split(known.labels, HELD_OUT, "test", self.classes)
            known, self._held_out = known.take(rest), known.take(out)
            self.test_origin = f"{HELD_OUT:.0%} of each class of {spec}, held out"
        self._known = known
        rest, out = np.arange(len(known)), np.arange(0)
        if settings.search:
            rest, out = split(known.labels, settings.search, "search", self.classes)
        self._train, self._search = known.take(rest), known.take(out)

    @cached_property
    def fingerprint(self) -> str:
        return self._known.fingerprint

    def read_headers(self) -> None:
        """Have those of all pictures read, where they are too many for memory and an index keeps what was read: other
        processes then find it there."""
        store = self._known.store
        if isinstance(store, Encoded) and store.index is not None and not self._known.fits(self.transform):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # each part tells of its own
                self._known._sound(self.settings.workers)

    @cached_property
    def train(self) -> Pictures:
        """Pictures to train on."""
        if self.settings.augment == "timm":
            return self._train.cache_whole(self.img_size, self.settings.workers)
        return self._train.cache_squares(self.transform, self.settings.workers)

    @cached_property
    def search(self) -> Pictures:
        """Pictures that compare architectures; none of them is trained on. Without a search split there are none."""
        if not len(self._search):
            return self._search
        return self._search.cache_squares(self.transform, self.settings.workers)

    def test(self) -> Pictures:
        """Pictures for the final figure only. Training and search never call this."""
        return self._test

    @cached_property
    def _test(self) -> Pictures:
        part = self._held_out
        if part is None:
            assert self._source.test is not None
            found = self._source.test()
            if not len(found.labels):
                raise SuperformerError(f"the test set {self.test_origin} has no pictures")
            part = Pictures(found.store, found.labels, self.classes, self.settings.memory)
        return part.cache_squares(self.transform, self.settings.workers)


def load(spec: str, settings: Data, img_size: int) -> DataSet:
    """The data set that a ``--data`` text means, for networks of this input size."""
    return DataSet(spec, settings, img_size)


def split(labels: Ints, part: float, purpose: str, classes: Sequence[str]) -> tuple[Ints, Ints]:
    """Indices of the pictures that stay and of those that are carved off, each in rising order. ``part`` below 1 is a
    share of each class (at least one picture), from 1 on a number. Every class keeps at least one picture."""
    if part >= 1 and part != int(part):
        given = f"the {purpose} split of {part}"
        raise SuperformerError(f"{given} is neither a share below 1 nor a whole number of pictures of each class")
    counts = np.bincount(labels, minlength=len(classes))
    least = 2 if part < 1 else int(part) + 1
    small = [f"{classes[c]!r} ({n})" for c, n in enumerate(counts) if n < least]
    if small:
        more = f" and {len(small) - 5} more" if len(small) > 5 else ""
        ask = f"{part:g} of each class" if part < 1 else f"{int(part)} pictures of each class"
        possible = purpose == "search" and part >= 1 and counts.min() > 1
        advice = f", or set data.search to {int(counts.min()) - 1} or less" if possible else ""
        raise SuperformerError(
            f"the {purpose} split takes {ask} and must leave some, but these classes have fewer than {least} pictures: "
            f"{', '.join(small[:5])}{more}; add pictures, leave these classes out{advice}"
        )
    take = np.clip(np.round(part * counts), 1, counts - 1) if part < 1 else np.full(len(counts), part)
    by_class, rank = _shuffled_by_class(labels, counts, purpose)
    held = rank < np.repeat(take.astype(np.int64), counts)
    return np.sort(by_class[~held]), np.sort(by_class[held])


def balanced_subset(labels: Ints, n: int) -> Ints:
    """Always the same ``n`` indices (all, if there are no more), rising, the classes as equal in number as can be."""
    by_class, rank = _shuffled_by_class(labels, np.bincount(labels), "subset")
    return np.sort(by_class[np.argsort(rank, kind="stable")[:n]])


def classes_in_turn(labels: Ints, seed: int) -> Ints:
    """All indices, shuffled: first one picture of each class, in random order, then another of each, and so on. Any
    number of the first ones has all classes as equally as can be, whatever the order of the pictures."""
    by_class, rank = _shuffled_by_class(labels, np.bincount(labels), "turns", seed)
    return by_class[np.lexsort((generator(seed, "turn").random(len(labels)), rank))]


def _shuffled_by_class(labels: Ints, counts: Ints, purpose: str, seed: int = SPLIT_SEED) -> tuple[Ints, Ints]:
    """Indices of the pictures, class after class, each class in random order; and the rank of each in its class."""
    shuffled = generator(seed, purpose).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return by_class, np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)


class Pictures:
    """Pictures with labels 0..n-1; ``classes`` names them. ``take`` gives a part of them, in any order.

    Squares of the input's size (`squares`) are cut once and kept as uint8 if they all fit ``memory`` gigabytes. Whole
    pictures (`picture`, for augment=timm) are read from the store each time, free where `cache_whole` decoded them."""

    def __init__(
        self, store: Store, labels: Ints, classes: Sequence[str], memory: float = 2.0, index: Ints | None = None
    ):
        self.store, self.classes, self.memory = store, tuple(classes), memory
        self.index = np.arange(len(labels)) if index is None else index
        self.labels = np.asarray(labels, dtype=np.int64)
        self._squares: dict[EvalTransform, Tensor] = {}
        self._subsets: dict[tuple[int, int | None], Pictures] = {}

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: npt.ArrayLike) -> Pictures:
        """The pictures of these indices, in this order."""
        chosen = np.asarray(indices, dtype=np.int64)
        return Pictures(self.store, self.labels[chosen], self.classes, self.memory, self.index[chosen])

    def subset(self, n: int, seed: int | None = None) -> Pictures:
        """Always the same ``n`` pictures (`balanced_subset`), in their order; or those that a seed draws, shuffled
        (`classes_in_turn`). Their squares are kept."""
        if n >= len(self) and seed is None:
            return self
        if (n, seed) not in self._subsets:
            chosen = balanced_subset(self.labels, n) if seed is None else classes_in_turn(self.labels, seed)[:n]
            self._subsets[n, seed] = self.ordered(chosen)
        return self._subsets[n, seed]

    def ordered(self, indices: Ints, memory: float | None = None) -> Pictures:
        """As `take`; squares that were cut are kept. ``memory``: if these have another allowance."""
        own = self.take(indices)
        own.memory = self.memory if memory is None else memory
        own._squares = {t: kept.index_select(0, torch.from_numpy(indices)) for t, kept in self._squares.items()}
        return own

    @cached_property
    def fingerprint(self) -> str:
        """Changes when pictures, their order, labels or the names of classes do; files count by path and size."""
        names = "\0".join(self.classes).encode()
        return digest([self.store.digest().encode(), self.index.tobytes(), self.labels.tobytes(), names])

    def picture(self, i: int) -> Pixels:
        """A whole picture, uint8 of shape (height, width, 3). In a set too large to be decoded at the beginning, bad
        content under a sound header is only found now: plain grey stands in for it, with a warning."""
        return self._or_grey(self.store.read, i, lambda: np.full((64, 64, 3), GREY, dtype=np.uint8))

    def image(self, i: int) -> Image.Image:
        """The same as a picture of Pillow's."""
        if not isinstance(self.store, Encoded):
            return Image.fromarray(self.picture(i))
        return self._or_grey(self.store.image, i, lambda: Image.new("RGB", (64, 64), (GREY,) * 3))

    def _or_grey(self, read: Callable[[int], T], i: int, grey: Callable[[], T]) -> T:
        at = int(self.index[i])
        try:
            return read(at)
        except Exception as problem:
            warnings.warn(f"{self.store.name(at)} does not decode ({problem}); grey stands in for it", stacklevel=3)
            return grey()

    def squares(self, transform: EvalTransform, indices: Ints | None = None, each: Each = map) -> Tensor:
        """Squares of the input's size, uint8 of shape (n, 3, size, size); all pictures without ``indices``. ``each``: a
        pool's ``map``, whose threads cut them."""
        if transform not in self._squares and self.fits(transform):
            self._squares[transform] = self._cut(transform, np.arange(len(self)), each)
            while sum(kept.numel() for kept in self._squares.values()) > self.memory * 1e9 and len(self._squares) > 1:
                del self._squares[next(iter(self._squares))]
        kept = self._squares.get(transform)
        if kept is None:
            return self._cut(transform, np.arange(len(self)) if indices is None else indices, each)
        return kept if indices is None else kept.index_select(0, torch.from_numpy(indices))

    def fits(self, transform: EvalTransform) -> bool:
        """Whether all squares may be kept in memory."""
        return self.memory_of(transform) <= self.memory

    def memory_of(self, transform: EvalTransform) -> float:
        """Gigabytes of all squares."""
        return len(self) * 3 * transform.size**2 / 1e9

    def _cut(self, transform: EvalTransform, indices: Ints, each: Each = map) -> Tensor:
        out = torch.empty(len(indices), 3, transform.size, transform.size, dtype=torch.uint8)

        def cut(start: int) -> None:
            pictures = [self.picture(i) for i in indices[start : start + CHUNK]]
            if len({p.shape for p in pictures}) == 1:
                out[start : start + CHUNK] = transform(torch.from_numpy(np.stack(pictures)))
            else:
                for k, picture in enumerate(pictures, start):
                    out[k] = transform(_tensor(picture)[None])[0]

        for _ in each(cut, range(0, len(indices), CHUNK)):
            pass
        return out

    def cache_squares(self, transform: EvalTransform, threads: int = 1) -> Pictures:
        """The pictures that decode; their squares are kept if they fit."""
        if self.store.decoded:
            return self
        if not self.fits(transform):
            return self._sound(threads)
        found, squares = self._readable(lambda i: transform(_tensor(self.store.read(i))[None])[0], threads)
        found._squares[transform] = torch.stack(squares)
        return found

    def cache_whole(self, img_size: int, threads: int = 1) -> Pictures:
        """The pictures that decode; they are kept if they fit, whole or else shrunk to 1.5 times the input size."""
        if self.store.decoded:
            return self
        short = round(SHRINK_TO * img_size)
        sizes = []
        for i in self.index[np.linspace(0, len(self) - 1, min(len(self), 64)).astype(np.int64)]:
            try:
                sizes.append(self.store.size(int(i)))
            except Exception:  # counted and named when all are read
                continue
        sizes = sizes or [(1, 1)]
        whole = sum(h * w for h, w in sizes) / len(sizes)
        small = sum(h * w * min(1, short / min(h, w)) ** 2 for h, w in sizes) / len(sizes)
        room = self.memory * 1e9 / (3 * len(self))
        if min(whole, small) > room:  # they are decoded again each time: only the headers are read
            return self._sound(threads)

        found, kept = self._readable(
            self.store.read if whole <= room else lambda i: shrink(_tensor(self.store.read(i)), short).numpy(), threads
        )
        decoded = Pictures(Arrays(kept), found.labels, self.classes, self.memory)
        decoded.__dict__["fingerprint"] = found.fingerprint
        return decoded

    def _sound(self, threads: int) -> Pictures:
        """The pictures whose headers can be read; those of which that is known are not read again."""
        index = self.store.index if isinstance(self.store, Encoded) else None
        if index is None:
            return self._readable(self.store.size, threads)[0]
        unknown = np.flatnonzero(index.shapes[self.index, 0] == 0)
        found, sizes = self._readable(self.store.size, threads, unknown)
        if sizes:
            read = self.index[unknown]
            index.shapes[read[np.isin(read, found.index)]] = sizes
            index.keep()
        return found

    def _readable(self, read: Callable[[int], T], threads: int, among: Ints | None = None) -> tuple[Pictures, list[T]]:
        """The pictures that can be read, and what was read; a few that cannot are left out with a warning.
        ``among``: the only ones that are tried."""

        def attempt(i: int) -> T | Exception:
            try:
                return read(i)
            except Exception as problem:
                return problem

        tried = np.arange(len(self)) if among is None else among
        chunks = np.split(self.index[tried], range(CHUNK, len(tried), CHUNK))
        with ThreadPoolExecutor(max(threads, 1)) as pool:
            results = [r for chunk in pool.map(lambda c: [attempt(i) for i in c.tolist()], chunks) for r in chunk]
        found = [result for result in results if not isinstance(result, Exception)]
        broken = [i for i, result in enumerate(results) if isinstance(result, Exception)]
        if not broken:
            return self, found
        told = f"{len(broken)} of {len(self)} pictures do not decode"
        first = f"the first is {self.store.name(int(self.index[tried[broken[0]]]))} ({results[broken[0]]})"
        if len(broken) > BROKEN * len(self.store):  # of all: a small part may well have one of few
            raise SuperformerError(f"{told}, more than {BROKEN:.0%} of all; {first}; repair or remove them")
        warnings.warn(f"{told} and are skipped; {first}", stacklevel=3)
        return self.take(np.setdiff1d(np.arange(len(self)), tried[broken])), found


def _tensor(picture: Pixels) -> Tensor:
    return torch.from_numpy(picture if picture.flags.writeable else picture.copy())
