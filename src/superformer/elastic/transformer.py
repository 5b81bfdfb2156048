"""The pre-norm transformer block (ViTAS v1, eqs. 1 and 2), its attention, and its class-attention form (CaiT; v1,
appendix D)."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superformer.elastic.axis import Axis, Pass, Units, View, Visit
from superformer.elastic.layers import Branch, Cell, Layer, LayerNorm, Linear, Table, Widths, width
from superformer.elastic.positions import Places
from superformer.elastic.relative import RelativePosition, relative_attention
from superformer.kernels.attention import attention, split_heads
from superformer.space.costs import NOTHING, Cost, Count

if TYPE_CHECKING:
    from superformer.families.network import Network

SHARED = ("qkv", "v", "qk", "none")


def quick_gelu(x: Tensor) -> Tensor:
    """CLIP's approximation of the GELU."""
    return x * torch.sigmoid(1.702 * x)


ACTS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"), "quick_gelu": quick_gelu,
}  # fmt: skip


class Mlp(Layer):
    """Two matrices with an exact GELU between them (or another of `ACTS`); the hidden width is searched."""

    def __init__(self, embed: Axis, hidden: Axis, act: str = "gelu"):
        super().__init__()
        self.hidden, self.act = hidden, ACTS[act]
        self.fc1, self.fc2 = Linear(embed, hidden), Linear(hidden, embed)

    def forward(self, x: Tensor, view: View) -> Tensor:
        return self.fc2(self.act(self.fc1(x, view)), view)

    def sortable(self, heads: Sequence[int]) -> tuple[Units, ...]:
        return (Units((self.hidden,), self.hidden.size),)

    def cost(self, widths: Widths, tokens: Count) -> Cost:
        return self.fc1.cost(widths, tokens) + self.fc2.cost(widths, tokens)


def whole_heads(inner: Axis, heads: Sequence[int]) -> int:
    """The most parts of an attention width that are whole heads, whatever the number of heads."""
    return inner.size // inner.unit if inner.unit > 1 else math.gcd(*heads)


def in_heads(x: Tensor, parts: int, heads: int) -> Tensor:
    """(batch, tokens, parts * heads * width) as (batch, tokens, parts, heads, width)."""
    return x.unflatten(2, (parts, heads, -1))  # type: ignore[no-untyped-call, no-any-return]


