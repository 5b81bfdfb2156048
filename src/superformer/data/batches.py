"""Batches of pictures: for training, varied and mixed; for evaluation, as they are.

The order of an epoch comes from (seed, epoch), what happens to a batch from (seed, epoch, step), what timm does to a
picture from (seed, epoch, picture, repeat). So batches depend neither on workers nor on ranks; an epoch can begin at
any step."""

from __future__ import annotations

import queue
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from superformer.data import augment
from superformer.data.augment import EvalTransform, RankShare, generator, normalise
from superformer.data.dataset import Each, Pictures
from superformer.data.mix import check_mixing, mix_batch
from superformer.data.stores import Ints
from superformer.errors import SuperformerError
from superformer.kernels import Arriving
from superformer.recipes.settings import Data, Mix

# data.workers says how many; torch tells in every epoch that there are fewer cores
warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)


@dataclass(frozen=True)
class Batch:
    """Pictures of one step, or a rank's share of them."""

    x: Tensor
    """float32, (n, 3, size, size), normalised."""
    target: Tensor
    """Soft labels, (n, classes)."""
    labels: Tensor
    """int64, (n,): the class of each picture before mixing."""
    patches: Tensor | None = None
    """Soft labels of the patches, (n, grid x grid, classes), row by row; None without token labelling."""
    index: Tensor | None = None
    """int64, (n,): which training picture each one is, where these are varied in ``data.views`` ways."""
    view: int = 0
    """In which of these."""
    arriving: Arriving | None = None

    def tensors(self) -> dict[str, Tensor]:
        return {k: t for k, t in vars(self).items() if isinstance(t, Tensor)}

    def sent(self, device: torch.device) -> Batch:
        """The batch on its way to a device."""
        own = Arriving(self.tensors(), device)
        return replace(self, **own.tensors, arriving=own)  # type: ignore[arg-type]

    def parts(self, n: int, device: torch.device) -> list[Batch]:
        """The batch on a device, in n parts of every n-th picture, so that each has its share of each sub-network."""
        if len(self.x) % n:
            given = f"a process's batch of {len(self.x)}"
            raise SuperformerError(f"{given} cannot be computed in {n} equal parts: change train.accumulate")
        if self.arriving is not None:
            self.arriving.wait()
        tensors = self.tensors()
        share: list[dict[str, Any]] = [
            {k: t[m::n].to(device, non_blocking=True) for k, t in tensors.items()} for m in range(n)
        ]
        return [replace(self, **own) for own in share]


def steps_per_epoch(pictures: int, batch_size: int) -> int:
    """Whole batches of an epoch; the rest is dropped. Repeated augmentation takes fewer pictures, more often."""
    if batch_size > pictures:
        given = f"a batch of {batch_size} is larger than the training set of {pictures} pictures"
        raise SuperformerError(f"{given}: lower train.batch_size")
    return pictures // batch_size


