"""Attention: heads taken apart, softmax(q k^T scale + bias) v, and talking heads."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from superformer.kernels import Scratch, kernel, lowered, mixed, parts, tracked
from superformer.kernels.limits import IN_CACHE, KEPT_KEYS, TALKING_IN_CACHE

FLOATS = (torch.float32, torch.float64, torch.bfloat16)


def _trains(x: Tensor) -> bool:
    """Whether a backward pass may follow, in a precision that a processor computes quickly in."""
    dtype = torch.get_autocast_dtype(x.device.type) if mixed(x) else x.dtype
    return dtype in FLOATS and tracked(x)


# --- heads: one copy for q, k and v together, and so are their gradients ---


def plain_split_heads(packed: Tensor) -> tuple[Tensor, ...]:
    return packed.permute(2, 0, 3, 1, 4).unbind(0)


@kernel(
    plain_split_heads, able=lambda packed: _trains(packed), worth=lambda packed: packed.shape[1] <= KEPT_KEYS, amp=True
)
def split_heads(packed: Tensor) -> tuple[Tensor, ...]:
    """(batch, tokens, parts, heads, width) to as many tensors of (batch, heads, tokens, width)."""
    parts: tuple[Tensor, ...] = _SplitHeads.apply(packed)
    return parts


class _SplitHeads(torch.autograd.Function):
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


# --- attention ---


def plain_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    if bias is None or bias.dim() == 3:
        # the fused kernel takes a bias of four dimensions; with three torch is three times as slow
        return F.scaled_dot_product_attention(q, k, v, None if bias is None else bias[None], scale=scale)
    heads, bias = q.shape[1], bias.flatten(0, 1)[None]  # n times as many heads: the bias is the same for all pictures
    q, k, v = (t.reshape(-1, bias.shape[1], *t.shape[2:]) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, bias, scale=scale).reshape(-1, heads, q.shape[2], v.shape[3])


def _few_keys(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None) -> bool:
    return k.shape[2] <= KEPT_KEYS


@kernel(plain_attention, able=lambda q, k, v, scale, bias=None: _trains(q), worth=_few_keys, amp=True)
def attention(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    """softmax(q k^T scale + bias) v of (batch, heads, tokens, width) tensors; the bias is (heads, tokens, keys), or
    (n, heads, tokens, keys) where n divides the batch and changes fastest in it.

    On a CPU, a training step over a few hundred tokens is faster with the attention weights kept than with torch's
    fused kernel, which computes them a second time in the backward pass and has no gradient for a bias. In bfloat16
    that backward pass takes thirteen times as long as this one (65 tokens, a processor with AMX)."""
    q, k, v, bias = lowered(q, k, v, bias)
    out: Tensor = _Attention.apply(q, k, v, scale, bias)
    return out


_BACK = Scratch()


class _Attention(torch.autograd.Function):
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
        bias = q.new_zeros(ctx.shape) if ctx.needs_input_grad[4] else None
        grads = tuple(torch.empty_like(t) for t in (q, k, v))
        few = len(
            weights
        )  # pictures and heads at a time, a multiple of those that share a bias; all, if that is little
        if weights.numel() > IN_CACHE:
            together = 1 if ctx.shape is None else math.prod(ctx.shape[:-2])
            few = max(1, IN_CACHE // 2 // (weights[0].numel() * together)) * together
        for some in parts(len(q), few):
            back, (dq, dk, dv) = _BACK(weights[some].shape, weights), (t[some] for t in grads)
            torch.bmm(grad[some], v[some].transpose(1, 2), out=back)
            torch.ops.aten._softmax_backward_data.out(back, weights[some], -1, weights.dtype, grad_input=back)
            torch.baddbmm(none, back, k[some], beta=0, alpha=ctx.scale, out=dq)
            torch.baddbmm(none, back.transpose(1, 2), q[some], beta=0, alpha=ctx.scale, out=dk)
            torch.bmm(weights[some].transpose(1, 2), grad[some], out=dv)
            if bias is not None:
                bias += back.view(-1, *ctx.shape).sum(0)
        dq, dk, dv = (t.view(*lead, *t.shape[1:]) for t in grads)
        return dq, dk, dv, None, bias


# --- talking heads ---


def _across(weight: Tensor, maps: Tensor, out: Tensor | None = None) -> Tensor:
    """A linear map over the heads of (batch, heads, pairs)."""
    return torch.bmm(weight.expand(maps.shape[0], *weight.shape), maps, out=out)


Maps = tuple[Tensor, Tensor, Tensor, Tensor]
"""Of talking heads: W1, b1, W2 and b2."""


def plain_talking_heads(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, maps: Maps, scale: float) -> Tensor:
    w1, b1, w2, b2 = maps
    shape = (*q.shape[:2], q.shape[2], q.shape[2])
    logits = _across(w1, (q * scale @ k.transpose(2, 3)).add_(bias).flatten(2)) + b1.view(-1, 1)
    weights = logits.view(shape).softmax(-1)
    return _across(w2, weights.flatten(2)).view(shape) @ v + b2.view(-1, 1, 1) * v.sum(2, keepdim=True)


@kernel(plain_talking_heads)
def talking_heads(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, maps: Maps, scale: float) -> Tensor:
    """Attention with linear maps across the heads before and after the softmax (NASViT, appendix B.1), of
    (batch, heads, tokens, width) tensors with a bias (heads, tokens, tokens):

        S = scale q k^T + bias,   P = softmax(W1 S + b1),   out = (W2 P + b2) v

    b1 is there for the released weights: the softmax over the keys does not see it. b2 adds its multiple of the sum of
    v. Kept for the backward pass is only P; S and W2 P are computed again, which costs less than the memory they would
    take."""
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    if torch.is_grad_enabled():
        out: Tensor = _Talking.apply(q, k, v, bias, *maps, scale)
        return out
    return _talk(q, k, v, bias, maps, scale)


_FIRST, _SECOND = Scratch(), Scratch()


def _logits(q: Tensor, k: Tensor, bias: Tensor, scale: float) -> Tensor:
    batch, heads, queries, _ = q.shape
    out = _FIRST((batch * heads, queries, k.shape[2]), q)
    torch.baddbmm(out, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), beta=0, alpha=scale, out=out)
    return out.view(batch, heads, queries, -1).add_(bias).flatten(2)


def _talk(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, maps: Maps, scale: float, weights: Tensor | None = None
) -> Tensor:
    """A few pictures and queries at a time; P goes to ``weights``, if that is wanted. At least two pictures, so that
    each thread has maps of its own to mix, and no more queries than stay in the cache (or all, where P is wanted)."""
    w1, _, w2, b2 = maps
    out = torch.empty_like(v)
    batch, heads, tokens, _ = q.shape
    few = max(2, TALKING_IN_CACHE // (heads * tokens * tokens))
    tiles = 1 if weights is not None else math.ceil(min(few, batch) * heads * tokens * tokens / TALKING_IN_CACHE)
    for some, queries in itertools.product(parts(batch, few), parts(tokens, math.ceil(tokens / tiles))):
        here, there, values = q[some, :, queries], k[some], v[some].flatten(0, 1)
        count = (*here.shape[:3], k.shape[2])
        logits = _logits(here, there, bias[:, queries], scale)
        kept = _SECOND(count, q) if weights is None else weights[some]
        _across(w1, logits, kept.flatten(2))
        torch.softmax(kept, -1, out=kept)
        mixed = _across(w2, kept.flatten(2), logits).view(count[0] * heads, count[2], -1)
        if count[2] == tokens:
            torch.bmm(mixed, values, out=out[some].flatten(0, 1))
        else:
            out[some, :, queries] = torch.bmm(mixed, values).view(*count[:3], -1)
    return out.add_(b2.view(-1, 1, 1) * v.sum(2, keepdim=True))


class _Talking(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, *maps_and_scale: Any) -> Tensor:
        *maps, scale = maps_and_scale
        batch, heads, tokens, _ = q.shape
        weights = q.new_empty(batch, heads, tokens, tokens)
        out = _talk(q, k, v, bias, (maps[0], maps[1], maps[2], maps[3]), scale, weights)
        ctx.save_for_backward(q, k, v, bias, maps[0], maps[2], maps[3], weights)
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

        first, second = _FIRST(pairs, q), _SECOND(pairs, q)
        _across(w2, weights.view(pairs), second)
        dv = torch.bmm(second.view(square).transpose(1, 2), flat).view(v.shape).add_(b2.view(-1, 1, 1) * total)
        db2 = (total * v.sum(2, keepdim=True)).sum((0, 2, 3))
        torch.bmm(flat, v.flatten(0, 1).transpose(1, 2), out=first.view(square))
        dw2 = torch.bmm(first, weights.view(pairs).transpose(1, 2)).sum(0)
        _across(w2.t(), first, second)
        maps = second.view_as(weights)
        torch.ops.aten._softmax_backward_data.out(maps, weights, -1, weights.dtype, grad_input=maps)
        dw1 = torch.bmm(second, _logits(q, k, bias, ctx.scale).transpose(1, 2)).sum(0)
        back = _across(w1.t(), second, first).view(square)

        def turned(x: Tensor, pairs: Tensor) -> Tensor:
            """Heads are so narrow that the products are twice as fast the other way round."""
            y = torch.bmm((x * ctx.scale).flatten(0, 1).transpose(1, 2), pairs)
            return y.view(batch, heads, -1, tokens).transpose(2, 3)

        dq, dk = turned(k, back.transpose(1, 2)), turned(q, back)
        return dq, dk, dv, back.view(batch, heads, tokens, tokens).sum(0), dw1, torch.zeros_like(b2), dw2, db2, None
