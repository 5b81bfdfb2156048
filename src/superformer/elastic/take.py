"""Slices of shared weights whose gradients touch only the slice.

Autograd's own slicing answers each backward pass with a tensor of the *full* size, zero outside the slice, for every weight of
every sub-network. Here the gradient of a slice is added in place to the part of ``weight.grad`` it belongs to; the full-size gradient is
allocated once, when a step first needs it. A weight used whole takes autograd's ordinary way, so a stand-alone network is plain torch.

The price: ``torch.autograd.grad`` and hooks on a supernet's weights do not see these gradients; read ``.grad`` after ``backward()``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from superformer.elastic.gradients import MANY, Index, add, add_product, add_sum, boxes


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
        raise RuntimeError("slices of a supernet's weights have no second derivatives: call backward() without create_graph=True")


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
    """The selected parts of weights, differentiable. What an operation needs is best asked for together: one step of autograd for all."""
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
        # each run of rows is a view, if there is one run of columns; a large batch is better served by one matrix, copied together
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
            torch.mm(inputs, w.t(), out=part) if b is None else torch.addmm(b[at : at + len(w)], inputs, w.t(), out=part)
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
    """A linear layer of which a slice is used; ``index`` is that of the weight as a matrix (a kernel's dimensions are one)."""
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
