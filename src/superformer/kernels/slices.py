"""Slices of shared weights, whose gradients touch only the slice.

Autograd's own slicing answers each backward pass with a tensor of the *full* size, zero outside the slice, for every
weight of every sub-network. Here the gradient of a slice is added in place to the part of ``weight.grad`` it belongs
to. A weight used whole takes autograd's ordinary way, so a stand-alone network is plain torch.

The price: ``torch.autograd.grad`` and hooks on a supernet's weights do not see these gradients; read ``.grad`` after
``backward()``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from superformer.kernels import kernel, mixed, no_second_derivative, tracked
from superformer.kernels.limits import FEW_BOXES, MANY_ROWS

Segments = tuple[tuple[int, int], ...]
"""Runs ``(start, stop)`` of channels, in the order in which a sub-network has them."""
Index = tuple[Segments | None, ...]
"""For each dimension of a tensor the runs that are used, or None for all of it."""
Box = tuple[slice, ...]
Wanted = tuple[Tensor, Index]
"""A weight, and what is used of it."""


def whole(index: Index) -> bool:
    return all(segments is None for segments in index)


def gather(tensor: Tensor, index: Index) -> Tensor:
    """The selected part of a tensor: a view where each dimension is one run, else a copy."""
    for dim, segments in enumerate(index):
        if segments is not None:
            runs = [tensor.narrow(dim, start, stop - start) for start, stop in segments]
            tensor = runs[0] if len(runs) == 1 else torch.cat(runs, dim)
    return tensor


def scatter(target: Tensor, index: Index, part: Tensor) -> None:
    """Write the selected part of a tensor (the opposite of `gather`)."""
    for there, here in boxes(target.shape, index).pairs:
        target[there] = part[here]


@dataclass(frozen=True, eq=False)
class Boxes:
    """Pairs of boxes: where a run lies in the whole tensor, and where in the selected part. Compared by identity."""

    pairs: tuple[tuple[Box, Box], ...]


@functools.lru_cache(maxsize=4096)
def boxes(shape: tuple[int, ...], index: Index) -> Boxes:
    """Where an index lies in a tensor of this shape: the same object for the same question."""
    per_dim: list[list[tuple[slice, slice]]] = []
    for length, segments in zip(shape, index, strict=True):
        at, pairs = 0, []
        for start, stop in segments or ((0, length),):
            pairs.append((slice(start, stop), slice(at, at + stop - start)))
            at += stop - start
        per_dim.append(pairs)
    return Boxes(tuple((tuple(p[0] for p in box), tuple(p[1] for p in box)) for box in product(*per_dim)))


# --- what a pass uses of weights ---


def plain_take(*wanted: Wanted) -> list[Tensor]:
    return [gather(weight, index) for weight, index in wanted]


@kernel(plain_take, amp=True)
def take(*wanted: Wanted) -> list[Tensor]:
    """The selected parts of weights, differentiable. What an operation needs is best asked for together: one step of
    autograd for all."""
    out = [weight for weight, _ in wanted]
    sliced = [n for n, (_, index) in enumerate(wanted) if not whole(index)]
    if sliced:
        if tracked(*(out[n] for n in sliced)):
            parts = _Take.apply([wanted[n][1] for n in sliced], *(out[n] for n in sliced))
        else:
            parts = [_view(*wanted[n]) for n in sliced]
        for n, part in zip(sliced, parts, strict=True):
            out[n] = part
    return out


def _view(tensor: Tensor, index: Index) -> Tensor:
    """`gather`, as one operation where each dimension is one run."""
    if whole(index):
        return tensor
    if any(segments is not None and len(segments) > 1 for segments in index):
        return gather(tensor, index)
    size, stride, at = list(tensor.shape), tensor.stride(), tensor.storage_offset()
    for dim, segments in enumerate(index):
        if segments is not None:
            start, stop = segments[0]
            size[dim], at = stop - start, at + start * stride[dim]
    return tensor.as_strided(size, stride, at)


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indices: Sequence[Index], *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.weights, ctx.indices = weights, indices
        ctx.set_materialize_grads(False)
        return tuple(_view(weight.detach(), index) for weight, index in zip(weights, indices, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, ...]:
        no_second_derivative()
        for weight, index, grad in zip(ctx.weights, ctx.indices, grads, strict=True):
            if grad is not None and weight.requires_grad:
                _add(weight, index, grad)
        return (None,) * (1 + len(grads))


def plain_linear(x: Tensor, weight: Tensor, bias: Tensor | None, index: Index, bias_index: Index) -> Tensor:
    return F.linear(x, gather(weight.flatten(1), index), None if bias is None else gather(bias, bias_index))


@kernel(plain_linear, amp=True)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None, index: Index, bias_index: Index) -> Tensor:
    """A linear layer of which a slice is used; ``index`` is that of the weight as a matrix (a kernel's dimensions are
    one)."""
    if whole(index) and whole(bias_index):
        return F.linear(x, weight.flatten(1), bias)
    if tracked(weight, x):
        out: Tensor = _Linear.apply(x, weight, bias, index, bias_index)
        return out
    return F.linear(x, _view(weight.flatten(1), index), None if bias is None else _view(bias, bias_index))


class _Linear(torch.autograd.Function):
    """``x W^T + b`` with a slice of W and b; the gradient of one run is a matrix product straight into its place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, index: Index, bias_index: Index) -> Tensor:
        matrix = weight.detach().flatten(1)
        rows, columns = index
        # each run of rows is a view, if there is one run of columns; many rows are better served by one matrix
        views = rows is not None and len(columns or ((),)) == 1 and x.numel() < MANY_ROWS * x.shape[-1]
        runs = [_view(matrix, ((run,), columns)) for run in rows or ()] if views else [_view(matrix, index)]
        b = None if bias is None else _view(bias.detach(), bias_index)
        if mixed(x):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, runs, b = x.to(dtype), [w.to(dtype) for w in runs], None if b is None else b.to(dtype)
        ctx.save_for_backward(x, *runs)
        ctx.weight, ctx.bias, ctx.index, ctx.bias_index = weight, bias, index, bias_index
        if len(runs) == 1:
            return F.linear(x, runs[0], b)
        out = x.new_empty(*x.shape[:-1], sum(len(w) for w in runs))
        flat, inputs, at = out.view(-1, out.shape[-1]), x.reshape(-1, x.shape[-1]), 0
        for w in runs:
            part, end = flat[:, at : at + len(w)], at + len(w)
            torch.mm(inputs, w.t(), out=part) if b is None else torch.addmm(b[at:end], inputs, w.t(), out=part)
            at = end
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        no_second_derivative()
        x, *runs = ctx.saved_tensors
        rows, inputs = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        if ctx.weight.requires_grad:
            _add_product(ctx.weight, ctx.index, rows.t(), inputs)
        if ctx.bias is not None and ctx.bias.requires_grad:
            _add_sum(ctx.bias, ctx.bias_index, rows)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        if len(runs) == 1:
            return (rows @ runs[0]).view(x.shape), None, None, None, None
        back, at = rows[:, : len(runs[0])] @ runs[0], len(runs[0])
        for w in runs[1:]:
            back.addmm_(rows[:, at : at + len(w)], w)
            at += len(w)
        return back.view(x.shape), None, None, None, None


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, index: Index, eps: float) -> Tensor:
    """Layer norm of which a slice of the scale and the shift is used."""
    w, b = take((weight, index), (bias, index))
    return F.layer_norm(x, w.shape, w, b, eps)


