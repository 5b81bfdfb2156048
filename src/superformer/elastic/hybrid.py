"""The blocks of NASViT's hybrid networks: inverted residuals (table 1) and transformer blocks (figure 6, appendix B.1).

Maps are (batch, rows, columns, channels) all the way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superformer.elastic.axis import Axis, Pass, Units, View, Visit
from superformer.elastic.conv import BatchNorm, MapConv
from superformer.elastic.layers import Branch, Cell, Layer, LayerNorm, Linear, Optional, PerChoice, Table, Widths, width
from superformer.elastic.positions import Places, in_windows, lengths, out_of_windows, relative_bias
from superformer.errors import SuperformerError
from superformer.kernels.attention import split_heads, talking_heads
from superformer.kernels.inverted import Inverted, inverted_residual
from superformer.kernels.slices import Wanted, take
from superformer.space.costs import NOTHING, Cost, Count

if TYPE_CHECKING:
    from superformer.families.network import Network


def divisible(channels: Count) -> Count:
    """The nearest multiple of 8, at least 8, not below nine tenths (MobileNet's rule); of a number or an array."""
    out = (channels + 4) // 8 * 8
    out = out + 8 * (out == 0)
    return out + 8 * (10 * out < 9 * channels)


class SqueezeExcite(nn.Module):
    """The weights of squeeze-excite: each channel is scaled by a function of the means of all."""

    def __init__(self, mid: Axis, squeezed: Axis):
        super().__init__()
        self.squeezed = squeezed
        self.reduce = Linear(mid, squeezed)
        self.expand = Linear(squeezed, mid)

    def gates(self, view: View) -> tuple[Wanted, ...]:
        return tuple(layer.wanted(name, view) for layer in (self.reduce, self.expand) for name in ("weight", "bias"))

    def sortable(self, heads: Sequence[int]) -> tuple[Units, ...]:
        return (Units((self.squeezed,), self.squeezed.size),)

    def cost(self, widths: Widths) -> Cost:
        return self.reduce.cost(widths, 1) + self.expand.cost(widths, 1)


class MBConv(Layer, Optional):
    """The inverted residual block, always with a shortcut: averaged where the stride is 2, then widened where the width
    changes. ``mid`` None is an expansion of 1, which has no first convolution."""

    def __init__(self, inp: Axis, out: Axis, mid: Axis | None, squeezed: Axis | None, kernel: Axis, stride: int):
        super().__init__()
        self.inp, self.out, self.hop = inp, out, stride
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
        """norm(point(excite(swish(norm(depthwise(swish(norm(expand(x)))))))) + shortcut(x)."""
        norms = [norm for norm in (self.expand_norm, self.depthwise_norm, self.point_norm) if norm is not None]
        own = [norm.norm(view) for norm in norms]
        first = None if self.expand is None else (self.expand.wanted("weight", view), own[0])
        wide = (self.depthwise.wanted("weight", view), own[-2])
        gates = () if self.excite is None else self.excite.gates(view)
        weights = Inverted(first, wide, gates, (self.point.wanted("weight", view), own[-1]), self.hop)
        y = inverted_residual(x, weights, lambda x: self._short(x, view))
        for layer, norm in zip(norms, own, strict=True):
            layer.moved(y, norm, view)
        return y

    def _short(self, x: Tensor, view: View) -> Tensor:
        if self.hop == 2:
            odd = [n % 2 for n in x.shape[1:3]]
            x = F.avg_pool2d(x.permute(0, 3, 1, 2), 2, padding=odd).permute(0, 2, 3, 1)
        if self.shortcut is not None and view[self.inp].width != view[self.out].width:
            x = self.shortcut(x, view)
        return x

    def sortable(self, heads: Sequence[int]) -> tuple[Units, ...]:
        return (Units((self.mid,), self.mid.size),) if self.expand is not None else ()

    def cost(self, widths: Widths, before: Count, after: Count) -> Cost:
        """On a map of ``before`` positions, ``after`` the stride so many."""
        cost = self.depthwise.cost(widths, after) + self.depthwise_norm.cost(widths)
        cost += self.point.cost(widths, after) + self.point_norm.cost(widths)
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

    def forward(self, x: Tensor, visit: Visit, at: Pass) -> Tensor:
        y = self.conv(x, at.view)
        return x + self.dropped(y - x) if self.drop_path and self.training else y

    def cost(self, widths: Widths, values: Mapping[str, Count], tokens: Count, grid: tuple[Count, Count]) -> Cost:
        return self.conv.cost(widths, tokens, tokens)


class MapNorm(LayerNorm):
    """One mean and one variance for all tokens and channels of a picture, as in the released networks."""

    def forward(self, x: Tensor, view: View) -> Tensor:  # type: ignore[override]
        out = F.layer_norm(x, x.shape[1:], eps=self.eps)
        weight, bias = take(self.wanted("weight", view), self.wanted("bias", view))
        return out * weight + bias


@dataclass(frozen=True)
class TransformerAxes:
    """The axes of a transformer stage.

    ``distances``: rows and columns of the position table, for the map or window of each input size. ``depth`` and
    ``count``: see `TransformerCell`."""

    width: Axis
    qk: Axis
    heads: Axis
    v: Axis
    mlp: Axis
    distances: Axis
    depth: Axis
    count: Axis

    def bind(
        self, width: Count, mlp: Count, head_dim: int, side: Count, parts: Count, depth: Count
    ) -> dict[Axis, Count]:
        """``side`` of the map, cut into ``parts`` each way."""
        out = {self.qk: width, self.heads: width // head_dim, self.v: 4 * width, self.mlp: mlp}
        return {**out, self.distances: 2 * (side // parts) - 1, self.depth: depth, self.count: side * side % 8}


WINDOW = 7
"""Tokens in a row of a window, about, where pictures are larger than a network's own (section 4.2)."""


def window_counts(windows: Count, grid: tuple[Count, Count], larger: Any) -> tuple[Count, Count]:
    """How many windows a map has below each other and side by side; numbers, or arrays over a population.

    What was searched, as a square; but "to handle large input resolutions efficiently, we set the number of windows to
    be the input feature map size divided by 7 instead of using our searched settings" (section 4.2): where the picture
    is ``larger`` than the network's own, the nearest number to that in each direction."""
    side = np.rint(np.sqrt(windows)).astype(int) if isinstance(windows, np.ndarray) else math.isqrt(windows)
    fitting = [(n + WINDOW // 2) // WINDOW for n in grid]
    down, across = (side + larger * (n + (n == 0) - side) for n in fitting)
    return down, across


def _pairs(length: Count, parts: Count) -> Count:
    """Pairs of positions in the same window of a row that is cut into so many."""
    short, longer = length // parts, length % parts
    return longer * (short + 1) ** 2 + (parts - longer) * short**2


class HybridMlp(Layer):
    """Two matrices with a swish and, as the paper has it, a depthwise convolution between them."""

    def __init__(self, axes: TransformerAxes, conv: bool):
        super().__init__()
        self.fc1 = Linear(axes.width, axes.mlp)
        self.conv = MapConv(axes.mlp, axes.mlp, 3, bias=True, depthwise=True) if conv else None
        self.fc2 = Linear(axes.mlp, axes.width)

    def forward(self, x: Tensor, view: View) -> Tensor:
        x = F.silu(self.fc1(x, view))
        return self.fc2(x if self.conv is None else self.conv(x, view), view)

    def cost(self, widths: Widths, tokens: Count) -> Cost:
        conv = self.conv.cost(widths, tokens) if self.conv is not None else NOTHING
        return self.fc1.cost(widths, tokens) + self.fc2.cost(widths, tokens) + conv


class TransformerCell(Cell):
    """Attention and two MLPs (figure 6), each branch scaled by a learned vector.

    Attention: heads of few channels that talk before and after the softmax, v four times as wide and convolved
    depthwise, a bias of relative positions. Windows are those of `window_counts`; where they do not divide the map,
    some are a row or a column longer than others.

    Scale (section 3, "switchable scaling layer"): ``"width"``, a vector for each width of this layer; ``"tokens"``, as
    released, rows of one table for each depth of the stage and number of tokens modulo 8, times 8 / width, the same for
    both MLPs. To compare with (table 7, and CaiT, whose idea it is): ``"shared"``, one vector, of which each width uses
    its part; ``"none"``."""

    def __init__(self, axes: TransformerAxes, stage: int, options: Mapping[str, Any]):
        super().__init__()
        self.axes, self.stage = axes, stage
        self.head_dim, self.after = int(options["head_dim"]), options["activation"] == "after"
        norm = LayerNorm if options["norm"] == "token" else MapNorm
        self.norm1, self.norm2, self.norm3 = (norm(axes.width, 1e-5) for _ in range(3))
        self.qk = Linear(axes.width, axes.qk, parts=2, tag="qk")
        self.v = Linear(axes.width, axes.v)
        self.v_conv = MapConv(axes.v, axes.v, 3, depthwise=True)
        self.positions = Table(axes.distances, axes.distances, axes.heads)
        self.talk1, self.talk2 = Linear(axes.heads, axes.heads), Linear(axes.heads, axes.heads)
        self.proj = Linear(axes.v, axes.width)
        self.mlp1, self.mlp2 = (HybridMlp(axes, bool(options["mlp_conv"])) for _ in range(2))
        self.scaling = str(options["scale"])
        names = {"none": (), "tokens": ("attn", "mlp1")}.get(self.scaling, ("attn", "mlp1", "mlp2"))
        self.scales = nn.ModuleDict({name: self._new_scale() for name in names})

    def _new_scale(self) -> nn.Module:
        if self.scaling == "width":
            return PerChoice("width", {w: Table(w, fill=1e-4) for w in self.axes.width.widths})
        if self.scaling == "shared":
            return Table(self.axes.width, fill=1e-4)
        return Table(self.axes.depth, self.axes.count, self.axes.width, fill=1e-4)

    def _scaled(self, y: Tensor, name: str, view: View) -> Tensor:
        if self.scaling == "none":
            return y
        channels = view[self.axes.width].width
        own: Any = self.scales["mlp1" if name == "mlp2" and self.scaling == "tokens" else name]
        scale: Tensor = own[str(channels)](view) if self.scaling == "width" else own(view)
        return y * (scale.flatten() * (8 / channels) if self.scaling == "tokens" else scale)

    def forward(self, x: Tensor, visit: Visit, at: Pass) -> Tensor:
        return self.second(self.first(self.attend(x, visit, at), visit, at), visit, at)

    def attend(self, x: Tensor, visit: Visit, at: Pass) -> Tensor:
        view = at.view
        maps = [layer.wanted(name, view) for layer in (self.talk1, self.talk2) for name in ("weight", "bias")]
        table, *mixed = take(self.positions.wanted("weight", view), *maps)
        y = self.norm1(x, view)
        qk, v, heads = self.qk(y, view), self.v_conv(self.v(y, view), view), view[self.axes.heads].width
        rows, cols = self._cut((int(x.shape[1]), int(x.shape[2])), at)
        if len(rows) == len(cols) == 1:
            y = self._windows(qk, v, (rows[0][1], cols[0][1]), heads, table, mixed)
        else:  # rectangles of equal windows
            strips = [
                [self._windows(qk[:, r, c], v[:, r, c], (high, wide), heads, table, mixed) for c, wide in cols]
                for r, high in rows
            ]
            y = torch.cat([torch.cat(strip, 2) for strip in strips], 1)
        y = F.silu(self.proj(y, view)) if self.after else self.proj(F.silu(y), view)
        return self._add(x, y, "attn", view)

    def _cut(self, grid: tuple[int, int], at: Pass) -> list[list[tuple[slice, int]]]:
        """How the rows and the columns of a map are cut into windows."""
        larger = math.prod(at.grid) > math.prod(at.native)
        counts = window_counts(at.arch.stages[self.stage].choices.int("windows"), grid, larger)
        return [lengths(n, parts) for n, parts in zip(grid, counts, strict=True)]

    def _windows(
        self, qk: Tensor, v: Tensor, grid: tuple[int, int], heads: int, table: Tensor, maps: Sequence[Tensor]
    ) -> Tensor:
        """The attention of a map in windows of ``grid``: (batch, rows, columns, 4 * heads * head width)."""
        down, across = qk.shape[1] // grid[0], qk.shape[2] // grid[1]
        if down * across > 1:
            qk, v = in_windows(qk, *grid), in_windows(v, *grid)  # (batch * windows, rows, columns, channels)
        tokens = grid[0] * grid[1]
        q, k = split_heads(qk.reshape(-1, tokens, 2, heads, self.head_dim))  # (batch, heads, tokens, head width)
        v = v.reshape(-1, tokens, heads, 4 * self.head_dim).transpose(1, 2)  # (batch, heads, tokens, 4 * head width)
        bias = relative_bias(table, grid, ((table.shape[0] + 1) // 2,) * 2)
        w1, b1, w2, b2 = maps
        y = talking_heads(q, k, v, bias, (w1, b1, w2, b2), self.head_dim**-0.5).transpose(1, 2)
        y = y.reshape(-1, *grid, heads * 4 * self.head_dim)
        return out_of_windows(y, down, across) if down * across > 1 else y

    def first(self, x: Tensor, visit: Visit, at: Pass) -> Tensor:
        return self._add(x, self.mlp1(self.norm2(x, at.view), at.view), "mlp1", at.view)

    def second(self, x: Tensor, visit: Visit, at: Pass) -> Tensor:
        return self._add(x, self.mlp2(self.norm3(x, at.view), at.view), "mlp2", at.view)

    def branches(self) -> Sequence[Branch]:
        return Branch(self.attend), Branch(self.first), Branch(self.second)

    def _add(self, x: Tensor, y: Tensor, name: str, view: View) -> Tensor:
        return x + self.dropped(self._scaled(y, name, view))

    def sortable(self, heads: Sequence[int]) -> tuple[Units, ...]:
        return (Units((self.axes.qk, self.axes.v, self.axes.heads), self.axes.heads.size),)

    def places(self, net: Network, stage: int, visit: Visit, at: Pass) -> Places:
        where = Places.coordinates(grid := net.stage_grid(stage, at.grid))
        rows, cols = self._cut(grid, at)
        if len(rows) > 1 or len(cols) > 1:
            what = f"a map of {grid[0]} x {grid[1]} has windows of several sizes"
            raise SuperformerError(f"{what}: look at its attention with pictures of another size")
        own = in_windows(where, rows[0][1], cols[0][1]).flatten(1, 2)
        return Places.of(grid, own, own)

    def cost(self, widths: Widths, values: Mapping[str, Count], tokens: Count, grid: tuple[Count, Count]) -> Cost:
        channels, heads = width(self.axes.width, widths), width(self.axes.heads, widths)
        down, across = window_counts(values["windows"], grid, values["larger"])
        pairs = _pairs(grid[0], down) * _pairs(grid[1], across)
        talk = self.talk1.params(widths) + self.talk2.params(widths)
        cost = Cost(pairs * (channels + 2 * heads * heads + 4 * channels), talk + len(self.scales) * channels)
        for layer in (self.qk, self.v, self.v_conv, self.proj, self.mlp1, self.mlp2):
            cost += layer.cost(widths, tokens)
        for table in (self.positions, self.norm1, self.norm2, self.norm3):
            cost += table.cost(widths)
        return cost
