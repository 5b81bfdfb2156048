"""The widening half of an inverted residual: a 1x1 convolution, batch norm, swish, and a depthwise convolution, as one operation.

Between its convolutions lies the largest map of the network, six times as wide as what comes in. Two things make it cheap:

* Batch norm of a linear map needs no pass over its output. With x the input (rows: positions), z = x W^T has the mean W mean(x) and the
  variance diag(W Cov(x) W^T), so norm and convolution are one product with scaled rows of W. The same holds backwards: with D the
  gradient after the norm, D^T x and the column sums of D give every gradient.
* Nothing of that map is kept; the backward pass computes it again from x, one product.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from superformer.elastic.axis import View
from superformer.elastic.conv import BatchNorm, MapConv
from superformer.elastic.scratch import scratch
from superformer.elastic.synced import is_synced


def _depthwise(x: Tensor, kernel: Tensor, stride: int) -> Tensor:
    return F.conv2d(x.permute(0, 3, 1, 2), kernel, None, stride, kernel.shape[-1] // 2, groups=len(kernel)).permute(0, 2, 3, 1)


def _depthwise_backward(grad: Tensor, x: Tensor, kernel: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Gradients of the input and of the kernel. At stride 1 the first is a convolution itself, with the kernel turned round."""
    pad, plain = kernel.shape[-1] // 2, stride == 1
    back, dkernel, _ = torch.ops.aten.convolution_backward(
        grad, x, kernel, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], len(kernel), [not plain, True, False]
    )
    return F.conv2d(grad, kernel.flip(2, 3), None, 1, pad, groups=len(kernel)) if plain else back, dkernel


class _Widen(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        gamma: Tensor,
        beta: Tensor,
        kernel: Tensor,
        mean: Tensor,
        var: Tensor,
        training: bool,
        eps: float,
        stride: int,
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        centre = covariance = None
        if training:
            centre = rows.mean(0)
            off = rows - centre
            covariance = off.t() @ off / len(rows)
            torch.mv(w, centre, out=mean)
            torch.sum((w @ covariance) * w, 1, out=var)
        spread = torch.rsqrt(var + eps)
        ctx.save_for_backward(x, w, gamma, beta, kernel, mean.clone(), spread, centre, covariance)
        ctx.stride = stride
        wide = _Widen._norm(rows, w, gamma, beta, mean, spread).view(*x.shape[:-1], -1)
        out = _depthwise(F.silu(wide, inplace=True), kernel, stride)
        if training:
            var.mul_(len(rows) / max(len(rows) - 1, 1))
        return out

    @staticmethod
    def _norm(rows: Tensor, w: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
        scale = gamma * spread
        out = scratch("wide", (len(rows), len(w)), rows)
        return torch.addmm(beta - mean * scale, rows, (w * scale[:, None]).t(), out=out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, w, gamma, beta, kernel, mean, spread, centre, covariance = ctx.saved_tensors
        rows, n = x.reshape(-1, x.shape[-1]), x.numel() // x.shape[-1]
        y = _Widen._norm(rows, w, gamma, beta, mean, spread).view(*x.shape[:-1], -1)
        active = torch.ops.aten.silu.out(y, out=scratch("active", y.shape, y)).permute(0, 3, 1, 2)
        back, dkernel = _depthwise_backward(grad.permute(0, 3, 1, 2), active, kernel, ctx.stride)
        back = back.permute(0, 2, 3, 1)
        d = torch.ops.aten.silu_backward.grad_input(back, y, grad_input=y).view(n, -1)

        scale, sums, products = gamma * spread, d.sum(0), d.t() @ rows
        if centre is None:  # the statistics are given
            dgamma = spread * ((products * w).sum(1) - mean * sums)
            dx, dw = d @ (w * scale[:, None]), products * scale[:, None]
        else:
            products -= torch.outer(sums, centre)
            dgamma = spread * (products * w).sum(1)
            pull = dgamma / n * spread
            square = (w * (scale * pull)[:, None]).t() @ w
            dx = torch.addmm(centre @ square - (scale * sums / n) @ w, d, w * scale[:, None]).addmm_(rows, square, alpha=-1)
            dw = scale[:, None] * (products - pull[:, None] * n * (w @ covariance))
        return dx.view(x.shape), dw, dgamma, sums, dkernel, None, None, None, None, None


def widen(x: Tensor, expand: MapConv, norm: BatchNorm, depthwise: MapConv, view: View) -> Tensor:
    """depthwise(swish(norm(expand(x))))."""
    if is_synced(norm):
        synced: Tensor = depthwise(norm(expand(x, view), view, swish=True), view)
        return synced
    w, kernel = expand.selected("weight", view).flatten(1), depthwise.selected("weight", view)
    gamma, beta = norm.selected("weight", view), norm.selected("bias", view)
    mean, var = norm.statistics(view)
    if torch.is_grad_enabled() or norm.training:
        out: Tensor = _Widen.apply(x, w, gamma, beta, kernel, mean, var, norm.training, norm.eps, depthwise.step)
        if norm.training:
            norm.update(mean, var, view)
        return out
    scale = gamma * torch.rsqrt(var + norm.eps)
    wide = F.linear(x, w * scale[:, None], beta - mean * scale)
    return _depthwise(F.silu(wide, inplace=True), kernel, depthwise.step)
