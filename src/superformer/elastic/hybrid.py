"""The transformer blocks of NASViT's networks (figure 6 and appendix B.1), on maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from superformer.elastic.attend import unpack
from superformer.elastic.axis import Axis, View
from superformer.elastic.bias import lookup
from superformer.elastic.block import Cell, Phase
from superformer.elastic.conv import MapConv
from superformer.elastic.count import NOTHING, Cost, Count
from superformer.elastic.layers import LayerNorm, Linear, PerChoice, Table, Widths, width
from superformer.elastic.pass_ import Pass, Step
from superformer.elastic.take import take
from superformer.elastic.talking import talking
from superformer.errors import SuperformerError


class MapNorm(LayerNorm):
    """One mean and one variance for all tokens and channels of a picture, as in the released networks."""

    def forward(self, x: Tensor, view: View) -> Tensor:  # type: ignore[override]
        out = F.layer_norm(x, x.shape[1:], eps=self.eps)
        weight, bias = self.selected(view, "weight", "bias")
        return out * weight + bias


@dataclass(frozen=True)
class TransformerAxes:
    """The axes of a transformer stage.

    ``distances``: rows and columns of the position table, for the map or window of each input size. ``depth`` and ``count``: see
    `TransformerCell`.
    """

    width: Axis
    qk: Axis
    heads: Axis
    v: Axis
    mlp: Axis
    distances: Axis
    depth: Axis
    count: Axis

    def bind(self, width: Count, mlp: Count, head_dim: int, side: Count, parts: Count, depth: Count) -> dict[Axis, Count]:
        """``side`` of the map, cut into ``parts`` each way."""
        return {
            self.qk: width,
            self.heads: width // head_dim,
            self.v: 4 * width,
            self.mlp: mlp,
            self.distances: 2 * (side // parts) - 1,
            self.depth: depth,
            self.count: side * side % 8,
        }


class HybridMlp(nn.Module):
    def __init__(self, axes: TransformerAxes, conv: bool):
        super().__init__()
        self.fc1 = Linear(axes.width, axes.mlp)
        self.conv = MapConv(axes.mlp, axes.mlp, 3, bias=True, depthwise=True) if conv else None
        self.fc2 = Linear(axes.mlp, axes.width)

    def forward(self, x: Tensor, view: View) -> Tensor:
        x = F.silu(self.fc1(x, view))
        out: Tensor = self.fc2(x if self.conv is None else self.conv(x, view), view)
        return out

    def cost(self, widths: Widths, tokens: Count) -> Cost:
        conv = self.conv.cost(widths, tokens) if self.conv is not None else NOTHING
        return self.fc1.cost(widths, tokens) + self.fc2.cost(widths, tokens) + conv


class TransformerCell(Cell):
    """Attention and two MLPs (figure 6), each branch scaled by a learned vector.

    Attention: heads of few channels that talk before and after the softmax, v four times as wide and convolved depthwise, a bias of
    relative positions. Scale (section 3, "switchable scaling layer"): ``"width"``, a vector for each width of this layer; ``"tokens"``, as
    released, rows of one table for each depth of the stage and number of tokens modulo 8, times 8 / width, the same for both MLPs.
    """

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
        self.scales = nn.ModuleDict({name: self._new_scale() for name in (("attn", "mlp1", "mlp2") if self.by_width else ("attn", "mlp1"))})

    def _new_scale(self) -> nn.Module:
        if self.by_width:
            return PerChoice("width", {w: Table(w, fill=1e-4) for w in self.axes.width.widths})
        return Table(self.axes.depth, self.axes.count, self.axes.width, fill=1e-4)

    def _scale(self, name: str, view: View) -> Tensor:
        channels = view[self.axes.width].width
        if self.by_width:
            own = self.scales[name]
            assert isinstance(own, PerChoice)
            out: Tensor = own[str(channels)](view)
            return out
        rows: Tensor = self.scales["attn" if name == "attn" else "mlp1"](view)
        return rows.flatten() * (8 / channels)

    def phases(self) -> Sequence[Phase]:
        return self._attend, self._first, self._second

    def _attend(self, x: Tensor, view: View, step: Step, at: Pass) -> Tensor:
        windows = at.arch.stages[self.stage].choices.int("windows")
        rows, cols = x.shape[1:3]
        parts = round(windows**0.5)
        if rows % parts or cols % parts:
            raise SuperformerError(f"a map of {rows} x {cols} does not divide into {windows} windows; use another picture size")
        talks = [layer.wanted(name, view) for layer in (self.talk1, self.talk2) for name in ("weight", "bias")]
        kernel, table, w1, b1, w2, b2 = take(self.v_conv.wanted("weight", view), self.positions.wanted("weight", view), *talks)
        y = self.norm1(x, view)
        qk, v = self.qk(y, view), self.v_conv.convolve(self.v(y, view), kernel, None)
        grid = (rows // parts, cols // parts)
        if parts > 1:
            qk, v = (_cut(t, parts) for t in (qk, v))
        tokens, heads = grid[0] * grid[1], view[self.axes.heads].width
        q, k = unpack(qk.reshape(-1, tokens, 2, heads, self.head_dim))
        v = v.reshape(-1, tokens, heads, 4 * self.head_dim).transpose(1, 2)
        native = ((table.shape[0] + 1) // 2,) * 2
        y = talking(q, k, v, lookup(table, grid, native), w1, b1, w2, b2, self.head_dim**-0.5).transpose(1, 2)
        y = y.reshape(-1, *grid, heads * 4 * self.head_dim)
        if parts > 1:
            y = _joined(y, parts)
        y = F.silu(self.proj(y, view)) if self.after else self.proj(F.silu(y), view)
        return self._add(x, y, "attn", view)

    def _first(self, x: Tensor, view: View, step: Step, at: Pass) -> Tensor:
        return self._add(x, self.mlp1(self.norm2(x, view), view), "mlp1", view)

    def _second(self, x: Tensor, view: View, step: Step, at: Pass) -> Tensor:
        return self._add(x, self.mlp2(self.norm3(x, view), view), "mlp2", view)

    def _add(self, x: Tensor, y: Tensor, name: str, view: View) -> Tensor:
        y = y * self._scale(name, view)
        return x + self.dropped(y)

    def cost(self, widths: Widths, values: Mapping[str, Count], tokens: Count, grid: tuple[Count, Count]) -> Cost:
        channels, heads = width(self.axes.width, widths), width(self.axes.heads, widths)
        pairs = tokens * (tokens // values["windows"])
        attention = Cost(pairs * (channels + 2 * heads * heads + 4 * channels), self.talk1.params(widths) + self.talk2.params(widths))
        cost = attention + self.qk.cost(widths, tokens) + self.v.cost(widths, tokens) + self.v_conv.cost(widths, tokens)
        cost += self.proj.cost(widths, tokens) + self.positions.cost(widths)
        for norm in (self.norm1, self.norm2, self.norm3):
            cost += norm.cost(widths)
        for mlp in (self.mlp1, self.mlp2):
            cost += mlp.cost(widths, tokens)
        return cost + Cost(0, len(self.scales) * channels)


def _cut(x: Tensor, parts: int) -> Tensor:
    """A map in ``parts`` x ``parts`` windows: (batch * windows, rows, columns, channels)."""
    batch, rows, cols, channels = x.shape
    x = x.reshape(batch, parts, rows // parts, parts, cols // parts, channels).transpose(2, 3)
    return x.reshape(batch * parts * parts, rows // parts, cols // parts, channels)


def _joined(x: Tensor, parts: int) -> Tensor:
    """The opposite of `_cut`."""
    _, rows, cols, channels = x.shape
    x = x.reshape(-1, parts, parts, rows, cols, channels).transpose(2, 3)
    return x.reshape(-1, parts * rows, parts * cols, channels)
