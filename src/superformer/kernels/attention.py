"""Maps, (batch, rows, columns, channels), cut into square windows and put together again; and into the patches under a
kernel.

Cutting and separating q, k and v are one copy, and so are their gradients.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from superformer.kernels.memory import IN_CACHE, few_at_a_time, scratch
from superformer.space.costs import Count


def halved(grid: tuple[Count, Count], times: int = 1) -> tuple[Count, Count]:
    """Rows and columns of a map after so many halvings; odd ones are rounded up."""
    for _ in range(times):
        grid = (grid[0] + 1) // 2, (grid[1] + 1) // 2
    return grid


def padded(length: Count, side: int) -> Count:
    """The next multiple of a window's side."""
    return -(-length // side) * side


def pad(x: Tensor, side: int) -> Tensor:
    """Zeros after the last row and the last column of a map, until windows of this side fit."""
    rows, cols = x.shape[1:3]
    below, right = padded(rows, side) - rows, padded(cols, side) - cols
    return F.pad(x, (0, 0, 0, right, 0, below)) if below or right else x


def _in_windows(packed: Tensor, side: int, parts: int, heads: int) -> Tensor:
    """A view (parts, batch, rows of windows, columns, heads, side, side, width) of a map."""
    batch, rows, cols, channels = packed.shape
    shape = (batch, rows // side, side, cols // side, side, parts, heads, channels // (parts * heads))
    return packed.view(shape).permute(5, 0, 1, 3, 6, 2, 4, 7)


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, side: int, parts: int, heads: int) -> tuple[Tensor, ...]:
        ctx.shape, ctx.form = packed.shape, (side, parts, heads)
        return _cut(packed, side, parts, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        packed = grads[0].new_empty(ctx.shape)
        for into, grad in zip(_in_windows(packed, *ctx.form), grads, strict=True):
            into.copy_(grad.view(into.shape))
        return packed, None, None, None


def _cut(packed: Tensor, side: int, parts: int, heads: int) -> tuple[Tensor, ...]:
    return _in_windows(packed, side, parts, heads).contiguous().flatten(5, 6).flatten(1, 3).unbind(0)


def cut(packed: Tensor, side: int, parts: int, heads: int) -> tuple[Tensor, ...]:
    """A map with ``parts`` (q, k, v) times ``heads`` side by side in its channels, as ``parts`` tensors of windows."""
    if torch.is_grad_enabled() and packed.requires_grad:
        out: tuple[Tensor, ...] = _Cut.apply(packed.contiguous(), side, parts, heads)
        return out
    return _cut(packed.contiguous(), side, parts, heads)


def join(windows: Tensor, side: int, rows: int, cols: int) -> Tensor:
    """The opposite of `cut`, for one part; rows and columns that were padded are left out."""
    down, across = padded(rows, side) // side, padded(cols, side) // side
    x = windows.view(-1, down, across, windows.shape[1], side, side, windows.shape[3]).permute(0, 1, 4, 2, 5, 3, 6)
    return x.reshape(x.shape[0], down * side, across * side, -1)[:, :rows, :cols]


LARGE = 8
"""The side of a patch from which on one copy of all its pixels at once is faster than one for each pixel of a patch."""


def _as_patches(x: Tensor, side: int) -> Tensor:
    """A view (batch, rows, columns, channels, side, side) of a map."""
    rows, cols = x.shape[1] // side, x.shape[2] // side
    x = x[:, : rows * side, : cols * side]
    return x.unflatten(1, (rows, side)).unflatten(3, (cols, side)).permute(0, 1, 3, 5, 2, 4)  # type: ignore[no-untyped-call, no-any-return]


def _patch_pairs(x: Tensor, out: Tensor, side: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Views of a map and of its patches (batch, rows, columns, channels, side, side) that hold the same numbers."""
    if side >= LARGE:
        yield _as_patches(x, side), out
        return
    x = x[:, : out.shape[1] * side, : out.shape[2] * side]
    for i, j in product(range(side), repeat=2):
        yield x[:, i::side, j::side], out[..., i, j]


class _Patches(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, side: int) -> Tensor:
        ctx.shape, ctx.side = x.shape, side
        batch, rows, cols, channels = x.shape
        out = x.new_empty(batch, rows // side, cols // side, channels, side, side)
        for here, there in _patch_pairs(x, out, side):
            there.copy_(here)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        whole = not (ctx.shape[1] % ctx.side or ctx.shape[2] % ctx.side)
        back = grad.new_empty(ctx.shape) if whole else grad.new_zeros(ctx.shape)
        for here, there in _patch_pairs(back, grad, ctx.side):
            here.copy_(there)
        return back, None


def patches(x: Tensor, side: int) -> Tensor:
    """(batch, rows, columns, channels, side, side): the map in patches; rows and columns that do not fill a patch are
    left out."""
    if torch.compiler.is_compiling():
        return _as_patches(x, side)
    out: Tensor = _Patches.apply(x, side)
    return out


# softmax(q k^T scale + bias) v, the way that is fastest where it runs.
#
# On a CPU, a training step over a few hundred tokens is faster with the attention weights kept than with torch's
# fused kernel, which computes them a second time in the backward pass and has no gradient for a bias (a quarter
# faster at 50 tokens, a seventh at 200 and at 257). With more tokens the weights take too much memory; without
# gradients, and on other devices, the fused kernel is the better one.


SMALL = 320
"""Keys up to which the attention weights are kept."""


def _kept(tensor: Tensor, keys: int) -> bool:
    cpu = tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)
    return (
        cpu and not torch.compiler.is_compiling() and keys <= SMALL and torch.is_grad_enabled() and tensor.requires_grad
    )


class _Unpack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor) -> tuple[Tensor, ...]:
        return packed.permute(2, 0, 3, 1, 4).contiguous().unbind(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        batch, heads, tokens, dim = grads[0].shape
        packed = grads[0].new_empty(batch, tokens, len(grads), heads, dim)
        for n, grad in enumerate(grads):
            packed[:, :, n] = grad.transpose(1, 2)
        return packed


def unpack(packed: Tensor) -> tuple[Tensor, ...]:
    """(batch, tokens, parts, heads, width) to as many tensors of (batch, heads, tokens, width)."""
    if _kept(packed, packed.shape[1]):
        parts: tuple[Tensor, ...] = _Unpack.apply(packed)
        return parts
    return packed.permute(2, 0, 3, 1, 4).unbind(0)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None) -> Tensor:
        batch, heads = q.shape[:2]
        q, k, v = (t.reshape(-1, *t.shape[2:]) for t in (q, k, v))
        weights = torch.baddbmm(q.new_empty(()), q, k.transpose(1, 2), beta=0, alpha=scale)
        if bias is not None:
            weights.view(-1, *bias.shape).add_(bias)
        torch.softmax(weights, -1, out=weights)
        ctx.save_for_backward(q, k, v, weights)
        ctx.scale, ctx.shape = scale, None if bias is None else bias.shape
        return torch.bmm(weights, v).view(batch, heads, -1, v.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, Tensor | None]:
        q, k, v, weights = ctx.saved_tensors
        lead, none = grad.shape[:2], q.new_empty(())
        grad = grad.reshape(-1, *grad.shape[2:])
        wanted, together = ctx.needs_input_grad[4], 1 if ctx.shape is None else math.prod(ctx.shape[:-2])
        bias = q.new_zeros(ctx.shape) if wanted else None
        parts = tuple(torch.empty_like(t) for t in (q, k, v))
        for few in few_at_a_time(len(q), _in_cache(weights, together)):
            back, (dq, dk, dv) = scratch("attend", weights[few].shape, weights), (t[few] for t in parts)
            torch.bmm(grad[few], v[few].transpose(1, 2), out=back)
            torch.ops.aten._softmax_backward_data.out(back, weights[few], -1, weights.dtype, grad_input=back)
            torch.baddbmm(none, back, k[few], beta=0, alpha=ctx.scale, out=dq)
            torch.baddbmm(none, back.transpose(1, 2), q[few], beta=0, alpha=ctx.scale, out=dk)
            torch.bmm(weights[few].transpose(1, 2), grad[few], out=dv)
            if bias is not None:
                bias += back.view(-1, *ctx.shape).sum(0)
        dq, dk, dv = (t.view(*lead, *t.shape[1:]) for t in parts)
        return dq, dk, dv, None, bias


def _in_cache(weights: Tensor, together: int) -> int:
    """For how many pictures and heads at a time, a multiple of ``together``; all, if that is little."""
    if weights.numel() <= IN_CACHE:
        return len(weights)
    return max(1, IN_CACHE // 2 // (weights[0].numel() * together)) * together


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    """Attention of (batch, heads, tokens, width) tensors; the bias is (heads, tokens, keys), or (n, heads, tokens,
    keys) where n divides the batch and changes fastest in it."""
    if _kept(q, k.shape[2]):
        out: Tensor = _Attend.apply(q, k, v, scale, bias)
        return out
    if bias is not None and bias.dim() == 3:
        bias = bias[None]  # the fused kernel takes four dimensions; with three torch is three times as slow
    elif bias is not None and (torch.compiler.is_compiling() or bias.shape[0] not in (1, q.shape[0])):
        heads, bias = (
            q.shape[1],
            bias.flatten(0, 1)[None],
        )  # n times as many heads, and a bias that is the same for all pictures
        q, k, v = (t.reshape(-1, bias.shape[1], *t.shape[2:]) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, bias, scale=scale).reshape(-1, heads, q.shape[2], v.shape[3])
    return F.scaled_dot_product_attention(q, k, v, bias, scale=scale)


# Talking-heads attention (NASViT, appendix B.1): linear maps across the heads before and after the softmax.
#
#     S = scale q k^T + bias,   P = softmax(W1 S + b1),   out = (W2 P + b2) v
#
# b1 is there for the released weights: the softmax over the keys does not see it. b2 adds its multiple of the sum of
# v. Kept for the backward pass: only P; S and W2 P are computed again, which costs less than the memory they would
# take.


IN_CACHE = 2**20
"""Attention weights that stay in the cache between two operations."""


def _across(weight: Tensor, maps: Tensor, out: Tensor | None = None) -> Tensor:
    """A linear map over the heads of (batch, heads, pairs)."""
    return torch.bmm(weight.expand(maps.shape[0], *weight.shape), maps, out=out)


class _Talking(torch.autograd.Function):
    @staticmethod
    def _logits(q: Tensor, k: Tensor, bias: Tensor, scale: float) -> Tensor:
        batch, heads, queries, _ = q.shape
        out = scratch("first", (batch * heads, queries, k.shape[2]), q)
        torch.baddbmm(out, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), beta=0, alpha=scale, out=out)
        return out.view(batch, heads, queries, -1).add_(bias).flatten(2)

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor,
        w1: Tensor,
        b1: Tensor,
        w2: Tensor,
        b2: Tensor,
        scale: float,
    ) -> Tensor:
        batch, heads, tokens, _ = q.shape
        weights = q.new_empty(batch, heads, tokens, tokens)
        out = _attend(q, k, v, bias, w1, w2, b2, scale, weights)
        ctx.save_for_backward(q, k, v, bias, w1, w2, b2, weights)
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, w1, w2, b2, weights = ctx.saved_tensors
        batch, heads, tokens, _ = q.shape
        square, pairs = (batch * heads, tokens, tokens), (batch, heads, tokens * tokens)
        total = grad.sum(2, keepdim=True)
        flat = grad.reshape(batch * heads, tokens, -1)

        first, second = (scratch(name, pairs, q) for name in ("first", "second"))
        _across(w2, weights.view(pairs), second)
        dv = torch.bmm(second.view(square).transpose(1, 2), flat).view(v.shape).add_(b2.view(-1, 1, 1) * total)
        db2 = (total * v.sum(2, keepdim=True)).sum((0, 2, 3))
        torch.bmm(flat, v.flatten(0, 1).transpose(1, 2), out=first.view(square))
        dw2 = torch.bmm(first, weights.view(pairs).transpose(1, 2)).sum(0)
        _across(w2.t(), first, second)
        torch.ops.aten._softmax_backward_data.out(
            second.view_as(weights), weights, -1, weights.dtype, grad_input=second.view_as(weights)
        )
        dw1 = torch.bmm(second, _Talking._logits(q, k, bias, ctx.scale).transpose(1, 2)).sum(0)
        back = _across(w1.t(), second, first)
        back = back.view(square)
        # heads are so narrow that the products are twice as fast the other way round
        dq = (
            torch.bmm((k * ctx.scale).flatten(0, 1).transpose(1, 2), back.transpose(1, 2))
            .view(batch, heads, -1, tokens)
            .transpose(2, 3)
        )
        dk = (
            torch.bmm((q * ctx.scale).flatten(0, 1).transpose(1, 2), back)
            .view(batch, heads, -1, tokens)
            .transpose(2, 3)
        )
        return dq, dk, dv, back.view(batch, heads, tokens, tokens).sum(0), dw1, torch.zeros_like(b2), dw2, db2, None


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    w1: Tensor,
    w2: Tensor,
    b2: Tensor,
    scale: float,
    weights: Tensor | None = None,
) -> Tensor:
    """A few pictures and queries at a time; P goes to ``weights``, if that is wanted."""
    out = torch.empty_like(v)
    for some, queries in _parts(q.shape, whole=weights is not None):
        here, there, values = q[some, :, queries], k[some], v[some].flatten(0, 1)
        batch, heads, count, _ = here.shape
        logits = _Talking._logits(here, there, bias[:, queries], scale)
        kept = scratch("second", (batch, heads, count, k.shape[2]), q) if weights is None else weights[some]
        _across(w1, logits, kept.flatten(2))
        torch.softmax(kept, -1, out=kept)
        mixed = _across(w2, kept.flatten(2), logits).view(batch * heads, count, -1)
        if count == q.shape[2]:
            torch.bmm(mixed, values, out=out[some].flatten(0, 1))
        else:
            out[some, :, queries] = torch.bmm(mixed, values).view(batch, heads, count, -1)
    return out.add_(b2.view(-1, 1, 1) * v.sum(2, keepdim=True))


def _parts(shape: Sequence[int], whole: bool) -> list[tuple[slice, slice]]:
    """Pictures and queries to be done at once: at least two pictures, so that each thread has maps of its own to mix,
    and no more queries than stay in the cache (or all, of ``whole`` pictures)."""
    batch, heads, tokens, _ = shape
    few = max(2, IN_CACHE // (heads * tokens * tokens))
    tiles = 1 if whole else math.ceil(min(few, batch) * heads * tokens * tokens / IN_CACHE)
    return list(itertools.product(few_at_a_time(batch, few), few_at_a_time(tokens, math.ceil(tokens / tiles))))


def talking(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, scale: float
) -> Tensor:
    """Attention of (batch, heads, tokens, width) tensors with a bias (heads, tokens, tokens) and maps across the heads.

    Plain operations in mixed precision, in a trace, and where a mode of torch watches them
    (`superformer.analysis.attention`)."""
    if (
        torch.is_autocast_enabled(q.device.type)
        or torch.compiler.is_compiling()
        or torch._C._is_torch_function_mode_enabled()
    ):
        shape = (*q.shape[:2], q.shape[2], q.shape[2])
        weights = _across(w1, (q * scale @ k.transpose(2, 3)).add_(bias).flatten(2)).view(shape).softmax(-1)
        return _across(w2, weights.flatten(2)).view(shape) @ v + b2.view(-1, 1, 1) * v.sum(2, keepdim=True)
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    if torch.is_grad_enabled():
        out: Tensor = _Talking.apply(q, k, v, bias, w1, b1, w2, b2, scale)
        return out
    return _attend(q, k, v, bias, w1, w2, b2, scale)
