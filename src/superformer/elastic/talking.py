"""Talking-heads attention (NASViT, appendix B.1): linear maps across the heads before and after the softmax.

    S = scale q k^T + bias,   P = softmax(W1 S + b1),   out = (W2 P + b2) v

b1 is there for the released weights: the softmax over the keys does not see it. b2 adds its multiple of the sum of v. Kept for the
backward pass: only P; S and W2 P are computed again, which costs less than the memory they would take.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from superformer.elastic.scratch import few_at_a_time, scratch

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
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, scale: float
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
        torch.ops.aten._softmax_backward_data.out(second.view_as(weights), weights, -1, weights.dtype, grad_input=second.view_as(weights))
        dw1 = torch.bmm(second, _Talking._logits(q, k, bias, ctx.scale).transpose(1, 2)).sum(0)
        back = _across(w1.t(), second, first)
        back = back.view(square)
        # heads are so narrow that the products are twice as fast the other way round
        dq = torch.bmm((k * ctx.scale).flatten(0, 1).transpose(1, 2), back.transpose(1, 2)).view(batch, heads, -1, tokens).transpose(2, 3)
        dk = torch.bmm((q * ctx.scale).flatten(0, 1).transpose(1, 2), back).view(batch, heads, -1, tokens).transpose(2, 3)
        return dq, dk, dv, back.view(batch, heads, tokens, tokens).sum(0), dw1, torch.zeros_like(b2), dw2, db2, None


def _attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, w1: Tensor, w2: Tensor, b2: Tensor, scale: float, weights: Tensor | None = None
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
    """Pictures and queries to be done at once: at least two pictures, so that each thread has maps of its own to mix, and no more queries
    than stay in the cache (or all, of ``whole`` pictures)."""
    batch, heads, tokens, _ = shape
    few = max(2, IN_CACHE // (heads * tokens * tokens))
    tiles = 1 if whole else math.ceil(min(few, batch) * heads * tokens * tokens / IN_CACHE)
    return list(itertools.product(few_at_a_time(batch, few), few_at_a_time(tokens, math.ceil(tokens / tiles))))


def talking(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, scale: float) -> Tensor:
    """Attention of (batch, heads, tokens, width) tensors with a bias (heads, tokens, tokens) and maps across the heads.

    Plain operations in mixed precision, in a trace, and where a mode of torch watches them (`superformer.analysis.attention`).
    """
    if torch.is_autocast_enabled(q.device.type) or torch.compiler.is_compiling() or torch._C._is_torch_function_mode_enabled():
        shape = (*q.shape[:2], q.shape[2], q.shape[2])
        weights = _across(w1, (q * scale @ k.transpose(2, 3)).add_(bias).flatten(2)).view(shape).softmax(-1)
        return _across(w2, weights.flatten(2)).view(shape) @ v + b2.view(-1, 1, 1) * v.sum(2, keepdim=True)
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    if torch.is_grad_enabled():
        out: Tensor = _Talking.apply(q, k, v, bias, w1, b1, w2, b2, scale)
        return out
    return _attend(q, k, v, bias, w1, w2, b2, scale)
