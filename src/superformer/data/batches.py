"""Batches of pictures: for training, varied and mixed; for evaluation, as they are.

The order of an epoch comes from (seed, epoch), what happens to a batch from (seed, epoch, step), what timm does to a
picture from (seed, epoch, picture, repeat). So batches do not depend on worker processes or on ranks, and an epoch can
begin at any step."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from superformer.data import augment, mix
from superformer.data.augment import Frame, Share, TimmTransform, generator
from superformer.data.dataset import Pictures
from superformer.data.stores import Ints
from superformer.errors import SuperformerError
from superformer.recipes.settings import Data, Mix


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

    def parts(self, n: int, device: torch.device) -> list[Batch]:
        """The batch on a device, in n parts to compute one after another: every n-th picture, so that each sub-network
        has its share."""
        if len(self.x) % n:
            raise SuperformerError(
                f"a process's batch of {len(self.x)} cannot be computed in {n} equal parts: change train.accumulate"
            )
        own = (self.x, self.target, self.labels, self.patches)
        return [Batch(*(None if t is None else t[m::n].to(device, non_blocking=True) for t in own)) for m in range(n)]  # type: ignore[arg-type]


def steps_per_epoch(pictures: int, batch_size: int) -> int:
    """Whole batches of an epoch; the rest is dropped. Repeated augmentation does not change it: it takes fewer
    pictures, more often."""
    if batch_size > pictures:
        raise SuperformerError(
            f"a batch of {batch_size} is larger than the training set of {pictures} pictures: lower train.batch_size"
        )
    return pictures // batch_size


def train_batches(
    pictures: Pictures,
    settings: Data,
    mixing: Mix,
    img_size: int,
    *,
    seed: int,
    epoch: int,
    batch_size: int,
    start: int = 0,
    rank: int = 0,
    world: int = 1,
    patch_grid: int | None = None,
) -> Ahead[Batch]:
    """The batches of an epoch from step ``start`` on, prepared in the background.

    ``batch_size`` is that of all ranks; rank r gets pictures r, r + world, ... of every batch, so that each of the
    equal contiguous parts into which a supernet cuts a batch is shared evenly by the ranks. ``patch_grid`` is the side
    of the grid of patches that token labelling labels. The iterator can be closed early and counts the seconds that it
    was waited for (``waited``)."""
    if batch_size % world:
        raise SuperformerError(
            f"a batch of {batch_size} cannot be shared by {world} processes: make train.batch_size a multiple of {world}"
        )
    augment.check(settings)
    mix.check(mixing, batch_size, world, img_size, patch_grid)
    steps = range(start, steps_per_epoch(len(pictures), batch_size))
    order = _Order(
        generator(seed, "order", epoch).permutation(len(pictures)), settings.repeats, batch_size, Share(rank, world)
    )
    if settings.augment == "timm":
        inputs = _timm_inputs(pictures, settings, img_size, seed, epoch, order, steps)
    else:
        inputs = _square_inputs(pictures, settings, img_size, seed, epoch, order, steps)

    def batches() -> Generator[Batch]:
        try:
            for step, x in zip(steps, inputs, strict=True):
                labels = torch.from_numpy(pictures.labels[order.pictures(step)])
                rng = generator(seed, "mix", epoch, step)
                targets = mix.mix_batch(x, labels, len(pictures.classes), mixing, rng, patch_grid)
                yield Batch(x, targets.image, labels, targets.patches)
        finally:
            inputs.close()

    # timm without workers seeds the process's own generators for each picture: not beside a network that draws from
    # them.
    inline = settings.augment == "timm" and not settings.workers
    return Ahead(batches(), len(steps), depth=0 if inline else 2)


def eval_batches(
    pictures: Pictures, settings: Data, img_size: int, batch_size: int, limit: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Normalised pictures and labels, none left out; with ``limit``, always the same so many, the classes as equal in
    number as can be.

    The uint8 squares are cut once and kept with the pictures, if they fit, for the next network.
    """
    augment.check(settings)
    frame = Frame(img_size, settings.crop, settings.interpolation)
    chosen = pictures if limit is None else pictures.few(limit)
    for start in range(0, len(chosen), batch_size):
        part = np.arange(start, min(start + batch_size, len(chosen)))
        yield augment.normalise(chosen.frames(frame, part), settings), torch.from_numpy(chosen.labels[part])