class Attention(Layer):
    """softmax(q k^T scale) v, then a projection back (ViTAS v1, eqs. 3, 4, 7 and 8): width, number of heads and input
    width are searched.

    ``shared`` says which of q, k and v are shared by all head counts; the others are private to each (v1, table 2:
    ``"v"`` is the paper's choice, group 7). A stand-alone network has one head count and one packed matrix, whatever
    its supernet shared.

    ``scale``: ``"head"`` is (attention width / heads)^-1/2; ``"embed"`` is (input width // heads)^-1/2 and a number is
    itself, as the released ViTAS networks and supernets need it. ``relative``: the reach of AutoFormer's positions.
    ``class_only``: the class token alone asks."""

    def __init__(
        self,
        embed: Axis,
        inner: Axis,
        heads: tuple[int, ...],
        shared: str = "qkv",
        scale: str | float = "head",
        relative: int | None = None,
        class_only: bool = False,
    ):
        super().__init__()
        self.embed, self.inner, self.heads = embed, inner, heads
        self.scale, self.class_only = scale, class_only
        self.qkv = self.qk = self.v = None
        if shared == "qkv" or len(heads) == 1:
            self.qkv = Linear(embed, inner, parts=3, tag="qkv")
        else:
            own = [str(h) for h in heads]
            qk, v = (["all"] if "qk" in shared else own), (["all"] if shared == "v" else own)
            self.qk = nn.ModuleDict({k: Linear(embed, inner, parts=2, tag="qk") for k in qk})
            self.v = nn.ModuleDict({k: Linear(embed, inner) for k in v})
        self.relative = RelativePosition(relative, inner.size // max(heads)) if relative is not None else None
        self.proj = Linear(inner, embed)

    def parts(self, heads: int) -> list[tuple[Linear, int]]:
        """The matrices that give q, k and v for a head count, each with how many of the three it gives."""
        if self.qkv is not None:
            return [(self.qkv, 3)]
        out = []
        for private, count in ((self.qk, 2), (self.v, 1)):
            assert private is not None
            layer = private["all" if "all" in private else str(heads)]
            assert isinstance(layer, Linear)
            out.append((layer, count))
        return out

    def forward(self, x: Tensor, view: View, visit: Visit, at: Pass) -> Tensor:
        heads = visit.values.int("heads")
        y = self.mixed(x, view, heads, self.factor(view[self.embed].width, view[self.inner].width, heads), at)
        return self.proj(y, view)

    def mixed(self, x: Tensor, view: View, heads: int, scale: float, at: Pass) -> Tensor:
        """What the tokens get from each other, (batch, tokens, attention width), before the projection."""
        packed = [in_heads(layer(x, view), n, heads) for layer, n in self.parts(heads)]
        if self.relative is not None:  # (batch, tokens, 3, heads, width)
            qkv = packed[0] if len(packed) == 1 else torch.cat(packed, 2)
            keys, values = self.relative(at.grid, at.native, qkv.dtype)
            return relative_attention(qkv, keys, values, scale, at.grid, self.relative.channels(at.grid))
        q, k, v = (part for y in packed for part in split_heads(y))  # each (batch, heads, tokens, width)
        y = attention(q[:, :, :1] if self.class_only else q, k, v, scale)
        return y.transpose(1, 2).flatten(2)

    def factor(self, embed: int, inner: int, heads: int) -> float:
        """The scale of the logits, for these widths."""
        if self.scale == "head":
            return float((inner // heads) ** -0.5)
        return float((embed // heads) ** -0.5) if self.scale == "embed" else float(self.scale)

    def alike(self, visit: Visit, at: Pass) -> Hashable:
        """The same for two sub-networks that compute the same here."""
        view = at.view
        return view[self.embed].segments, view[self.inner].segments, visit.values.int("heads"), at.grid, at.native

    def sortable(self, heads: Sequence[int]) -> tuple[Units, ...]:
        return (Units((self.inner,), whole_heads(self.inner, self.heads)),)

    def places(self, net: Network, stage: int, visit: Visit, at: Pass) -> Places:
        where = Places.coordinates(grid := net.stage_grid(stage, at.grid))
        tokens = torch.cat([where.new_zeros(1, net.prefix_tokens(stage), 3), where.flatten(1, 2)], 1)
        return Places.of(grid, tokens[:, :1] if self.class_only else tokens, tokens)

    def cost(self, widths: Widths, heads: Count, tokens: Count, grid: tuple[int, int]) -> Cost:
        inner, embed = width(self.inner, widths), width(self.embed, widths)
        queries = 1 if self.class_only else tokens
        cost = Cost(tokens * 3 * inner * embed, 3 * inner * embed + 3 * inner) + self.proj.cost(widths, queries)
        if self.relative is not None:
            return cost + self.relative.cost(heads, tokens, grid)
        return cost + Cost(2 * queries * tokens * inner, 0)


class Block(Cell):
    """x + Attention(LN(x)), then x + MLP(LN(x)).

    With ``class_only`` attention the class token alone is changed: it attends to itself and to the patches, which stay
    as they are."""

    def __init__(self, embed: Axis, attn: Attention, mlp: Mlp, eps: float = 1e-6, layer_scale: float | None = None):
        super().__init__()
        self.embed = embed
        self.norm1, self.attn, self.norm2, self.mlp = LayerNorm(embed, eps), attn, LayerNorm(embed, eps), mlp
        self.scale1 = Table(embed, fill=layer_scale) if layer_scale is not None else None
        self.scale2 = Table(embed, fill=layer_scale) if layer_scale is not None else None

    def bind(self, values: Mapping[str, Count]) -> dict[Axis, Count]:
        return {self.attn.inner: values["attn"], self.mlp.hidden: values["mlp"]}

    def forward(self, x: Tensor, visit: Visit, at: Pass) -> Tensor:
        return self.transform(self.attend(x, visit, at), visit, at)

    def attend(self, x: Tensor, visit: Visit, at: Pass) -> Tensor:
        y = self.attn(self.norm1(x, at.view), at.view, visit, at)
        return self._added(x, y, self.scale1, at.view)

    def transform(self, x: Tensor, visit: Visit, at: Pass) -> Tensor:
        changing = x[:, :1] if self.attn.class_only else x
        return self._added(x, self.mlp(self.norm2(changing, at.view), at.view), self.scale2, at.view)

    def _added(self, x: Tensor, y: Tensor, scale: Table | None, view: View) -> Tensor:
        """x + drop_path(scale * y); of the class token alone, where it alone changes."""
        y = self.dropped(y if scale is None else y * scale(view))
        return torch.cat([x[:, :1] + y, x[:, 1:]], 1) if self.attn.class_only else x + y

    def branches(self) -> Sequence[Branch]:
        return Branch(self.attend, self.attn.alike), Branch(self.transform, self._same_mlp)

    def _same_mlp(self, visit: Visit, at: Pass) -> Hashable:
        return at.view[self.embed].segments, at.view[self.mlp.hidden].segments

    def places(self, net: Network, stage: int, visit: Visit, at: Pass) -> Places:
        return self.attn.places(net, stage, visit, at)

    def cost(self, widths: Widths, values: Mapping[str, Count], tokens: Count, grid: tuple[Count, Count]) -> Cost:
        cost = self.attn.cost(widths, values["heads"], tokens, grid)
        cost += self.mlp.cost(widths, 1 if self.attn.class_only else tokens)
        for layer in (self.norm1, self.norm2, self.scale1, self.scale2):
            cost += layer.cost(widths) if layer is not None else NOTHING
        return cost
