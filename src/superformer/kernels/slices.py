"""The gradients of slices of shared weights: added in place, in memory that is used again.

A step writes the gradient of a slice into its part of ``weight.grad``; everything else there is zero. Fresh memory for
it would cost more than the arithmetic of a small batch, and so would clearing all of it: a ledger remembers what was
written, and the next step clears just that. Whoever else writes into a gradient (clipping, a whole use of the weight)
changes its version, and it is then cleared whole."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
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
    """Pairs of boxes: where a run lies in the whole tensor, and where in the selected part. The same list for the same
    question."""
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
    """A gradient and what this step wrote into it: places, each in the shape it was written in. ``version``: after our
    last write. ``alone``: nobody else wrote. ``spare``: its step is over, and its memory waits for the next."""

    grad: Tensor
    version: int
    written: dict[int, tuple[tuple[int, ...], Places]] = field(default_factory=dict)
    alone: bool = True
    spare: bool = False

    def note(self, shape: tuple[int, ...], places: Places) -> None:
        self.written[id(places)] = (shape, places)
        self.version = self.grad._version

    def renew(self, shape: tuple[int, ...], places: Places) -> None:
        """Begin a step: make the gradient zero, except (it may hold anything there) in the boxes of ``places``, about
        to be written."""
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
    """The gradient, in a shape, zero wherever this step has not written; whether it is new. A new one may hold anything
    in the boxes of ``places``, about to be written."""
    grad = weight.grad
    ledger: Ledger | None = weight.__dict__.get(LEDGER)
    if grad is not None:
        if ledger is not None and ledger.grad is grad:
            ledger.alone &= ledger.version == grad._version
            return _shaped(grad, shape), ledger, False
        if not grad.is_contiguous():
            weight.grad = grad = grad.contiguous()
        return _shaped(grad, shape), None, False
    if (
        ledger is not None
        and ledger.spare
        and ledger.grad.dtype == weight.dtype
        and ledger.grad.device == weight.device
    ):
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
    """Forget a weight's gradient but keep its memory for the next step. A gradient that autograd made itself (the
    weight was used whole) is let go."""
    grad = weight.grad
    if grad is None:
        return
    ledger: Ledger | None = weight.__dict__.get(LEDGER)
    if ledger is not None and ledger.grad is grad:
        ledger.alone &= ledger.version == grad._version
        ledger.spare = True
    weight.grad = None


# Slices of shared weights whose gradients touch only the slice.
#
# Autograd's own slicing answers each backward pass with a tensor of the *full* size, zero outside the slice, for
# every weight of every sub-network. Here the gradient of a slice is added in place to the part of ``weight.grad`` it
# belongs to; the full-size gradient is allocated once, when a step first needs it. A weight used whole takes
# autograd's ordinary way, so a stand-alone network is plain torch.
#
# The price: ``torch.autograd.grad`` and hooks on a supernet's weights do not see these gradients; read ``.grad``
# after ``backward()``.


def whole(index: Index) -> bool:
    return all(segments is None for segments in index)


def gather(tensor: Tensor, index: Index) -> Tensor:
    """The selected part of a tensor: a view where each dimension is one run, else a copy."""
    if whole(index):
        return tensor
    if all(segments is None or len(segments) == 1 for segments in index):
        size, stride, at = list(tensor.shape), tensor.stride(), tensor.storage_offset()
        for dim, segments in enumerate(index):
            if segments is not None:
                start, stop = segments[0]
                size[dim], at = stop - start, at + start * stride[dim]
        return tensor.as_strided(size, stride, at)  # one operation, where slicing needs one for each dimension
    for dim, segments in enumerate(index):
        if segments is None:
            continue
        runs = [tensor.narrow(dim, start, stop - start) for start, stop in segments]
        tensor = runs[0] if len(runs) == 1 else torch.cat(runs, dim)
    return tensor


def scatter(target: Tensor, index: Index, part: Tensor) -> None:
    """Write the selected part of a tensor (the opposite of `gather`)."""
    for there, here in boxes(target.shape, index):
        target[there] = part[here]


def _once() -> None:
    """What torch's ``once_differentiable`` does, at a fraction of its price."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "slices of a supernet's weights have no second derivatives: call backward() without create_graph=True"
        )


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indices: Sequence[Index], *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.weights, ctx.indices = weights, indices
        ctx.set_materialize_grads(False)
        return tuple(gather(weight.detach(), index) for weight, index in zip(weights, indices, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, ...]:
        _once()
        for weight, index, grad in zip(ctx.weights, ctx.indices, grads, strict=True):
            if grad is not None and weight.requires_grad:
                add(weight, index, grad)
        return (None,) * (1 + len(grads))


def take(*wanted: tuple[Tensor, Index]) -> list[Tensor]:
    """The selected parts of weights, differentiable. What an operation needs is best asked for together: one step of
    autograd for all."""
    out = [weight for weight, _ in wanted]
    sliced = [n for n, (_, index) in enumerate(wanted) if not whole(index)]
    if not sliced:
        return out
    if torch.is_grad_enabled() and any(out[n].requires_grad for n in sliced):
        parts = _Take.apply([wanted[n][1] for n in sliced], *(out[n] for n in sliced))
    else:
        parts = [gather(*wanted[n]) for n in sliced]
    for n, part in zip(sliced, parts, strict=True):
        out[n] = part
    return out


class _Linear(torch.autograd.Function):
    """``x W^T + b`` with a slice of W and b; the gradient of one run is a matrix product straight into its place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, index: Index, bias_index: Index) -> Tensor:
        matrix = weight.detach().flatten(1)
        rows, columns = index
        # each run of rows is a view, if there is one run of columns; a large batch is better served by one matrix,
        # copied together
        views = rows is not None and len(columns or ((),)) == 1 and x.numel() < MANY * x.shape[-1]
        runs = [gather(matrix, ((run,), columns)) for run in rows or ()] if views else [gather(matrix, index)]
        b = None if bias is None else gather(bias.detach(), bias_index)
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, runs, b = x.to(dtype), [w.to(dtype) for w in runs], None if b is None else b.to(dtype)
        ctx.save_for_backward(x, *runs)
        ctx.weight, ctx.bias, ctx.index, ctx.bias_index = weight, bias, index, bias_index
        if len(runs) == 1:
            return F.linear(x, runs[0], b)
        out = x.new_empty(*x.shape[:-1], sum(len(w) for w in runs))
        flat, inputs, at = out.view(-1, out.shape[-1]), x.reshape(-1, x.shape[-1]), 0
        for w in runs:
            part = flat[:, at : at + len(w)]
            torch.mm(inputs, w.t(), out=part) if b is None else torch.addmm(
                b[at : at + len(w)], inputs, w.t(), out=part
            )
            at += len(w)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        _once()
        x, *runs = ctx.saved_tensors
        rows, inputs = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        if ctx.weight.requires_grad:
            add_product(ctx.weight, ctx.index, rows.t(), inputs)
        if ctx.bias is not None and ctx.bias.requires_grad:
            add_sum(ctx.bias, ctx.bias_index, rows)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        if len(runs) == 1:
            return (rows @ runs[0]).view(x.shape), None, None, None, None
        back, at = rows[:, : len(runs[0])] @ runs[0], len(runs[0])
        for w in runs[1:]:
            back.addmm_(rows[:, at : at + len(w)], w)
            at += len(w)
        return back.view(x.shape), None, None, None, None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, index: Index, bias_index: Index) -> Tensor:
    """A linear layer of which a slice is used; ``index`` is that of the weight as a matrix (a kernel's dimensions are
    one)."""
    if whole(index) and whole(bias_index):
        return F.linear(x, weight.flatten(1), bias)
    if torch.is_grad_enabled() and (weight.requires_grad or x.requires_grad):
        out: Tensor = _Linear.apply(x, weight, bias, index, bias_index)
        return out
    return F.linear(x, gather(weight.flatten(1), index), None if bias is None else gather(bias, bias_index))


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, index: Index, eps: float) -> Tensor:
        w, b = gather(weight.detach(), index), gather(bias.detach(), index)
        out, mean, spread = torch.native_layer_norm(x, w.shape, w, b, eps)
        ctx.save_for_backward(x, w, b, mean, spread)
        ctx.weight, ctx.bias, ctx.index = weight, bias, index
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        _once()
        x, w, b, mean, spread = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], ctx.weight.requires_grad, ctx.bias.requires_grad]
        back, *parts = torch.ops.aten.native_layer_norm_backward(grad, x, w.shape, mean, spread, w, b, wanted)
        for tensor, part, want in zip((ctx.weight, ctx.bias), parts, wanted[1:], strict=True):
            if want:
                add(tensor, ctx.index, part)
        return back, None, None, None, None


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, index: Index, eps: float) -> Tensor:
    """Layer norm of which a slice of the scale and the shift is used."""
    mixed = torch.is_autocast_enabled(x.device.type)
    if not whole(index) and not mixed and torch.is_grad_enabled() and (weight.requires_grad or x.requires_grad):
        out: Tensor = _LayerNorm.apply(x, weight, bias, index, eps)
        return out
    w, b = take((weight, index), (bias, index))
    return F.layer_norm(x, w.shape, w, b, eps)
