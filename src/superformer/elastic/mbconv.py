"""The inverted residual blocks of NASViT's networks (table 1): a wide depthwise convolution between two narrow maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from superformer.elastic.axis import Axis, View
from superformer.elastic.batchnorm import BatchNorm
from superformer.elastic.block import Cell, Phase
from superformer.elastic.conv import MapConv
from superformer.elastic.count import Cost, Count
from superformer.elastic.inverted import SqueezeExcite, narrow, normed_linear, widen
from superformer.elastic.layers import Optional, Widths, width
from superformer.elastic.pass_ import Pass, Step
from superformer.elastic.scratch import IN_CACHE, few_at_a_time, together


def divisible(channels: Count) -> Count:
    """The nearest multiple of 8, at least 8 and not below nine tenths (MobileNet's rule); of a number or of an array."""
    out = (channels + 4) // 8 * 8
    out = out + 8 * (out == 0)
    return out + 8 * (10 * out < 9 * channels)


class MBConv(Optional):
    """The inverted residual block, always with a shortcut: averaged where the stride is 2, then widened where the width changes.

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
        """A few pictures at a time, which stay in the cache. In evaluation the norms are part of the convolutions; when they gather
        statistics (recalibration), the second one needs the wide maps of all pictures before it can normalise any."""
        few = max(1, IN_CACHE // (x.shape[1] * x.shape[2] * view[self.mid].width))
        parts = [x[some] for some in few_at_a_time(x.shape[0], few)]
        if self.depthwise_norm.training:
            wide = self.depthwise_norm.over(self._widened(x, parts, view), view)
            (point,) = self.point.selected(view, "weight")
            out: Tensor = self.point_norm(together((self._narrowed(y, point, None, view) for y in wide), x.shape[0]), view)
            return out.add_(self._short(x, view))
        point, offset = self.point_norm.folded(self.point, view)
        pairs = zip(parts, self._widened(x, parts, view), strict=True)
        return together((self._narrowed(y, point, offset, view) + self._short(part, view) for part, y in pairs), x.shape[0])

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
