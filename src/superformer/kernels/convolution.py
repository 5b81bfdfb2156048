"""Convolutions and batch norms of maps (batch, rows, columns, channels), and the inverted residual.

Channels come last as in token families: a 1x1 convolution is then a matrix product, and torch's convolutions are
fastest in that layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from superformer.kernels import Scratch, kernel, on_cpu
from superformer.kernels.limits import APART, LARGE_PATCH
from superformer.kernels.slices import Wanted, linear, take


def conv(x: Tensor, weight: Wanted, bias: Wanted | None = None, stride: int = 1, channelwise: bool = False) -> Tensor:
    """A convolution of which a slice is used, padded by half its kernel; ``channelwise`` is depthwise."""
    shape = weight[0].shape
    if shape[-1] == 1 and not channelwise:
        x = x if stride == 1 else x[:, ::stride, ::stride]
        return linear(x, weight[0], None if bias is None else bias[0], weight[1][:2], () if bias is None else bias[1])
    kernel, *rest = take(weight) if bias is None else take(weight, bias)
    return convolve(x, kernel, rest[0] if rest else None, stride, channelwise)


def convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, stride: int, channelwise: bool) -> Tensor:
    """The same with a kernel and a bias as they are."""
    if channelwise:
        return depthwise(x, kernel, bias, stride)
    if kernel.shape[-1] == 1:
        return F.linear(x if stride == 1 else x[:, ::stride, ::stride], kernel.flatten(1), bias)
    return F.conv2d(x.permute(0, 3, 1, 2), kernel, bias, stride, kernel.shape[-1] // 2).permute(0, 2, 3, 1)


# --- depthwise ---


def depthwise(x: Tensor, kernel: Tensor, bias: Tensor | None = None, stride: int = 1) -> Tensor:
    """Each channel convolved by itself, padded by half the kernel."""
    maps = x.permute(0, 3, 1, 2)
    return F.conv2d(maps, kernel, bias, stride, kernel.shape[-1] // 2, groups=len(kernel)).permute(0, 2, 3, 1)


def with_margins(scratch: Scratch, x: Tensor, kernel: Tensor) -> Tensor:
    """Scratch memory for a map of this shape, with room before and after it for half a kernel's columns of zeros."""
    margin, size = kernel.shape[-1] // 2 * x.shape[-1], x.numel()
    room = scratch((size + 2 * margin,), x)
    room[:margin] = 0
    room[margin + size :] = 0
    return room[margin : margin + size].view(x.shape)


def kernel_gradient(grad: Tensor, x: Tensor, kernel: Tensor, stride: int, by_columns: bool | None = None) -> Tensor:
    """The gradient of the kernel, from that of the output. ``x`` comes from `with_margins` and is overwritten."""
    if by_columns is None:
        by_columns = stride == 1 and kernel.shape[-1] > 3 and x.numel() >= APART
    return _by_columns(grad, x, kernel) if by_columns else _of_kernel(grad, x, kernel, kernel.shape[-1] // 2, stride)


def input_gradient(grad: Tensor, x: Tensor, kernel: Tensor, stride: int) -> Tensor:
    """The gradient of an input of the shape of ``x``. At stride 1 it is a convolution itself, the kernel turned
    round."""
    if stride == 1:
        return depthwise(grad, kernel.flip(2, 3))
    maps, pad = [t.permute(0, 3, 1, 2) for t in (grad, x)], kernel.shape[-1] // 2
    back: Tensor = torch.ops.aten.convolution_backward(
        *maps, kernel, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], len(kernel), [True, False, False]
    )[0]
    return back.permute(0, 2, 3, 1)


