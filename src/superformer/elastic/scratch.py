"""Memory for what an operation needs only while it runs.

The allocator gives large blocks back to the system, and getting them anew, page by page, can cost more than the arithmetic done in them.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Sequence

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
        with torch.inference_mode(False):  # usable in any mode
            pool[key] = found = torch.empty(size, dtype=like.dtype, device=like.device)
    return found[:size].view(*shape)


def few_at_a_time(batch: int, few: int) -> list[slice]:
    """A batch in parts so small that what is computed for one stays in the cache. A trace (export, compilation) has one part: its batch
    may be of any size."""
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
