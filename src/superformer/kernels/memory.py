"""Memory: scratch that an operation uses again, and batches in parts that stay in the cache.

The C library's allocator gives large blocks back to the system and gets them anew, page by page. That can cost more
than the arithmetic done in them: in a supernet's training step page faults took a tenth of the time."""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Scratch:
    """Memory for what its owner needs only while it runs: each thread has its own, as large as was ever asked for."""

    def __init__(self) -> None:
        self._own = threading.local()

    def __call__(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """A tensor of this shape that holds anything. The next call on the same thread gets the same memory."""
        pool: dict[tuple[object, ...], Tensor] = self._own.__dict__.setdefault("pool", {})
        key, size = (like.dtype, like.device), math.prod(shape)
        found = pool.get(key)
        if found is None or found.numel() < size:
            with torch.inference_mode(False):  # usable in any mode
                pool[key] = found = torch.empty(size, dtype=like.dtype, device=like.device)
        return found[:size].view(*shape)


def parts(batch: int, few: int) -> list[slice]:
    """A batch in parts of so few that what is computed for one stays in the cache."""
    return [slice(start, start + few) for start in range(0, batch, few)]


def together(computed: Iterator[Tensor], batch: int) -> Tensor:
    """Parts of a batch as one tensor, each put there as soon as it is computed."""
    part = next(computed)
    if part.shape[0] == batch:
        return part
    out, start = part.new_empty(batch, *part.shape[1:]), 0
    for each in itertools.chain([part], computed):
        out[start : start + each.shape[0]] = each
        start += each.shape[0]
    return out


# --- constants ---


def remembered(make: Callable[..., T]) -> Callable[..., T]:
    """Tensors made once for the same arguments, but not in a trace (export, compilation), whose tensors must not be
    kept."""
    kept = functools.lru_cache(maxsize=64)(make)

    @functools.wraps(make)
    def wrapper(*args: Any) -> T:
        if torch.compiler.is_compiling():
            return make(*args)
        with torch.inference_mode(False):
            return kept(*args)

    return wrapper
