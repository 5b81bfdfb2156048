"""Memory for what an operation needs only while it runs.

The allocator gives large blocks back to the system, and getting them anew, page by page, can cost more than the arithmetic done in them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

IN_CACHE = 2**21
"""Numbers of a map that stay in the cache between two operations."""

_own = threading.local()


def scratch(name: str, shape: Sequence[int], like: Tensor) -> Tensor:
    """A tensor of this shape that holds anything. The next call with the same name, on the same thread, gets the same memory."""
    pool: dict[tuple[object, ...], Tensor] = _own.__dict__.setdefault("pool", {})
    key, size = (name, like.dtype, like.device), math.prod(shape)
    found = pool.get(key)
    if found is None or found.numel() < size:
        pool[key] = found = like.new_empty(size)
    return found[:size].view(*shape)


def few_at_a_time(batch: int, few: int) -> list[slice]:
    """A batch in parts so small that what is computed for one stays in the cache. A trace (export, compilation) has one part: its batch
    may be of any size."""
    if torch.compiler.is_compiling():
        return [slice(None)]
    return [slice(start, start + few) for start in range(0, batch, few)]
