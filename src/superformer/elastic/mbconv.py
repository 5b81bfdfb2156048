"""An inverted residual as two operations, each without the largest maps of the network in its memory.

`widen`: a 1x1 convolution, batch norm, swish, and a depthwise convolution. `narrow`: batch norm, swish, squeeze-excite,
and a 1x1 convolution. Between them lie maps six times as wide as what comes in; what makes them cheap:

* Batch norm of a linear map needs no pass over its output. With x the input (rows: positions), z = x W^T has the mean W
  mean(x) and the variance diag(W Cov(x) W^T), so norm and convolution are one product with scaled rows of W. The same
  holds backwards: with D the gradient after the norm, D^T x and the column sums of D give every gradient.
* A gate for each channel of a picture is a scale for the columns of the matrix that follows: a product with another
  matrix for each picture. Its gradients follow from those of these matrices.
* Of those maps only the depthwise convolution's output is kept; the backward pass computes the others again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from superformer.elastic.axis import Axis, Pass, Step, Units, View
from superformer.elastic.conv import BatchNorm, MapConv, Normed, unbiased
from superformer.elastic.layers import Linear, Optional, Widths, width
from superformer.elastic.transformer import Cell, Phase
from superformer.kernels.convolution import depthwise, input_gradient, kernel_gradient, with_margins
from superformer.kernels.memory import IN_CACHE, few_at_a_time, scratch, together
from superformer.kernels.slices import take
from superformer.space.costs import Cost, Count


def _moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of rows and their covariance."""
    centre = rows.mean(0)
    off = rows - centre
    return centre, off.t() @ off / len(rows)


def _of_linear(w: Tensor, centre: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each output of a linear map of rows with these moments."""
    return w @ centre, ((w @ covariance) * w).sum(1)


def normed_linear(x: Tensor, point: MapConv, norm: BatchNorm, view: View) -> tuple[Tensor, Tensor]:
    """Matrix and bias of norm(point(x)), point a 1x1 convolution; without gradients. In training with the statistics of
    this batch, which move the running ones."""
    statistics = None
    if norm.training:
        rows, (w,) = x.reshape(-1, x.shape[-1]), point.selected(view, "weight")
        mean, var = statistics = _of_linear(w.flatten(1), *_moments(rows))
        norm.update(mean, unbiased(var, len(rows)), view)
    kernel, shift = norm.folded(point, view, statistics)
    return kernel.flatten(1), shift


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
            centre, covariance = _moments(rows)
            for out, new in zip((mean, var), _of_linear(w, centre, covariance), strict=True):
                out.copy_(new)
        spread = torch.rsqrt(var + eps)
        ctx.save_for_backward(x, w, gamma, beta, kernel, mean.clone(), spread, centre, covariance)
        ctx.stride = stride
        wide = _Widen._norm(rows, w, gamma, beta, mean, spread).view(*x.shape[:-1], -1)
        out = depthwise(F.silu(wide, inplace=True), kernel, None, stride)
        if training:
            var.copy_(unbiased(var, len(rows)))
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
        active = torch.ops.aten.silu.out(y, out=with_margins("active", y, kernel))
        dkernel = kernel_gradient(grad, active, kernel, ctx.stride)
        for few in few_at_a_time(len(y), max(1, IN_CACHE // y[0].numel())):
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
            pull = dgamma / n * spread
            square = (w * (scale * pull)[:, None]).t() @ w
            dx = torch.addmm(centre @ square - (scale * sums / n) @ w, d, w * scale[:, None]).addmm_(
                rows, square, alpha=-1
            )
            dw = scale[:, None] * (products - pull[:, None] * n * (w @ covariance))
        return dx.view(x.shape), dw, dgamma, sums, dkernel, None, None, None, None, None


def widen(x: Tensor, expand: MapConv, norm: BatchNorm, conv: MapConv, view: View) -> Tensor:
    """conv(swish(norm(expand(x)))), conv depthwise."""
    if not norm.by_hand(x):
        plain: Tensor = conv(norm(expand(x, view), view, swish=True), view)
        return plain
    parts = ((expand, "weight"), (conv, "weight"), (norm, "weight"), (norm, "bias"))
    w, kernel, gamma, beta = take(*(layer.wanted(name, view) for layer, name in parts))
    mean, var = norm.statistics(view)
    out: Tensor = _Widen.apply(x, w.flatten(1), gamma, beta, kernel, mean, var, norm.training, norm.eps, conv.step)
    if norm.training:
        norm.update(mean, var, view)
    return out


class SqueezeExcite(nn.Module):
    """Each channel scaled by a function of the means of all."""

    def __init__(self, mid: Axis, squeezed: Axis):
        super().__init__()
        self.reduce = Linear(mid, squeezed)
        self.expand = Linear(squeezed, mid)

    def forward(self, x: Tensor, view: View) -> Tensor:
        gate = F.hardsigmoid(self.expand(F.relu(self.reduce(x.mean((1, 2)), view)), view))
        return x * gate[:, None, None]

    def cost(self, widths: Widths) -> Cost:
        return self.reduce.cost(widths, 1) + self.expand.cost(widths, 1)

    def sortable(self, heads: Sequence[int]) -> tuple[Units, ...]:
        return (Units.channels(self.reduce.dims["weight"][0]),)


class _Narrow(torch.autograd.Function):
    """``gates``: the two matrices and biases of the squeeze-excite, if there is one."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        gamma: Tensor,
        beta: Tensor,
        mean: Tensor,
        var: Tensor,
        training: bool,
        eps: float,
        *gates: Tensor,
    ) -> Tensor:
        y = scratch("wide", x.shape, x)
        normed = Normed.run(x, gamma, beta, mean, var, training, eps, y)
        active = F.silu(y, inplace=True).flatten(1, 2)
        ctx.training, ctx.inner = training, _Gate.run(active, gates) if gates else None
        ctx.save_for_backward(w, *gates, *normed)
        if ctx.inner is None:
            return F.linear(active, w).view(*x.shape[:-1], -1)
        return torch.bmm(active, (w * ctx.inner.gate[:, None]).transpose(1, 2)).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        w, *gates = ctx.saved_tensors[:-5]
        normed = Normed(*ctx.saved_tensors[-5:])
        y = normed.again()
        active = torch.ops.aten.silu.out(y, out=scratch("active", y.shape, y)).flatten(1, 2)
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
        dx, dgamma, dbeta = normed.backward(y, ctx.training)
        return dx, dw, dgamma, dbeta, None, None, None, None, *dgates


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


