"""The two attentions of Twins-SVT on maps, (batch, rows, columns, channels): locally grouped, and global with sub-sampled keys."""

from __future__ import annotations

from torch import Tensor, nn

from superformer.elastic.attend import attend, unpack
from superformer.elastic.axis import Axis, View
from superformer.elastic.count import Cost, Count
from superformer.elastic.layers import Conv2d, LayerNorm, Linear, Widths, width
from superformer.elastic.windows import cut, join, pad, padded, patches
from superformer.errors import SuperformerError

NORM_EPS = 1e-5
"""Twins-SVT keeps torch's default for the norms of patch embeddings and of sub-sampled tokens."""


class PatchConv(Conv2d):
    """A convolution whose stride is its kernel, from map to map; rows and columns that do not fill a patch are left out."""

    def __init__(self, inp: Axis, out: Axis, side: int):
        super().__init__(inp, out, side, side)

    def forward(self, x: Tensor, view: View) -> Tensor:  # type: ignore[override]
        rows, cols = x.shape[1] // self.kernel, x.shape[2] // self.kernel
        if not rows or not cols:
            raise SuperformerError(
                f"a map of {x.shape[1]} x {x.shape[2]} tokens is too small for patches of {self.kernel}; use larger pictures"
            )
        return super().forward(x, view)

    def _patches(self, x: Tensor) -> Tensor:
        return patches(x, self.kernel).flatten(3)


class SpatialAttention(nn.Module):
    """What both attentions share: an inner width (of q, of k and of v) in heads, and the matrix back to the tokens' width."""

    def __init__(self, embed: Axis, inner: Axis):
        super().__init__()
        self.embed, self.inner = embed, inner

    def scale(self, view: View, heads: int) -> float:
        return float((view[self.inner].width // heads) ** -0.5)


class LocalAttention(SpatialAttention):
    """Attention within windows of ``side`` x ``side`` tokens.

    Maps that do not divide into windows are padded with zero tokens below and to the right, which take part in the attention: so does
    Twins-SVT.
    """

    def __init__(self, embed: Axis, inner: Axis, side: int):
        super().__init__(embed, inner)
        self.side = side
        self.qkv = Linear(embed, inner, parts=3, tag="qkv")
        self.proj = Linear(inner, embed)

    def forward(self, x: Tensor, view: View, heads: int) -> Tensor:
        q, k, v = cut(self.qkv(pad(x, self.side), view), self.side, 3, heads)
        y = join(attend(q, k, v, self.scale(view, heads)), self.side, x.shape[1], x.shape[2])
        out: Tensor = self.proj(y, view)
        return out

    def cost(self, widths: Widths, rows: Count, cols: Count) -> Cost:
        tokens = padded(rows, self.side) * padded(cols, self.side)
        pairs = Cost(2 * tokens * self.side**2 * width(self.inner, widths), 0)
        return self.qkv.cost(widths, tokens) + pairs + self.proj.cost(widths, rows * cols)


class GlobalAttention(SpatialAttention):
    """Attention of every token to summaries of ``ratio`` x ``ratio`` tokens (to all tokens where the ratio is 1)."""

    def __init__(self, embed: Axis, inner: Axis, ratio: int):
        super().__init__(embed, inner)
        self.ratio = ratio
        self.q = Linear(embed, inner)
        self.kv = Linear(embed, inner, parts=2, tag="kv")
        self.sr = PatchConv(embed, embed, ratio) if ratio > 1 else None
        self.norm = LayerNorm(embed, NORM_EPS) if ratio > 1 else None
        self.proj = Linear(inner, embed)

    def forward(self, x: Tensor, view: View, heads: int) -> Tensor:
        tokens = x.flatten(1, 2)
        few = tokens
        if self.sr is not None and self.norm is not None:
            few = self.norm(self.sr(x, view).flatten(1, 2), view)
        (q,) = unpack(self.q(tokens, view).unflatten(2, (1, heads, -1)))
        k, v = unpack(self.kv(few, view).unflatten(2, (2, heads, -1)))
        y = attend(q, k, v, self.scale(view, heads)).transpose(1, 2).flatten(2)
        out: Tensor = self.proj(y, view).view(x.shape)
        return out

    def cost(self, widths: Widths, rows: Count, cols: Count) -> Cost:
        tokens, few = rows * cols, (rows // self.ratio) * (cols // self.ratio)
        cost = self.q.cost(widths, tokens) + self.kv.cost(widths, few) + self.proj.cost(widths, tokens)
        if self.sr is not None and self.norm is not None:
            cost += self.sr.cost(widths, few) + self.norm.cost(widths)
        return cost + Cost(2 * tokens * few * width(self.inner, widths), 0)
