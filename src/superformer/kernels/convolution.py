"""Depthwise convolutions of maps (batch, rows, columns, channels) and their gradients.

Torch's library has a fast gradient for kernels of up to three columns; a wider one takes a general way, three to four
times as long. So the three middle columns of a kernel are done at once and every other column by itself, as a kernel of
one column on the map moved sideways: in memory that is the same map, read from a few positions later or earlier, with
zeros where it would read over the end of a row."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from superformer.kernels.memory import scratch

MANY = 2**17
"""Numbers of a map from which on the columns of a kernel are done apart."""


def depthwise(x: Tensor, kernel: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """The convolution, padded by half the kernel."""
    wanted = torch.is_grad_enabled() and kernel.requires_grad and not torch.is_autocast_enabled(x.device.type)
    if wanted and bias is None and _apart(x, kernel, stride):
        out: Tensor = _Depthwise.apply(x, kernel)
        return out
    return F.conv2d(x.permute(0, 3, 1, 2), kernel, bias, stride, kernel.shape[-1] // 2, groups=len(kernel)).permute(
        0, 2, 3, 1
    )


def kernel_gradient(grad: Tensor, x: Tensor, kernel: Tensor, stride: int) -> Tensor:
    """The gradient of the kernel, from that of the output. ``x`` comes from `with_margins` and is overwritten."""
    return (
        _columns(grad, x, kernel)
        if _apart(x, kernel, stride)
        else _kernel(grad, x, kernel, kernel.shape[-1] // 2, stride)
    )


def input_gradient(grad: Tensor, x: Tensor, kernel: Tensor, stride: int) -> Tensor:
    """The gradient of an input of the shape of ``x``. At stride 1 it is a convolution itself, with the kernel turned
    round."""
    if stride == 1:
        return depthwise(grad, kernel.flip(2, 3), None, 1)
    maps, pad = [t.permute(0, 3, 1, 2) for t in (grad, x)], kernel.shape[-1] // 2
    back: Tensor = torch.ops.aten.convolution_backward(
        *maps, kernel, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], len(kernel), [True, False, False]
    )[0]
    return back.permute(0, 2, 3, 1)


def with_margins(name: str, x: Tensor, kernel: Tensor) -> Tensor:
    """Scratch memory for a map of this shape, with room before and after it for half a kernel's columns of zeros."""
    margin, size = kernel.shape[-1] // 2 * x.shape[-1], x.numel()
    room = scratch(name, (size + 2 * margin,), x)
    room[:margin] = 0
    room[margin + size :] = 0
    return room[margin : margin + size].view(x.shape)


def _apart(x: Tensor, kernel: Tensor, stride: int) -> bool:
    return stride == 1 and kernel.shape[-1] > 3 and x.numel() >= MANY and x.device.type == "cpu"


def _kernel(grad: Tensor, x: Tensor, kernel: Tensor, pad: int, stride: int) -> Tensor:
    """``pad``: columns of zeros; rows as many as half a kernel's."""
    maps, pads = [t.permute(0, 3, 1, 2) for t in (grad, x)], [kernel.shape[-2] // 2, pad]
    out: Tensor = torch.ops.aten.convolution_backward(
        *maps, kernel, None, [stride] * 2, pads, [1, 1], False, [0, 0], len(kernel), [False, True, False]
    )[1]
    return out


def _columns(grad: Tensor, x: Tensor, kernel: Tensor) -> Tensor:
    """The gradient of the kernel by columns. Columns moved over the end of a row are those that this shift does not
    need."""
    out, half = torch.empty_like(kernel), kernel.shape[-1] // 2
    near = slice(half - 1, half + 2)
    out[..., near] = _kernel(grad, x, kernel[..., near], 1, 1)
    first = x[:, :, :half].clone()
    for side in (1, -1):
        for shift in range(2, half + 1):
            (x[:, :, :shift] if side == 1 else x[:, :, -shift:]).zero_()
            moved = x.as_strided(x.shape, x.stride(), x.storage_offset() + side * shift * x.shape[-1])
            column = slice(half + side * shift, half + side * shift + 1)
            out[..., column] = _kernel(grad, moved, kernel[..., column], 0, 1)
        x[:, :, :half] = first
    return out


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor) -> Tensor:
        ctx.save_for_backward(x, kernel)
        return depthwise(x, kernel, None, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, kernel = ctx.saved_tensors
        dkernel = kernel_gradient(grad, with_margins("active", x, kernel).copy_(x), kernel, 1)
        return input_gradient(grad, x, kernel, 1), dkernel