def narrow(x: Tensor, norm: BatchNorm, excite: SqueezeExcite | None, point: MapConv, view: View) -> Tensor:
    """point(excite(swish(norm(x))))."""
    if not norm.by_hand(x):
        y = norm(x, view, swish=True)
        plain: Tensor = point(y if excite is None else excite(y, view), view)
        return plain
    parts = [(point, "weight"), (norm, "weight"), (norm, "bias")]
    if excite is not None:
        parts += [(layer, name) for layer in (excite.reduce, excite.expand) for name in ("weight", "bias")]
    w, gamma, beta, *gates = take(*(layer.wanted(name, view) for layer, name in parts))
    mean, var = norm.statistics(view)
    out: Tensor = _Narrow.apply(x, w.flatten(1), gamma, beta, mean, var, norm.training, norm.eps, *gates)
    if norm.training:
        norm.update(mean, var, view)
    return out


# The inverted residual blocks of NASViT's networks (table 1): a wide depthwise convolution between two narrow maps.


def divisible(channels: Count) -> Count:
    """The nearest multiple of 8, at least 8 and not below nine tenths (MobileNet's rule); of a number or of an
    array."""
    out = (channels + 4) // 8 * 8
    out = out + 8 * (out == 0)
    return out + 8 * (10 * out < 9 * channels)


