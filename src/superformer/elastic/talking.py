"""Talking-heads attention (NASViT, appendix B.1): linear maps across the heads before and after the softmax.

    S = scale q k^T + bias,   P = softmax(W1 S + b1),   out = (W2 P + b2) v

b1 is there for the released weights: the softmax over the keys does not see it. b2 adds its multiple of the sum of v. Kept for the
backward pass: only P; S and W2 P are computed again, which costs less than the memory they would take.
"""

from __future__ import annotations

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
        batch, heads, tokens, _ = q.shape
        out = scratch("first", (batch * heads, tokens, tokens), q)
        torch.baddbmm(out, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), beta=0, alpha=scale, out=out)
        return out.view(batch, heads, tokens * tokens).add_(bias.flatten(1))

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, scale: float
    ) -> Tensor:
        batch, heads, tokens, _ = q.shape
        weights = _across(w1, _Talking._logits(q, k, bias, scale)).view(batch, heads, tokens, tokens)
        torch.softmax(weights, -1, out=weights)
        ctx.save_for_backward(q, k, v, bias, w1, w2, b2, weights)
        ctx.scale = scale
        mixed = _across(w2, weights.flatten(2), scratch("second", (batch, heads, tokens * tokens), q))
        out = torch.bmm(mixed.view(-1, tokens, tokens), v.flatten(0, 1)).view(batch, heads, tokens, -1)
        return out.add_(b2.view(-1, 1, 1) * v.sum(2, keepdim=True))

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


def talking(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, scale: float) -> Tensor:
    """Attention of (batch, heads, tokens, width) tensors with a bias (heads, tokens, tokens) and maps across the heads."""
    mixed = torch.is_autocast_enabled(q.device.type)
    if torch.is_grad_enabled() and not mixed:
        out: Tensor = _Talking.apply(q.contiguous(), k.contiguous(), v.contiguous(), bias, w1, b1, w2, b2, scale)
        return out
    heads, tokens = q.shape[1:3]
    rows = few_at_a_time(q.shape[0], max(1, IN_CACHE // (heads * tokens * tokens)))
    parts = [_evaluate(q[r], k[r], v[r], bias, w1, w2, scale) for r in rows]
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out + b2.view(-1, 1, 1) * v.sum(2, keepdim=True)


def _evaluate(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, w1: Tensor, w2: Tensor, scale: float) -> Tensor:
    shape = (*q.shape[:2], q.shape[2], q.shape[2])
    weights = _across(w1, (q * scale @ k.transpose(2, 3)).add_(bias).flatten(2)).view(shape).softmax(-1)
    return _across(w2, weights.flatten(2)).view(shape) @ v