def _of_kernel(grad: Tensor, x: Tensor, kernel: Tensor, pad: int, stride: int) -> Tensor:
    """``pad``: columns of zeros; rows as many as half a kernel's."""
    maps, pads = [t.permute(0, 3, 1, 2) for t in (grad, x)], [kernel.shape[-2] // 2, pad]
    out: Tensor = torch.ops.aten.convolution_backward(
        *maps, kernel, None, [stride] * 2, pads, [1, 1], False, [0, 0], len(kernel), [False, True, False]
    )[1]
    return out


def _by_columns(grad: Tensor, x: Tensor, kernel: Tensor) -> Tensor:
    """The gradient of the kernel by columns. Torch's library has a fast gradient for kernels of up to three columns; a
    wider one takes a general way. So the three middle columns are done at once and every other column by itself, as a
    kernel of one column on the map moved sideways: in memory that is the same map, read from a few positions later or
    earlier, with zeros where it would read over the end of a row."""
    out, half = torch.empty_like(kernel), kernel.shape[-1] // 2
    near = slice(half - 1, half + 2)
    out[..., near] = _of_kernel(grad, x, kernel[..., near], 1, 1)
    first = x[:, :, :half].clone()
    for side in (1, -1):
        for shift in range(2, half + 1):
            (x[:, :, :shift] if side == 1 else x[:, :, -shift:]).zero_()
            moved = x.as_strided(x.shape, x.stride(), x.storage_offset() + side * shift * x.shape[-1])
            column = slice(half + side * shift, half + side * shift + 1)
            out[..., column] = _of_kernel(grad, moved, kernel[..., column], 0, 1)
        x[:, :, :half] = first
    return out


# --- patches ---


def plain_patches(x: Tensor, side: int) -> Tensor:
    rows, cols = x.shape[1] // side, x.shape[2] // side
    x = x[:, : rows * side, : cols * side]
    batch, channels = x.shape[0], x.shape[3]
    return x.reshape(batch, rows, side, cols, side, channels).permute(0, 1, 3, 5, 2, 4)


@kernel(plain_patches, amp=True)
def patches(x: Tensor, side: int) -> Tensor:
    """A map in patches (batch, rows, columns, channels, side, side); rows and columns that do not fill one are left
    out."""
    out: Tensor = _Patches.apply(x, side)
    return out


class _Patches(torch.autograd.Function):
    """Pixel by pixel of a small patch; a large one at once."""

    @staticmethod
    def _pairs(x: Tensor, out: Tensor, side: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Views of a map and of its patches that hold the same numbers."""
        if side >= LARGE_PATCH:
            yield plain_patches(x, side), out
            return
        x = x[:, : out.shape[1] * side, : out.shape[2] * side]
        for i, j in product(range(side), repeat=2):
            yield x[:, i::side, j::side], out[..., i, j]

    @staticmethod
    def forward(ctx: Any, x: Tensor, side: int) -> Tensor:
        ctx.shape, ctx.side = x.shape, side
        batch, rows, cols, channels = x.shape
        out = x.new_empty(batch, rows // side, cols // side, channels, side, side)
        for here, there in _Patches._pairs(x, out, side):
            there.copy_(here)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        whole = not (ctx.shape[1] % ctx.side or ctx.shape[2] % ctx.side)
        back = grad.new_empty(ctx.shape) if whole else grad.new_zeros(ctx.shape)
        for here, there in _Patches._pairs(back, grad, ctx.side):
            here.copy_(there)
        return back, None


# --- batch norm ---


class Norm(NamedTuple):
    """A batch norm in one pass: its scale and shift, and copies of its running mean and variance. In training these are
    set to the batch's (the variance unbiased). ``join`` adds up what ``processes`` have, differentiably."""

    weight: Wanted
    bias: Wanted
    mean: Tensor
    var: Tensor
    training: bool
    eps: float
    join: Callable[[Tensor], Tensor] | None = None
    processes: int = 1

    def set(self, mean: Tensor, var: Tensor, count: int) -> None:
        """The statistics of ``count`` numbers in this process, from their mean and variance in all of them."""
        count *= self.processes
        self.mean.copy_(mean)
        self.var.copy_(var * (count / max(count - 1, 1)))

    def over_all(self, mean: Tensor, var: Tensor, *others: Tensor) -> list[Tensor]:
        """Mean and variance over all processes, and the means of other numbers, from those of this process."""
        if self.join is None:
            return [mean, var, *others]
        sums = [mean.double(), var.double() + mean.double().square(), *(t.double() for t in others)]
        means = self.join(torch.cat(sums)) / self.processes
        centre, square, *rest = torch.split(means, [len(s) for s in sums])
        return [t.to(mean) for t in (centre, (square - centre.square()).clamp(min=0), *rest)]

    def a_process(self, *sums: Tensor) -> Sequence[Tensor]:
        """The means over all processes of sums of this one, all of one length."""
        return sums if self.join is None else (self.join(torch.stack(sums)) / self.processes).unbind()


def batch_norm(x: Tensor, norm: Norm) -> Tensor:
    """Each channel normalised: in training by the statistics of this batch (of all processes, if they are joined)."""
    weight, bias = take(norm.weight, norm.bias)
    if norm.join is None:
        maps = F.batch_norm(x.permute(0, 3, 1, 2), norm.mean, norm.var, weight, bias, norm.training, 1.0, norm.eps)
        return maps.permute(0, 2, 3, 1)
    return joined_norm(x, weight, bias, norm)


def plain_joined_norm(x: Tensor, weight: Tensor, bias: Tensor, norm: Norm) -> Tensor:
    assert norm.join is not None
    dims, count = tuple(range(x.ndim - 1)), x.numel() // x.shape[-1] * norm.processes
    centre = norm.join(x.sum(dims)) / count
    off = x - centre
    spread = norm.join(off.square().sum(dims)) / count
    with torch.no_grad():
        norm.set(centre, spread, count // norm.processes)
    return off * (torch.rsqrt(spread + norm.eps) * weight) + bias


@kernel(plain_joined_norm, able=lambda x, weight, bias, norm: x.ndim == 4)
def joined_norm(x: Tensor, weight: Tensor, bias: Tensor, norm: Norm) -> Tensor:
    """Batch norm by the statistics of all processes; one message forwards and one backwards."""
    out: Tensor = _Normalise.apply(x, weight, bias, norm, False)
    return out


def plain_norm_swish(x: Tensor, norm: Norm) -> Tensor:
    return F.silu(batch_norm(x, norm), inplace=True)


@kernel(plain_norm_swish, able=lambda x, norm: torch.is_grad_enabled())
def norm_swish(x: Tensor, norm: Norm) -> Tensor:
    """Batch norm and swish; kept for the backward pass is only what was normalised."""
    weight, bias = take(norm.weight, norm.bias)
    out: Tensor = _Normalise.apply(x, weight, bias, norm, True)
    return out


_WIDE = Scratch()
"""Maps that are computed again in a backward pass."""


class Normed(NamedTuple):
    """How a map was normalised, for the backward pass: with the scale and the shift, and the mean and deviation."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    mean: Tensor
    spread: Tensor

    @classmethod
    def run(cls, x: Tensor, weight: Tensor, bias: Tensor, norm: Norm, out: Tensor) -> Normed:
        """Write the normalised map to ``out``; in training set the statistics of ``norm``."""
        maps, there = x.permute(0, 3, 1, 2), out.permute(0, 3, 1, 2)
        mean, var, given = norm.mean, norm.var, not norm.training
        if norm.join is not None:
            mean, var = norm.over_all(*torch.batch_norm_update_stats(maps, None, None, 0.0))
            norm.set(mean, var, x.numel() // x.shape[-1])
            given = True
        own, spread = torch.empty_like(mean), torch.empty_like(var)
        torch.ops.aten.native_batch_norm.out(
            maps, weight, bias, mean, var, not given, 1.0, norm.eps, out=there, save_mean=own, save_invstd=spread
        )
        return cls(x, weight, bias, mean, torch.rsqrt(var + norm.eps)) if given else cls(x, weight, bias, own, spread)

    def again(self) -> Tensor:
        """The normalised map, in scratch memory."""
        scale = self.weight * self.spread
        return torch.addcmul(self.bias - self.mean * scale, self.x, scale, out=_WIDE(self.x.shape, self.x))

    def backward(self, grad: Tensor, norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the map, the scale and the shift."""
        x, weight, _, mean, spread = self
        maps, there, by_itself = grad.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2), norm.join is None
        dx, dweight, dbias = torch.ops.aten.native_batch_norm_backward(
            maps, there, weight, mean, spread.pow(-2), mean, spread, norm.training and by_itself, 0.0,
            [by_itself, True, True],
        )  # fmt: skip
        if norm.join is None:
            return dx.permute(0, 2, 3, 1), dweight, dbias
        along, whole = (t / (x.numel() // x.shape[-1]) for t in norm.a_process(dweight, dbias))
        scale = weight * spread
        slope = scale * spread * along
        dx = torch.addcmul(slope * mean - scale * whole, x, slope, value=-1)
        return dx.addcmul_(grad, scale), dweight, dbias


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: Norm, swish: bool) -> Tensor:
        out = torch.empty_like(x)
        ctx.save_for_backward(*Normed.run(x, weight, bias, norm, out))
        ctx.norm, ctx.swish = norm, swish
        return F.silu(out, inplace=True) if swish else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        normed = Normed(*ctx.saved_tensors)
        if ctx.swish:
            y = normed.again()
            grad = torch.ops.aten.silu_backward.grad_input(grad, y, grad_input=y)
        return *normed.backward(grad, ctx.norm), None, None


# --- a convolution and its norm as one, in evaluation ---


def plain_conv_norm(x: Tensor, weight: Wanted, norm: Norm, stride: int, swish: bool = False) -> Tensor:
    return (norm_swish if swish else batch_norm)(conv(x, weight, None, stride), norm)


def _evaluates(x: Tensor, weight: Wanted, norm: Norm, stride: int, swish: bool = False) -> bool:
    return not norm.training and not torch.is_grad_enabled()


@kernel(plain_conv_norm, able=_evaluates, amp=True)
def conv_norm(x: Tensor, weight: Wanted, norm: Norm, stride: int, swish: bool = False) -> Tensor:
    """A convolution without bias and its batch norm, with ``swish`` then x * sigmoid(x). Without gradients and with
    given statistics that is one convolution."""
    kernel, shift = folded(weight, norm)
    out = convolve(x, kernel.contiguous(memory_format=torch.channels_last), shift, stride, channelwise=False)
    return F.silu(out, inplace=True) if swish else out


def folded(weight: Wanted, norm: Norm, statistics: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """The kernel and the bias of a convolution followed by its norm, with the norm's mean and variance or others."""
    mean, var = statistics or (norm.mean, norm.var)
    kernel, gamma, beta = take(weight, norm.weight, norm.bias)
    scale = gamma * torch.rsqrt(var + norm.eps)
    return kernel * scale.view(-1, 1, 1, 1), beta - mean * scale


def channels_last(x: Tensor) -> Tensor:
    """(batch, channels, rows, columns) in the layout in which torch's convolutions are fastest: a third faster."""
    return x.contiguous(memory_format=torch.channels_last)


def channels_last_back(x: Tensor) -> Tensor:
    """The same map, whose gradient comes back in that layout."""
    if x.requires_grad and on_cpu(x):
        x.register_hook(channels_last)  # type: ignore[no-untyped-call]
    return x
