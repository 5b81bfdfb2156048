"""The blocks of NASViT's hybrid networks: inverted residuals (table 1) and transformer blocks (figure 6, appendix B.1).

Maps are (batch, rows, columns, channels) all the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor, nn

from superformer.elastic.axis import Axis, Pass, Units, View, Visit
from superformer.elastic.conv import BatchNorm, MapConv
from superformer.elastic.layers import Branch, Cell, Layer, LayerNorm, Linear, Optional, PerChoice, Table, Widths, width
from superformer.elastic.positions import Places, in_windows, out_of_windows, relative_bias
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
    depthwise, a bias of relative positions. Scale (section 3, "switchable scaling layer"): ``"width"``, a vector for
    each width of this layer; ``"tokens"``, as released, rows of one table for each depth of the stage and number of
    tokens modulo 8, times 8 / width, the same for both MLPs."""

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
        self.by_width = options["scale"] == "width"
        names = ("attn", "mlp1", "mlp2") if self.by_width else ("attn", "mlp1")
        self.scales = nn.ModuleDict({name: self._new_scale() for name in names})

    def _new_scale(self) -> nn.Module:
        if self.by_width:
            return PerChoice("width", {w: Table(w, fill=1e-4) for w in self.axes.width.widths})
        return Table(self.axes.depth, self.axes.count, self.axes.width, fill=1e-4)

    def _scale(self, name: str, view: View) -> Tensor:
        channels = view[self.axes.width].width
        own: Any = self.scales["mlp1" if name == "mlp2" and not self.by_width else name]
        scale: Tensor = own[str(channels)](view) if self.by_width else own(view).flatten() * (8 / channels)
        return scale

    def forward(self, x: Tensor, visit: Visit, at: Pass) -> Tensor:
        return self.second(self.first(self.attend(x, visit, at), visit, at), visit, at)

    def attend(self, x: Tensor, visit: Visit, at: Pass) -> Tensor:
        view, windows = at.view, at.arch.stages[self.stage].choices.int("windows")
        rows, cols = x.shape[1:3]
        parts = round(windows**0.5)
        if rows % parts or cols % parts:
            what = f"a map of {rows} x {cols} does not divide into {windows} windows"
            raise SuperformerError(f"{what}; use another picture size")
        maps = [layer.wanted(name, view) for layer in (self.talk1, self.talk2) for name in ("weight", "bias")]
        table, w1, b1, w2, b2 = take(self.positions.wanted("weight", view), *maps)
        y = self.norm1(x, view)
        qk, v = self.qk(y, view), self.v_conv(self.v(y, view), view)
        grid = (rows // parts, cols // parts)
        if parts > 1:
            qk, v = in_windows(qk, *grid), in_windows(v, *grid)  # (batch * windows, rows, columns, channels)
        tokens, heads = grid[0] * grid[1], view[self.axes.heads].width
        q, k = split_heads(qk.reshape(-1, tokens, 2, heads, self.head_dim))  # (batch, heads, tokens, head width)
        v = v.reshape(-1, tokens, heads, 4 * self.head_dim).transpose(1, 2)  # (batch, heads, tokens, 4 * head width)
        bias = relative_bias(table, grid, ((table.shape[0] + 1) // 2,) * 2)
        y = talking_heads(q, k, v, bias, (w1, b1, w2, b2), self.head_dim**-0.5).transpose(1, 2)
        y = y.reshape(-1, *grid, heads * 4 * self.head_dim)
        if parts > 1:
            y = out_of_windows(y, parts, parts)
        y = F.silu(self.proj(y, view)) if self.after else self.proj(F.silu(y), view)
        return self._add(x, y, "attn", view)

    def first(self, x: Tensor, visit: Visit, at: Pass) -> Tensor:
        return self._add(x, self.mlp1(self.norm2(x, at.view), at.view), "mlp1", at.view)

    def second(self, x: Tensor, visit: Visit, at: Pass) -> Tensor:
        return self._add(x, self.mlp2(self.norm3(x, at.view), at.view), "mlp2", at.view)

    def branches(self) -> Sequence[Branch]:
        return Branch(self.attend), Branch(self.first), Branch(self.second)

    def _add(self, x: Tensor, y: Tensor, name: str, view: View) -> Tensor:
        return x + self.dropped(y * self._scale(name, view))

    def sortable(self, heads: Sequence[int]) -> tuple[Units, ...]:
        return (Units((self.axes.qk, self.axes.v, self.axes.heads), self.axes.heads.size),)

    def places(self, net: Network, stage: int, visit: Visit, at: Pass) -> Places:
        parts = round(at.arch.stages[stage].choices.int("windows") ** 0.5)
        where = Places.coordinates(grid := net.stage_grid(stage, at.grid))
        own = in_windows(where, grid[0] // parts, grid[1] // parts).flatten(1, 2)
        return Places.of(grid, own, own)

    def cost(self, widths: Widths, values: Mapping[str, Count], tokens: Count, grid: tuple[Count, Count]) -> Cost:
        channels, heads = width(self.axes.width, widths), width(self.axes.heads, widths)
        pairs = tokens * (tokens // values["windows"])
        talk = self.talk1.params(widths) + self.talk2.params(widths)
        cost = Cost(pairs * (channels + 2 * heads * heads + 4 * channels), talk + len(self.scales) * channels)
        for layer in (self.qk, self.v, self.v_conv, self.proj, self.mlp1, self.mlp2):
            cost += layer.cost(widths, tokens)
        for table in (self.positions, self.norm1, self.norm2, self.norm3):
            cost += table.cost(widths)
        return cost
