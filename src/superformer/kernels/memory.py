"""Memory for what an operation needs only while it runs.

The allocator gives large blocks back to the system, and getting them anew, page by page, can cost more than the
arithmetic done in them."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import os
import threading
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

IN_CACHE = 2**21
"""Numbers of a map that stay in the cache between two operations."""

_own = threading.local()


def scratch(name: str, shape: Sequence[int], like: Tensor) -> Tensor:
    """A tensor of this shape that holds anything. The next call with the same name, on the same thread, gets the same
    memory."""
    pool: dict[tuple[object, ...], Tensor] = _own.__dict__.setdefault("pool", {})
    key, size = (name, like.dtype, like.device), math.prod(shape)
    found = pool.get(key)
    if found is None or found.numel() < size:
        with torch.inference_mode(False):  # usable in any mode
            pool[key] = found = torch.empty(size, dtype=like.dtype, device=like.device)
    return found[:size].view(*shape)


def few_at_a_time(batch: int, few: int) -> list[slice]:
    """A batch in parts so small that what is computed for one stays in the cache. A trace (export, compilation) has one
    part: its batch may be of any size."""
    if torch.compiler.is_compiling():
        return [slice(None)]
    return [slice(start, start + few) for start in range(0, batch, few)]


def together(parts: Iterator[Tensor], batch: int) -> Tensor:
    """Parts of a batch as one tensor, each put there as soon as it is computed."""
    part = next(parts)
    if part.shape[0] == batch:
        return part
    out, start = part.new_empty(batch, *part.shape[1:]), 0
    for each in itertools.chain([part], parts):
        out[start : start + each.shape[0]] = each
        start += each.shape[0]
    return out


# Freed memory is kept for the next step instead of given back to the system.
#
# A training step on a CPU frees and asks for the same few gigabytes again and again. The C library's allocator gives
# large blocks back to the system each time and gets them anew, page by page; sub-networks of ever other sizes make
# that worse. In a supernet's step those page faults can take a tenth of the time. The price: a process holds the most
# memory that it ever needed at once.


OFF = "SUPERFORMER_RETURN_MEMORY"
"""Set to 1, it leaves the allocator as it is."""
TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of glibc's malloc.h


@functools.cache
def keep_freed() -> bool:
    """From now on, in this process; whether the C library can (glibc can)."""
    if os.environ.get(OFF, "0") not in ("", "0"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, -1))