@dataclass(frozen=True)
class _Order:
    """Which pictures each step takes: every picture of a permutation ``repeats`` times in a row, until as many are
    taken as there are."""

    permutation: Ints
    repeats: int
    batch: int
    share: Share

    def _places(self, step: int) -> Ints:
        return np.arange(step * self.batch, (step + 1) * self.batch)[self.share.of]

    def pictures(self, step: int) -> Ints:
        return self.permutation[self._places(step) // self.repeats]

    def repeat(self, step: int) -> Ints:
        return self._places(step) % self.repeats


def _square_inputs(
    pictures: Pictures, settings: Data, img_size: int, seed: int, epoch: int, order: _Order, steps: Sequence[int]
) -> Generator[Tensor]:
    """none and shift: squares of the evaluation's frame, so that things have the same size in training and
    evaluation."""
    frame = Frame(img_size, settings.crop, settings.interpolation)
    for step in steps:
        squares = pictures.frames(frame, order.pictures(step))
        if settings.augment == "none":
            yield augment.normalise(squares, settings)
        else:
            yield augment.shift_batch(
                squares, settings, generator(seed, "shift", epoch, step), order.batch, order.share
            )


Key = tuple[int, int]


class _Varied(Dataset[Tensor]):
    """Pictures varied by timm, by (picture, repeat)."""

    def __init__(self, pictures: Pictures, settings: Data, img_size: int, seed: int, epoch: int):
        self.pictures, self.seed, self.epoch = pictures, seed, epoch
        self.transform = TimmTransform(settings, img_size)

    def __getitem__(self, key: Key) -> Tensor:
        index, repeat = key
        return self.transform(self.pictures.picture(index), self.seed, self.epoch, index, repeat)


def _timm_inputs(
    pictures: Pictures, settings: Data, img_size: int, seed: int, epoch: int, order: _Order, steps: Sequence[int]
) -> Generator[Tensor]:
    """timm: whole pictures varied one by one, in worker processes. They end with the epoch: a fork costs less than
    keeping them."""
    keys = [list(zip(order.pictures(s).tolist(), order.repeat(s).tolist(), strict=True)) for s in steps]
    loader = DataLoader(
        _Varied(pictures, settings, img_size, seed, epoch),
        batch_sampler=keys,
        num_workers=min(settings.workers, len(keys)),
        collate_fn=torch.stack,
        generator=torch.Generator().manual_seed(0),  # or else it would draw from the process's own
    )

    def inputs() -> Generator[Tensor]:
        yield from loader

    return inputs()


# Work done ahead of time in one background thread.


T = TypeVar("T")


class Ahead(Iterator[T], Generic[T]):
    """Runs a generator up to ``depth`` items ahead of whoever takes them; with ``depth`` 0, when they are taken.

    ``waited`` is the time in seconds that the taker spent waiting. `close` ends the thread and the generator at once,
    as do leaving a `with` block and forgetting the object. An error of the generator is raised where its item would
    have come."""

    def __init__(self, items: Generator[T], length: int, depth: int = 2):
        self.waited = 0.0
        self._left, self._items = length, items
        self._stop, self._queue = threading.Event(), queue.Queue[tuple[T | None, BaseException | None]](max(depth, 1))
        self._thread: threading.Thread | None = None
        if depth:
            self._thread = threading.Thread(
                target=_run, args=(items, self._queue, self._stop), name="batches", daemon=True
            )
            self._thread.start()
        self._end = weakref.finalize(self, _end, items, self._queue, self._stop, self._thread)

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

    def __enter__(self) -> Ahead[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


Items = queue.Queue[tuple[T | None, BaseException | None]]


def _run(items: Generator[T], out: Items[T], stop: threading.Event) -> None:
    try:
        for item in items:
            if not _put(out, (item, None), stop):
                return
        _put(out, (None, None), stop)
    except BaseException as problem:
        _put(out, (None, problem), stop)
    finally:
        items.close()


def _put(out: Items[T], item: tuple[T | None, BaseException | None], stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            out.put(item, timeout=0.1)
        except queue.Full:
            continue
        return True
    return False


def _end(items: Generator[T], out: Items[T], stop: threading.Event, thread: threading.Thread | None) -> None:
    stop.set()
    if thread is None:
        items.close()
        return
    while not out.empty():
        out.get_nowait()
    if thread is not threading.current_thread():
        thread.join()