# --- the memory of gradients ---
#
# A step writes the gradient of a slice into its part of ``weight.grad``; everything else there is zero. Fresh memory
# for it would cost more than the arithmetic of a small batch, and so would clearing all of it: each weight owns a
# `GradientMemory` that remembers what was written, and the next step clears just that. Whoever else writes into a
# gradient (clipping, a whole use of the weight) changes its version, and it is then cleared whole.


@dataclass
class GradientMemory:
    """A gradient and what this step wrote into it: boxes, each in the shape it was written in. ``version``: after our
    last write. ``alone``: nobody else wrote. ``spare``: its step is over, and its memory waits for the next."""

    grad: Tensor
    version: int
    written: dict[Boxes, tuple[int, ...]] = field(default_factory=dict)
    alone: bool = True
    spare: bool = False

    def note(self, shape: tuple[int, ...], places: Boxes) -> None:
        self.written[places] = shape
        self.version = self.grad._version

    def renew(self, shape: tuple[int, ...], places: Boxes) -> None:
        """Begin a step: make the gradient zero, except (it may hold anything there) in ``places``, about to be
        written."""
        if not self.alone or sum(len(known.pairs) for known in self.written) > FEW_BOXES:
            if not (self.alone and len(self.written) == 1 and places in self.written):
                self.grad.zero_()
        else:
            kept = [there for there, _ in places.pairs]
            for known, old in self.written.items():
                for box, _ in known.pairs if known is not places else ():
                    if old != shape or box not in kept:
                        _shaped(self.grad, old)[box].zero_()
        self.written, self.version, self.alone, self.spare = {}, self.grad._version, True, False


