"""The gradients of slices of shared weights: added in place, in memory that is used again.

A step writes the gradient of a slice into its part of ``weight.grad``; everything else there is zero. Fresh memory for it would cost more
than the arithmetic of a small batch, and so would clearing all of it: a ledger remembers what was written, and the next step clears just
that. Whoever else writes into a gradient (clipping, a whole use of the weight) changes its version, and it is then cleared whole.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from itertools import product

import torch
from torch import Tensor

from superformer.elastic.axis import Segments

Index = tuple[Segments | None, ...]
"""For each dimension of a tensor the runs that are used, or None for all of it."""
Box = tuple[slice, ...]

LEDGER = "_gradient_ledger"
MANY = 1024
"""Rows of a batch from which on handling several runs together costs less than one by one."""
FEW = 4
"""Boxes up to which each is cleared by itself."""


Places = list[tuple[Box, Box]]


@functools.lru_cache(maxsize=4096)
def boxes(shape: tuple[int, ...], index: Index) -> Places:
    """Pairs of boxes: where a run lies in the whole tensor, and where in the selected part. The same list for the same question."""
    per_dim: list[list[tuple[slice, slice]]] = []
    for length, segments in zip(shape, index, strict=True):
        at, pairs = 0, []
        for start, stop in segments or ((0, length),):
            pairs.append((slice(start, stop), slice(at, at + stop - start)))
            at += stop - start
        per_dim.append(pairs)
    return [(tuple(p[0] for p in box), tuple(p[1] for p in box)) for box in product(*per_dim)]


@dataclass
class Ledger:
    """A gradient and what this step wrote into it: places, each in the shape it was written in. ``version``: after our last write.
    ``alone``: nobody else wrote. ``spare``: its step is over, and its memory waits for the next."""

    grad: Tensor
    version: int
    written: dict[int, tuple[tuple[int, ...], Places]] = field(default_factory=dict)
    alone: bool = True
    spare: bool = False

    def note(self, shape: tuple[int, ...], places: Places) -> None:
        self.written[id(places)] = (shape, places)
        self.version = self.grad._version

    def renew(self, shape: tuple[int, ...], places: Places) -> None:
        """Begin a step: make the gradient zero, except (it may hold anything there) in the boxes of ``places``, about to be written."""
        self._clear(shape, places)
        self.written, self.version, self.alone, self.spare = {}, self.grad._version, True, False

    def _clear(self, shape: tuple[int, ...], places: Places) -> None:
        if self.alone and len(self.written) == 1 and id(places) in self.written:
            return
        if not self.alone or sum(len(known) for _, known in self.written.values()) > FEW:
            self.grad.zero_()
            return
        kept = [there for there, _ in places]
        for written, known in self.written.values():
            if known is not places:
                for box, _ in known:
                    if written != shape or box not in kept:
                        _shaped(self.grad, written)[box].zero_()


def _shaped(grad: Tensor, shape: tuple[int, ...]) -> Tensor:
    return grad if grad.shape == shape else grad.view(shape)


def _open(weight: Tensor, shape: tuple[int, ...], places: Places) -> tuple[Tensor, Ledger | None, bool]:
    """The gradient, in a shape, zero wherever this step has not written; whether it is new. A new one may hold anything in the boxes of
    ``places``, about to be written."""
    grad = weight.grad
    ledger: Ledger | None = weight.__dict__.get(LEDGER)
    if grad is not None:
        if ledger is not None and ledger.grad is grad:
            ledger.alone &= ledger.version == grad._version
            return _shaped(grad, shape), ledger, False
        if not grad.is_contiguous():
            weight.grad = grad = grad.contiguous()
        return _shaped(grad, shape), None, False
    if ledger is not None and ledger.spare and ledger.grad.dtype == weight.dtype and ledger.grad.device == weight.device:
        ledger.renew(shape, places)
    else:
        grad = torch.zeros_like(weight, memory_format=torch.contiguous_format)
        weight.__dict__[LEDGER] = ledger = Ledger(grad, grad._version)
    weight.grad = ledger.grad
    return _shaped(ledger.grad, shape), ledger, True


def add(weight: Tensor, index: Index, part: Tensor, shape: tuple[int, ...] | None = None) -> None:
    """Add to the selected part of a weight's gradient; ``index`` may be that of another ``shape`` of the weight."""
    shape = shape or tuple(weight.shape)
    places = boxes(shape, index)
    view, ledger, new = _open(weight, shape, places)
    for there, here in places:
        mine = part if len(places) == 1 else part[here]
        if new:
            view[there].copy_(mine)
        else:
            view[there].add_(mine)  # not +=, which would write the sum a second time
    if ledger is not None:
        ledger.note(shape, places)


def add_sum(weight: Tensor, index: Index, rows: Tensor) -> None:
    """Add the sum of rows to the selected part of a vector's gradient."""
    places = boxes(weight.shape, index)
    if weight.grad is not None or len(places) > 1 or weight.dtype != rows.dtype:
        add(weight, index, rows.sum(0))
        return
    view, ledger, _ = _open(weight, weight.shape, places)
    torch.sum(rows, 0, out=view[places[0][0]])
    if ledger is not None:
        ledger.note(weight.shape, places)


def add_product(weight: Tensor, index: Index, left: Tensor, right: Tensor) -> None:
    """Add ``left @ right`` to the selected part of the gradient of a weight, seen as a matrix."""
    shape = (weight.shape[0], weight.numel() // weight.shape[0])
    places = boxes(shape, index)
    several = len(places) > 1
    if weight.dtype != left.dtype or (several and len(right) >= MANY):
        add(weight, index, left @ right, shape)  # of a large batch one large product and several small sums are faster
        return
    view, ledger, new = _open(weight, shape, places)
    for there, (rows, columns) in places:
        factors = (left[rows], right[:, columns]) if several else (left, right)
        if new:
            torch.mm(*factors, out=view[there])
        else:
            view[there].addmm_(*factors)
    if ledger is not None:
        ledger.note(shape, places)


def recycle(weight: Tensor) -> None:
    """Forget a weight's gradient but keep its memory for the next step. A gradient that autograd made itself (the weight was used whole)
    is let go."""
    grad = weight.grad
    if grad is None:
        return
    ledger: Ledger | None = weight.__dict__.get(LEDGER)
    if ledger is not None and ledger.grad is grad:
        ledger.alone &= ledger.version == grad._version
        ledger.spare = True
    weight.grad = None
