"""What a piece of work takes, found by doing it on tensors without numbers: every operation is seen, with the memory
that is alive while it runs."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

VIEWS = {"view", "as_strided", "detach", "transpose", "permute", "slice", "select", "expand", "unsqueeze", "squeeze"}
VIEWS |= {"split", "unbind", "aten.t.", "alias", "empty", "narrow", "prim.device"}
"""Operations that start nothing on a device."""


class Work(NamedTuple):
    """Of one operation: floating-point operations of its multiplications, bytes that it reads and writes."""

    flops: int
    bytes: int


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watch the operations of a ``with``. ``peak``: the most bytes that were alive at once, of what was made and of the
    tensors that were ``held`` before; ``work``: of all operations that a device has to start."""

    def __init__(self, held: Iterable[Tensor] = ()):
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive, self.now, self.peak = dict[int, int](), 0, 0
        self.work: list[Work] = []
        for tensor in held:
            self.note(tensor)

    def begin(self) -> None:
        """Look at what comes now; what is alive stays counted."""
        self.peak, self.work = self.now, []

    def note(self, tensor: Tensor) -> None:
        """A tensor that is alive; its memory counts once."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.alive or tensor.is_meta:  # a skeleton's weights lie nowhere
            return
        self.alive[key] = storage.nbytes()
        self.now += self.alive[key]
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self.alive.pop(key, 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        for tensor in made:
            self.note(tensor)
        if starts(func):
            read = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            self.work.append(
                Work(_flops(func, args, kwargs or {}, out), sum(t.numel() * t.element_size() for t in (*read, *made)))
            )
        return out


@functools.cache
def starts(func: Any) -> bool:
    """Whether a device has to start something for an operation."""
    return not any(view in str(func) for view in VIEWS)


def _flops(func: Any, args: tuple[Any, ...], words: dict[str, Any], out: Any) -> int:
    """As torch counts them, but for the gradients of grouped convolutions, of which it counts all groups with all."""
    if func is torch.ops.aten.convolution_backward.default:
        grad, x, weight, *_, transposed, _, _, mask = args
        places = (x if transposed else grad).shape
        forward = 2 * places[0] * math.prod(places[2:]) * weight.numel()
        return int(forward * (bool(mask[0]) + bool(mask[1])))
    count = flop_registry.get(func._overloadpacket)
    return int(count(*args, **words, out_val=out)) if count is not None else 0


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors; memory that several share counts once."""
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())
