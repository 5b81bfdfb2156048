"""softmax(q k^T scale + bias) v, the way that is fastest where it runs.

On a CPU, a training step over a few hundred tokens is faster with the attention weights kept than with torch's fused kernel, which computes
them a second time in the backward pass and has no gradient for a bias (a quarter faster at 50 tokens, a seventh at 200 and at 257). With
more tokens the weights take too much memory; without gradients, and on other devices, the fused kernel is the better one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from superformer.elastic.scratch import IN_CACHE, few_at_a_time, scratch

SMALL = 320
"""Keys up to which the attention weights are kept."""


def _kept(tensor: Tensor, keys: int) -> bool:
    cpu = tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)
    return cpu and not torch.compiler.is_compiling() and keys <= SMALL and torch.is_grad_enabled() and tensor.requires_grad


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
    """Attention of (batch, heads, tokens, width) tensors; the bias is (heads, tokens, keys), or (n, heads, tokens, keys) where n divides
    the batch and changes fastest in it."""
    if _kept(q, k.shape[2]):
        out: Tensor = _Attend.apply(q, k, v, scale, bias)
        return out
    if bias is not None and bias.dim() == 3:
        bias = bias[None]  # the fused kernel takes four dimensions; with three torch is three times as slow
    elif bias is not None and (torch.compiler.is_compiling() or bias.shape[0] not in (1, q.shape[0])):
        heads, bias = q.shape[1], bias.flatten(0, 1)[None]  # n times as many heads, and a bias that is the same for all pictures
        q, k, v = (t.reshape(-1, bias.shape[1], *t.shape[2:]) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, bias, scale=scale).reshape(-1, heads, q.shape[2], v.shape[3])
    return F.scaled_dot_product_attention(q, k, v, bias, scale=scale)