class MBConv(Optional):
    """The inverted residual block, always with a shortcut: averaged where the stride is 2, then widened where the width
    changes.

    ``mid`` None is an expansion of 1, which has no first convolution.
    """

    def __init__(self, inp: Axis, out: Axis, mid: Axis | None, squeezed: Axis | None, kernel: Axis, stride: int):
        super().__init__()
        self.inp, self.out, self.stride = inp, out, stride
        self.expand = MapConv(inp, mid, 1) if mid is not None else None
        self.expand_norm = BatchNorm(mid) if mid is not None else None
        self.mid = mid = mid or inp
        self.depthwise = MapConv(mid, mid, kernel, stride, depthwise=True)
        self.depthwise_norm = BatchNorm(mid)
        self.excite = SqueezeExcite(mid, squeezed) if squeezed is not None else None
        self.point = MapConv(mid, out, 1)
        self.point_norm = BatchNorm(out, fill=0.0)
        same = inp is out or (inp.widths == out.widths and len(inp.widths) == 1)
        self.shortcut = None if same else MapConv(inp, out, 1)

    def unused(self, view: View) -> tuple[str, ...]:
        return ("shortcut",) if view[self.inp].width == view[self.out].width else ()

    def forward(self, x: Tensor, view: View) -> Tensor:
        if not torch.is_grad_enabled() and self.depthwise_norm.by_hand(x):
            return self._without_gradients(x, view)
        if self.expand is not None and self.expand_norm is not None:
            y = widen(x, self.expand, self.expand_norm, self.depthwise, view)
        else:
            y = self.depthwise(x, view)
        y = self.point_norm(narrow(y, self.depthwise_norm, self.excite, self.point, view), view)
        out: Tensor = y + self._short(x, view)
        return out

    def _without_gradients(self, x: Tensor, view: View) -> Tensor:
        """A few pictures at a time, which stay in the cache. In evaluation the norms are part of the convolutions; when
        they gather statistics (recalibration), the second one needs the wide maps of all pictures before it can
        normalise any."""
        few = max(1, IN_CACHE // (x.shape[1] * x.shape[2] * view[self.mid].width))
        parts = [x[some] for some in few_at_a_time(x.shape[0], few)]
        if self.depthwise_norm.training:
            wide = self.depthwise_norm.over(self._widened(x, parts, view), view)
            (point,) = self.point.selected(view, "weight")
            out: Tensor = self.point_norm(
                together((self._narrowed(y, point, None, view) for y in wide), x.shape[0]), view
            )
            return out.add_(self._short(x, view))
        point, offset = self.point_norm.folded(self.point, view)
        pairs = zip(parts, self._widened(x, parts, view), strict=True)
        return together(
            (self._narrowed(y, point, offset, view) + self._short(part, view) for part, y in pairs), x.shape[0]
        )

    def _widened(self, x: Tensor, parts: Sequence[Tensor], view: View) -> Iterator[Tensor]:
        """The depthwise convolution of each part; in evaluation also normalised."""
        first = None
        if self.expand is not None and self.expand_norm is not None:
            first = normed_linear(x, self.expand, self.expand_norm, view)
        if self.depthwise_norm.training:
            kernel, shift = self.depthwise.selected(view, "weight")[0], None
        else:
            kernel, shift = self.depthwise_norm.folded(self.depthwise, view)
        for part in parts:
            y = part if first is None else F.silu(F.linear(part, *first), inplace=True)
            yield self.depthwise.convolve(y, kernel, shift)

    def _narrowed(self, y: Tensor, point: Tensor, offset: Tensor | None, view: View) -> Tensor:
        y = F.silu(y, inplace=True)
        return F.linear(y if self.excite is None else self.excite(y, view), point.flatten(1), offset)

    def _short(self, x: Tensor, view: View) -> Tensor:
        if self.stride == 2:
            odd = [n % 2 for n in x.shape[1:3]]
            x = F.avg_pool2d(x.permute(0, 3, 1, 2), 2, padding=odd).permute(0, 2, 3, 1)
        if self.shortcut is not None and view[self.inp].width != view[self.out].width:
            x = self.shortcut(x, view)
        return x

    def cost(self, widths: Widths, before: Count, after: Count) -> Cost:
        """On a map of ``before`` positions, ``after`` the stride so many."""
        cost = (
            self.depthwise.cost(widths, after)
            + self.depthwise_norm.cost(widths)
            + self.point.cost(widths, after)
            + self.point_norm.cost(widths)
        )
        if self.expand is not None and self.expand_norm is not None:
            cost += self.expand.cost(widths, before) + self.expand_norm.cost(widths)
        if self.excite is not None:
            cost += self.excite.cost(widths)
        if self.shortcut is not None:
            cost += self.shortcut.cost(widths, after).times(width(self.inp, widths) != width(self.out, widths))
        return cost

    def sortable(self, heads: Sequence[int]) -> tuple[Units, ...]:
        return (Units.channels(self.expand.dims["weight"][0]),) if self.expand is not None else ()


class MBConvCell(Cell):
    """A later layer of a convolution stage."""

    def __init__(self, conv: MBConv):
        super().__init__()
        self.conv = conv

    def phases(self) -> Sequence[Phase]:
        return (self._run,)

    def _run(self, x: Tensor, view: View, step: Step, at: Pass) -> Tensor:
        y: Tensor = self.conv(x, view)
        return x + self.dropped(y - x) if self.drop_path and self.training else y

    def cost(self, widths: Widths, values: Mapping[str, Count], tokens: Count, grid: tuple[Count, Count]) -> Cost:
        return self.conv.cost(widths, tokens, tokens)
