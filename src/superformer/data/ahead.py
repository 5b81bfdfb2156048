"""Work done ahead of time in one background thread."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Iterator[T], Generic[T]):
    """Runs a generator up to ``depth`` items ahead of whoever takes them; with ``depth`` 0, when they are taken.

    ``waited`` is the time in seconds that the taker spent waiting. `close` ends the thread and the generator at once, as do leaving a
    `with` block and forgetting the object. An error of the generator is raised where its item would have come.
    """

    def __init__(self, items: Generator[T], length: int, depth: int = 2):
        self.waited = 0.0
        self._left, self._items = length, items
        self._stop, self._queue = threading.Event(), queue.Queue[tuple[T | None, BaseException | None]](max(depth, 1))
        self._thread: threading.Thread | None = None
        if depth:
            self._thread = threading.Thread(target=_run, args=(items, self._queue, self._stop), name="batches", daemon=True)
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

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
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