def eval_batches(
    pictures: Pictures, settings: Data, img_size: int, batch_size: int, limit: int | None = None,
    device: torch.device | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:  # fmt: skip
    """Normalised pictures and labels: all, or those of `Pictures.subset`. The uint8 squares are cut once and kept with
    the pictures, if they fit, for the next network; else they are cut while a network is at the batch before, and
    copied ahead to an accelerator (``device``). ``data.workers`` threads cut pictures that must be decoded."""
    augment.check_normalisation(settings)
    transform = EvalTransform(img_size, settings.crop, settings.interpolation)
    chosen = pictures if limit is None else pictures.subset(limit)
    starts = range(0, len(chosen), batch_size)

    def batch(start: int, each: Each = map) -> tuple[Tensor, Tensor]:
        part = np.arange(start, min(start + batch_size, len(chosen)))
        return normalise(chosen.squares(transform, part, each), settings), torch.from_numpy(chosen.labels[part])

    if chosen.store.decoded or not settings.workers:
        yield from map(batch, starts)
        return
    with ThreadPoolExecutor(settings.workers) as pool:  # whose threads start when they are needed
        if chosen.fits(transform):
            yield from (batch(start, pool.map) for start in starts)
            return

        def ahead() -> Generator[Arriving]:
            for start in starts:
                x, labels = batch(start, pool.map)
                yield Arriving({"x": x, "labels": labels}, device or x.device)

        with Prefetcher(ahead(), len(starts)) as batches:
            for arriving in batches:
                arriving.wait()
                yield arriving.tensors["x"], arriving.tensors["labels"]


def train_batches(
    pictures: Pictures, settings: Data, mixing: Mix, img_size: int, *, seed: int, epoch: int, batch_size: int,
    start: int = 0, rank: int = 0, world: int = 1, patch_grid: int | None = None, device: torch.device | None = None,
) -> Prefetcher[Batch]:  # fmt: skip
    """The batches of an epoch from step ``start`` on, prepared in the background.

    ``batch_size`` is that of all ranks; rank r gets pictures r, r + world, ... of every batch, so that each of the
    equal contiguous parts into which a supernet cuts a batch is shared evenly by the ranks. ``patch_grid`` is the side
    of the grid of patches that token labelling labels. To an accelerator (``device``) batches are copied ahead."""
    if batch_size % world:
        given = f"a batch of {batch_size} cannot be shared by {world} processes"
        raise SuperformerError(f"{given}: make train.batch_size a multiple of {world}")
    augment.check_normalisation(settings)
    check_mixing(mixing, batch_size, world, img_size, patch_grid)
    steps = range(start, steps_per_epoch(len(pictures), batch_size))
    order = generator(seed, "order", epoch).permutation(len(pictures))
    own = _Epoch(pictures, settings, img_size, seed, epoch, order, batch_size, RankShare(rank, world))
    inputs = own.timm_inputs(steps) if settings.augment == "timm" else own.square_inputs(steps)

    def batches() -> Generator[Batch]:
        try:
            for step, x in zip(steps, inputs, strict=True):
                labels = torch.from_numpy(pictures.labels[own.pictures_of(step)])
                rng = generator(seed, "mix", epoch, step)
                targets = mix_batch(x, labels, len(pictures.classes), mixing, rng, patch_grid)
                which = torch.from_numpy(own.pictures_of(step)) if settings.views else None
                batch = Batch(x, targets.image, labels, targets.patches, which, own.varied_as)
                yield batch if device is None else batch.sent(device)
        finally:
            inputs.close()

    # timm without workers seeds the process's own generators: not beside a network that draws from them.
    inline = settings.augment == "timm" and not settings.workers
    return Prefetcher(batches(), len(steps), depth=0 if inline else 2)


def view_batches(
    pictures: Pictures, settings: Data, img_size: int, seed: int, view: int, batch_size: int
) -> Iterator[Tensor]:
    """All pictures in their order, varied as in the epochs of a view (``data.views``)."""
    varied = _TimmPictures(pictures, settings, img_size, seed, view)
    everything, starts = range(len(pictures)), range(0, len(pictures), batch_size)
    loader = _loader(
        varied, _Keys(starts, lambda s: [(i, 0) for i in everything[s : s + batch_size]]), settings.workers
    )
    return map(varied.transform.finished, loader)


@dataclass(frozen=True)
class _Keys:
    """Which (picture, repeat) each step takes, told step by step: an epoch has millions."""

    steps: Sequence[int]
    of: Callable[[int], list[tuple[int, int]]]

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return map(self.of, self.steps)


def _loader(varied: _TimmPictures, keys: _Keys, workers: int) -> DataLoader[Tensor]:
    own = torch.Generator().manual_seed(0)  # not the process's own
    return DataLoader(
        varied, batch_sampler=keys, num_workers=min(workers, len(keys)), collate_fn=torch.stack, generator=own
    )


@dataclass(frozen=True)
class _Epoch:
    """One epoch of one rank: which pictures each step takes, and how they become inputs.

    Every picture of the ``order`` comes ``settings.repeats`` times in a row, until as many are taken as there are."""

    pictures: Pictures
    settings: Data
    img_size: int
    seed: int
    epoch: int
    order: Ints
    batch: int
    share: RankShare

    @property
    def varied_as(self) -> int:
        """The epoch whose variations these are: its own, or an earlier one's that come again."""
        return self.epoch % self.settings.views if self.settings.views else self.epoch

    def _places(self, step: int) -> Ints:
        return np.arange(step * self.batch, (step + 1) * self.batch)[self.share.rows]

    def pictures_of(self, step: int) -> Ints:
        return self.order[self._places(step) // self.settings.repeats]

    def square_inputs(self, steps: Sequence[int]) -> Generator[Tensor]:
        """none and shift: squares of the evaluation transform, so that things have the same size in both."""
        transform = EvalTransform(self.img_size, self.settings.crop, self.settings.interpolation)
        for step in steps:
            squares = self.pictures.squares(transform, self.pictures_of(step))
            if self.settings.augment == "none":
                yield normalise(squares, self.settings)
            else:
                rng = generator(self.seed, "shift", self.epoch, step)
                yield augment.shift_batch(squares, self.settings, rng, self.batch, self.share)

    def timm_inputs(self, steps: Sequence[int]) -> Generator[Tensor]:
        """timm: whole pictures varied one by one, in worker processes, which end with the epoch: a fork is cheap."""

        def keys(step: int) -> list[tuple[int, int]]:
            repeats = self._places(step) % self.settings.repeats
            return list(zip(self.pictures_of(step).tolist(), repeats.tolist(), strict=True))

        varied = _TimmPictures(self.pictures, self.settings, self.img_size, self.seed, self.varied_as)
        loader = _loader(varied, _Keys(steps, keys), self.settings.workers)

        def inputs() -> Generator[Tensor]:
            for x in loader:
                yield varied.transform.finished(x)

        return inputs()


class _TimmPictures(Dataset[Tensor]):
    """Pictures varied by timm, by (picture, repeat)."""

    def __init__(self, pictures: Pictures, settings: Data, img_size: int, seed: int, epoch: int):
        self.pictures, self.seed, self.epoch = pictures, seed, epoch
        self.transform = augment.TimmTransform(settings, img_size)

    def __getitem__(self, key: tuple[int, int]) -> Tensor:
        index, repeat = key
        return self.transform(self.pictures.image(index), self.seed, self.epoch, index, repeat)


T = TypeVar("T")
Items = queue.Queue[tuple[T | None, BaseException | None]]


class Prefetcher(Iterator[T], Generic[T]):
    """Runs a generator up to ``depth`` items ahead of whoever takes them; with ``depth`` 0, when they are taken.

    ``waited``: the seconds the taker spent waiting. `close` ends the thread and the generator at once, as do leaving
    a `with` block and forgetting the object. An error of the generator is raised where its item would have come."""

    def __init__(self, items: Generator[T], length: int, depth: int = 2):
        self.waited = 0.0
        self._left, self._items = length, items
        self._queue: Items[T] = queue.Queue(max(depth, 1))
        self._thread: threading.Thread | None = None
        stop = threading.Event()
        if depth:
            args = (items, self._queue, stop)
            self._thread = threading.Thread(target=_produce, args=args, name="batches", daemon=True)
            self._thread.start()
        self._end = weakref.finalize(self, _end, items, self._queue, stop, self._thread)

    def __len__(self) -> int:
        """Items that are still to come."""
        return self._left

    def __next__(self) -> T:
        if not self._left or not self._end.alive:
            self.close()
            raise StopIteration
        start = time.perf_counter()
        item, problem = self._queue.get() if self._thread else (next(self._items), None)
        self.waited += time.perf_counter() - start
        if problem is not None or item is None:
            self.close()
            raise problem or StopIteration
        self._left -= 1
        return item

    def close(self) -> None:
        """End the work; nothing more comes."""
        self._left = 0
        self._end()

    def __enter__(self) -> Prefetcher[T]:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


def _produce(items: Generator[T], out: Items[T], stop: threading.Event) -> None:
    def put(item: T | None, problem: BaseException | None = None) -> bool:
        while not stop.is_set():
            try:
                out.put((item, problem), timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    try:
        if all(put(item) for item in items):
            put(None)
    except BaseException as problem:
        put(None, problem)
    finally:
        items.close()


def _end(items: Generator[T], out: Items[T], stop: threading.Event, thread: threading.Thread | None) -> None:
    stop.set()
    if thread is None:
        items.close()
        return
    while not out.empty():
        out.get_nowait()
    if thread is not threading.current_thread():
        thread.join()