MEMORY = "gradient_memory"
"""The attribute of a weight that owns it."""


def _shaped(grad: Tensor, shape: tuple[int, ...]) -> Tensor:
    return grad if grad.shape == shape else grad.view(shape)


def _open(weight: Tensor, shape: tuple[int, ...], places: Boxes) -> tuple[Tensor, GradientMemory | None, bool]:
    """The gradient, in a shape, zero wherever this step has not written; whether it is new. A new one may hold anything
    in ``places``, about to be written."""
    grad = weight.grad
    memory: GradientMemory | None = weight.__dict__.get(MEMORY)
    if grad is not None:
        if memory is not None and memory.grad is grad:
            memory.alone &= memory.version == grad._version
            return _shaped(grad, shape), memory, False
        if not grad.is_contiguous():
            weight.grad = grad = grad.contiguous()
        return _shaped(grad, shape), None, False
    if memory is not None and memory.spare and (memory.grad.dtype, memory.grad.device) == (weight.dtype, weight.device):
        memory.renew(shape, places)
    else:
        grad = torch.zeros_like(weight, memory_format=torch.contiguous_format)
        weight.__dict__[MEMORY] = memory = GradientMemory(grad, grad._version)
    weight.grad = memory.grad
    return _shaped(memory.grad, shape), memory, True


def _add(weight: Tensor, index: Index, part: Tensor, shape: tuple[int, ...] | None = None) -> None:
    """Add to the selected part of a weight's gradient; ``index`` may be that of another ``shape`` of the weight."""
    shape = shape or tuple(weight.shape)
    places = boxes(shape, index)
    view, memory, new = _open(weight, shape, places)
    for there, here in places.pairs:
        mine = part if len(places.pairs) == 1 else part[here]
        if new:
            view[there].copy_(mine)
        else:
            view[there].add_(mine)  # not +=, which would write the sum a second time
    if memory is not None:
        memory.note(shape, places)


def _add_sum(weight: Tensor, index: Index, rows: Tensor) -> None:
    """Add the sum of rows to the selected part of a vector's gradient."""
    places = boxes(weight.shape, index)
    if weight.grad is not None or len(places.pairs) > 1 or weight.dtype != rows.dtype:
        _add(weight, index, rows.sum(0))
        return
    view, memory, _ = _open(weight, weight.shape, places)
    torch.sum(rows, 0, out=view[places.pairs[0][0]])
    if memory is not None:
        memory.note(weight.shape, places)


def _add_product(weight: Tensor, index: Index, left: Tensor, right: Tensor) -> None:
    """Add ``left @ right`` to the selected part of the gradient of a weight, seen as a matrix."""
    shape = (weight.shape[0], weight.numel() // weight.shape[0])
    places = boxes(shape, index)
    several = len(places.pairs) > 1
    if weight.dtype != left.dtype or (several and len(right) >= MANY_ROWS):
        _add(weight, index, left @ right, shape)  # of many rows one large product and several small sums are faster
        return
    view, memory, new = _open(weight, shape, places)
    for there, (rows, columns) in places.pairs:
        factors = (left[rows], right[:, columns]) if several else (left, right)
        if new:
            torch.mm(*factors, out=view[there])
        else:
            view[there].addmm_(*factors)
    if memory is not None:
        memory.note(shape, places)


def recycle(weight: Tensor) -> None:
    """Forget a weight's gradient but keep its memory for the next step. A gradient that autograd made itself (the
    weight was used whole) is let go."""
    grad = weight.grad
    if grad is None:
        return
    memory: GradientMemory | None = weight.__dict__.get(MEMORY)
    if memory is not None and memory.grad is grad:
        memory.alone &= memory.version == grad._version
        memory.spare = True
    weight.grad = None
