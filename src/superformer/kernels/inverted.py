"""The inverted residual of MobileNets (NASViT, table 1): a wide depthwise convolution between two narrow maps.

With gradients it is two operations, each without the largest maps of the network in its memory: *widen* (a 1x1
convolution, batch norm, swish, the depthwise convolution) and *narrow* (batch norm, swish, squeeze-excite, a 1x1
convolution). Between them lie maps six times as wide as what comes in; what makes them cheap:

* Batch norm of a linear map needs no pass over its output. With x the input (rows: positions), z = x W^T has the mean
  W mean(x) and the variance diag(W Cov(x) W^T), so norm and convolution are one product with scaled rows of W. The same
  holds backwards: with D the gradient after the norm, D^T x and the column sums of D give every gradient.
* Norms of several processes together need one message: each sends its own moments, and in the backward pass the sums
  of its own rows.
* A gate for each channel of a picture is a scale for the columns of the matrix that follows: a product with another
  matrix for each picture. Its gradients follow from those of these matrices.
* Of those maps only the depthwise convolution's output is kept; the backward pass computes the others again.

Without gradients a few pictures at a time stay in the cache from the first convolution to the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from superformer.kernels import Scratch, kernel, parts, together
from superformer.kernels.convolution import (
    _WIDE,
    Norm,
    Normed,
    batch_norm,
    conv,
    convolve,
    depthwise,
    folded,
    input_gradient,
    kernel_gradient,
    norm_swish,
    with_margins,
)
from superformer.kernels.limits import IN_CACHE
from superformer.kernels.slices import Wanted, take


class Inverted(NamedTuple):
    """The weights of one: of the first convolution, if there is one, of the depthwise one, of the gates (the matrices
    and biases of squeeze-excite, or nothing) and of the last one, each with its norm."""

    expand: tuple[Wanted, Norm] | None
    wide: tuple[Wanted, Norm]
    gates: tuple[Wanted, ...]
    point: tuple[Wanted, Norm]
    stride: int


def gate(x: Tensor, gates: Sequence[Tensor]) -> Tensor:
    """Squeeze-excite: each channel of (batch, rows, columns, channels) scaled by a function of the means of all."""
    reduce, reduce_bias, expand, expand_bias = gates
    squeezed = F.relu(F.linear(x.mean((1, 2)), reduce, reduce_bias))
    return x * F.hardsigmoid(F.linear(squeezed, expand, expand_bias))[:, None, None]


def plain_inverted_residual(x: Tensor, weights: Inverted, shortcut: Callable[[Tensor], Tensor]) -> Tensor:
    y = x
    if weights.expand is not None:
        y = norm_swish(conv(y, weights.expand[0]), weights.expand[1])
    y = norm_swish(conv(y, weights.wide[0], None, weights.stride, channelwise=True), weights.wide[1])
    if weights.gates:
        y = gate(y, take(*weights.gates))
    return batch_norm(conv(y, weights.point[0]), weights.point[1]) + shortcut(x)


def _able(x: Tensor, weights: Inverted, shortcut: Callable[[Tensor], Tensor]) -> bool:
    return torch.is_grad_enabled() or weights.wide[1].join is None


@kernel(plain_inverted_residual, able=_able)
def inverted_residual(x: Tensor, weights: Inverted, shortcut: Callable[[Tensor], Tensor]) -> Tensor:
    """norm(point(excite(swish(norm(depthwise(swish(norm(expand(x)))))))) + shortcut(x)."""
    if not torch.is_grad_enabled():
        return _in_parts(x, weights, shortcut)
    y = (
        conv(x, weights.wide[0], None, weights.stride, channelwise=True)
        if weights.expand is None
        else _widen(x, weights)
    )
    return batch_norm(_narrow(y, weights), weights.point[1]) + shortcut(x)


# --- without gradients ---


def _in_parts(x: Tensor, weights: Inverted, shortcut: Callable[[Tensor], Tensor]) -> Tensor:
    """A few pictures at a time. In evaluation the norms are part of the convolutions; when they gather statistics
    (recalibration), the second one needs the wide maps of all pictures before it can normalise any."""
    (wide, norm), (point, last) = weights.wide, weights.point
    few = max(1, IN_CACHE // (x.shape[1] * x.shape[2] * len(norm.mean)))
    some = [x[part] for part in parts(x.shape[0], few)]
    gates = take(*weights.gates) if weights.gates else []

    def narrowed(y: Tensor, matrix: Tensor, offset: Tensor | None) -> Tensor:
        y = F.silu(y, inplace=True)
        return F.linear(gate(y, gates) if gates else y, matrix.flatten(1), offset)

    first = None
    if weights.expand is not None:
        first = _normed_linear(x, *weights.expand)
    kernel, shift = (take(wide)[0], None) if norm.training else folded(wide, norm)

    def widened() -> Iterator[Tensor]:
        for part in some:
            y = part if first is None else F.silu(F.linear(part, *first), inplace=True)
            yield convolve(y, kernel, shift, weights.stride, channelwise=True)

    if norm.training:
        matrix = take(point)[0]
        y = together((narrowed(y, matrix, None) for y in _gathered(widened(), norm)), x.shape[0])
        return batch_norm(y, last).add_(shortcut(x))
    matrix, offset = folded(point, last)
    pairs = zip(some, widened(), strict=True)
    return together((narrowed(y, matrix, offset) + shortcut(part) for part, y in pairs), x.shape[0])


def _gathered(computed: Iterator[Tensor], norm: Norm) -> Iterator[Tensor]:
    """Each part of a batch normalised, in its own memory, by the statistics of all of them."""
    kept, each = [], []
    for part in computed:
        kept.append(part)
        each.append(torch.batch_norm_update_stats(part.permute(0, 3, 1, 2), None, None, 0.0))
    sizes = torch.tensor([float(part.numel() // part.shape[-1]) for part in kept]).to(kept[0])
    share, (means, variances) = sizes / sizes.sum(), (torch.stack(m) for m in zip(*each, strict=True))
    mean = share @ means
    var = share @ (variances + (means - mean).square())
    norm.set(mean, var, int(sizes.sum()))
    weight, bias = take(norm.weight, norm.bias)
    scale = weight * torch.rsqrt(var + norm.eps)
    for part in kept:
        yield torch.addcmul(bias - mean * scale, part, scale, out=part)


def _moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of rows and their covariance."""
    centre = rows.mean(0)
    off = rows - centre
    return centre, off.t() @ off / len(rows)


def _of_linear(w: Tensor, centre: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each output of a linear map of rows with these moments."""
    return w @ centre, ((w @ covariance) * w).sum(1)


def _moments_of_all(rows: Tensor, w: Tensor, norm: Norm) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mean of the rows of all processes, the covariance of those of this one about it, and mean and variance of
    each output of a linear map of all of them."""
    own, covariance = _moments(rows)
    mean, var, centre = norm.over_all(*_of_linear(w, own, covariance), own)
    return centre, covariance + torch.outer(own - centre, own - centre), mean, var


def _normed_linear(x: Tensor, weight: Wanted, norm: Norm) -> tuple[Tensor, Tensor]:
    """Matrix and bias of a 1x1 convolution and its norm; in training with the statistics of this batch."""
    statistics = None
    if norm.training:
        rows = x.reshape(-1, x.shape[-1])
        statistics = _of_linear(take(weight)[0].flatten(1), *_moments(rows))
        norm.set(*statistics, len(rows))
    kernel, shift = folded(weight, norm, statistics)
    return kernel.flatten(1), shift


# --- with gradients ---

_ACTIVE = Scratch()


def _widen(x: Tensor, weights: Inverted) -> Tensor:
    """depthwise(swish(norm(expand(x))))."""
    assert weights.expand is not None
    weight, norm = weights.expand
    w, kernel, gamma, beta = take(weight, weights.wide[0], norm.weight, norm.bias)
    out: Tensor = _Widen.apply(x, w.flatten(1), gamma, beta, kernel, norm, weights.stride)
    return out


class _Widen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, gamma: Tensor, beta: Tensor, kernel: Tensor, *rest: Any) -> Tensor:
        norm, stride = rest
        rows = x.reshape(-1, x.shape[-1])
        centre, covariance, mean, var = None, None, norm.mean, norm.var
        if norm.training:
            centre, covariance, mean, var = _moments_of_all(rows, w, norm)
            norm.set(mean, var, len(rows))
        spread = torch.rsqrt(var + norm.eps)
        ctx.save_for_backward(x, w, gamma, beta, kernel, mean, spread, centre, covariance)
        ctx.norm, ctx.stride = norm, stride
        wide = _Widen._norm(rows, w, gamma, beta, mean, spread).view(*x.shape[:-1], -1)
        return depthwise(F.silu(wide, inplace=True), kernel, None, stride)

    @staticmethod
    def _norm(rows: Tensor, w: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
        scale = gamma * spread
        out = _WIDE((len(rows), len(w)), rows)
        return torch.addmm(beta - mean * scale, rows, (w * scale[:, None]).t(), out=out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, w, gamma, beta, kernel, mean, spread, centre, covariance = ctx.saved_tensors
        rows, n = x.reshape(-1, x.shape[-1]), x.numel() // x.shape[-1]
        y = _Widen._norm(rows, w, gamma, beta, mean, spread).view(*x.shape[:-1], -1)
        active = torch.ops.aten.silu.out(y, out=with_margins(_ACTIVE, y, kernel))
        dkernel = kernel_gradient(grad, active, kernel, ctx.stride)
        for few in parts(len(y), max(1, IN_CACHE // y[0].numel())):
            back = input_gradient(grad[few], y[few], kernel, ctx.stride)
            torch.ops.aten.silu_backward.grad_input(back, y[few], grad_input=y[few])
        d = y.view(n, -1)

        scale, sums, products = gamma * spread, d.sum(0), d.t() @ rows
        if centre is None:  # the statistics are given
            dgamma = spread * ((products * w).sum(1) - mean * sums)
            dx, dw = d @ (w * scale[:, None]), products * scale[:, None]
        else:
            products -= torch.outer(sums, centre)
            dgamma = spread * (products * w).sum(1)
            along, whole = (t / n for t in ctx.norm.a_process(dgamma, sums))
            pull = along * spread
            square = (w * (scale * pull)[:, None]).t() @ w
            offset = centre @ square - (scale * whole) @ w
            dx = torch.addmm(offset, d, w * scale[:, None]).addmm_(rows, square, alpha=-1)
            dw = scale[:, None] * (products - pull[:, None] * n * (w @ covariance))
        return dx.view(x.shape), dw, dgamma, sums, dkernel, None, None


def _narrow(x: Tensor, weights: Inverted) -> Tensor:
    """point(excite(swish(norm(x))))."""
    norm = weights.wide[1]
    w, gamma, beta, *gates = take(weights.point[0], norm.weight, norm.bias, *weights.gates)
    out: Tensor = _Narrow.apply(x, w.flatten(1), gamma, beta, norm, *gates)
    return out


class _Narrow(torch.autograd.Function):
    """``gates``: the two matrices and biases of the squeeze-excite, if there is one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, gamma: Tensor, beta: Tensor, *rest: Any) -> Tensor:
        norm, *gates = rest
        y = _WIDE(x.shape, x)
        normed = Normed.run(x, gamma, beta, norm, y)
        active = F.silu(y, inplace=True).flatten(1, 2)
        ctx.norm, ctx.inner = norm, _Gate.run(active, gates) if gates else None
        ctx.save_for_backward(w, *gates, *normed)
        if ctx.inner is None:
            return F.linear(active, w).view(*x.shape[:-1], -1)
        return torch.bmm(active, (w * ctx.inner.gate[:, None]).transpose(1, 2)).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # asked for once: a recomputed block has them once
        (w, *gates), normed = saved[:-5], Normed(*saved[-5:])
        y = normed.again()
        active = torch.ops.aten.silu.out(y, out=_ACTIVE(y.shape, y)).flatten(1, 2)
        there, dgates = grad.reshape(*active.shape[:-1], -1), ()
        if ctx.inner is None:
            dw = there.flatten(0, 1).t() @ active.flatten(0, 1)
            torch.mm(there.flatten(0, 1), w, out=active.flatten(0, 1))
        else:
            each = torch.bmm(there.transpose(1, 2), active)
            dw = (each * ctx.inner.gate[:, None]).sum(0)
            dmean, dgates = ctx.inner.backward((each * w).sum(1), gates)
            share = (dmean / active.shape[1])[:, None].expand_as(active)
            torch.baddbmm(share, there, w * ctx.inner.gate[:, None], out=active)
        torch.ops.aten.silu_backward.grad_input(active.view_as(y), y, grad_input=y)
        dx, dgamma, dbeta = normed.backward(y, ctx.norm)
        return dx, dw, dgamma, dbeta, None, *dgates


class _Gate(NamedTuple):
    """The squeeze-excite of one pass: the means of the channels of each picture, what they are squeezed to, and the
    gate before and after its sigmoid."""

    means: Tensor
    squeezed: Tensor
    excited: Tensor
    gate: Tensor

    @classmethod
    def run(cls, active: Tensor, gates: Sequence[Tensor]) -> _Gate:
        reduce, reduce_bias, expand, expand_bias = gates
        means = active.mean(1)
        squeezed = F.relu(F.linear(means, reduce, reduce_bias))
        excited = F.linear(squeezed, expand, expand_bias)
        return cls(means, squeezed, excited, F.hardsigmoid(excited))

    def backward(self, grad: Tensor, gates: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Gradients of the means, and of the matrices and biases."""
        outer = torch.ops.aten.hardsigmoid_backward(grad, self.excited)
        inner = (outer @ gates[2]) * (self.squeezed > 0)
        return inner @ gates[0], (inner.t() @ self.means, inner.sum(0), outer.t() @ self.squeezed, outer.sum(0))
