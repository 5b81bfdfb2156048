"""Multi-head self-attention whose width, number of heads and input width are searched."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor, nn

from superformer.elastic.attend import attend, unpack
from superformer.elastic.axis import Axis, View
from superformer.elastic.count import Cost, Count
from superformer.elastic.layers import Linear, Widths, width
from superformer.elastic.pass_ import Pass, Step
from superformer.elastic.relative import RelativePosition

SHARED = ("qkv", "v", "qk", "none")


class Attention(nn.Module):
    """softmax(q k^T scale) v, then a projection back (ViTAS v1, eqs. 3, 4, 7 and 8).

    ``shared`` says which of q, k and v are shared by all head counts; the others are private to each (v1, table 2: ``"v"`` is the paper's
    choice, group 7). A stand-alone network has one head count and one packed matrix, whatever its supernet shared.

    ``scale``: ``"head"`` is (attention width / heads)^-1/2; ``"embed"`` is (input width // heads)^-1/2 and a number is itself, as the
    released ViTAS networks and supernets need it.
    """

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
            self.qk = nn.ModuleDict({k: Linear(embed, inner, parts=2, tag="qk") for k in self._keys("qk" in shared)})
            self.v = nn.ModuleDict({k: Linear(embed, inner) for k in self._keys(shared == "v")})
        self.relative = RelativePosition(relative, inner.size // max(heads)) if relative is not None else None
        self.proj = Linear(inner, embed)

    def _keys(self, shared: bool) -> list[str]:
        return ["all"] if shared else [str(h) for h in self.heads]

    @staticmethod
    def _of(private: nn.ModuleDict, heads: int) -> Linear:
        layer = private["all"] if "all" in private else private[str(heads)]
        assert isinstance(layer, Linear)
        return layer

    def parts(self, heads: int) -> list[tuple[Linear, int]]:
        """The matrices that give q, k and v for a head count, each with how many of the three it gives."""
        if self.qkv is not None:
            return [(self.qkv, 3)]
        assert self.qk is not None
        assert self.v is not None
        return [(self._of(self.qk, heads), 2), (self._of(self.v, heads), 1)]

    def look(self, x: Tensor, view: View, step: Step, at: Pass) -> list[Tensor]:
        """Queries, keys and values, packed as the matrices give them: the first of two halves. In a masked pass where heads of other
        widths lie elsewhere there are none yet, but the tokens: `attend` then takes each part of the batch at its own width."""
        if self._apart(view, step):
            return [x]
        return self._products(x, view, self._heads(step))

    def attend(self, looks: list[Tensor], view: View, step: Step, at: Pass) -> Tensor:
        """What the tokens get from each other: the second half."""
        if self._apart(view, step):
            return self._project(self._part_by_part(looks[0], view, step, at), view)
        heads = self._heads(step)
        factor = self._factor(view[self.embed].width, view[self.inner].width, heads)
        return self._project(view[self.inner].keep(self._mix(looks, heads, factor, at)), view)

    def alike(self, view: View, step: Step, at: Pass) -> Hashable:
        """The same for two sub-networks that compute the same here."""
        return view[self.embed].segments, view[self.inner].segments, step.values.int("heads"), at.grid, at.native

    def _heads(self, step: Step) -> int:
        """In a masked pass all; those that are not there are zeroed."""
        return step.values.int("heads") if step.parts is None else self.inner.size // self.inner.unit

    def _apart(self, view: View, step: Step) -> bool:
        """Whether the parts of a masked batch cannot attend together."""
        together = self.inner.unit > 1 and self.qkv is not None and self.scale == "head" and not view.joint
        return step.parts is not None and not together

    def _part_by_part(self, x: Tensor, view: View, step: Step, at: Pass) -> Tensor:
        outs = []
        for part in step.parts or ():
            rows = x[part.rows]
            if part.values is None:
                outs.append(rows.new_zeros(len(rows), 1 if self.class_only else rows.shape[1], self.inner.size))
                continue
            own, heads = part.view[self.inner], part.values.int("heads")
            mixed = View({**view.selections, self.inner: own}, part.view.joint, part.view.side)
            factor = self._factor(part.view[self.embed].width, own.width, heads)
            outs.append(own.place(self._mix(self._products(rows, mixed, heads), heads, factor, at), self.inner.size))
        return torch.cat(outs)

    def _project(self, x: Tensor, view: View) -> Tensor:
        out: Tensor = self.proj(x, view)
        return out

    def _factor(self, embed: int, inner: int, heads: int) -> float:
        if self.scale == "head":
            return float((inner // heads) ** -0.5)
        return float((embed // heads) ** -0.5) if self.scale == "embed" else float(self.scale)

    def _products(self, x: Tensor, view: View, heads: int) -> list[Tensor]:
        return [layer(x, view) for layer, _ in self.parts(heads)]

    def _mix(self, products: list[Tensor], heads: int, scale: float, at: Pass) -> Tensor:
        packed = [y.view(*y.shape[:2], parts, heads, -1) for y, (_, parts) in zip(products, self.parts(heads), strict=True)]
        if self.relative is not None:
            out: Tensor = self.relative(packed[0] if len(packed) == 1 else torch.cat(packed, 2), scale, at.grid, at.native)
            return out
        q, k, v = (part for y in packed for part in unpack(y))
        if self.class_only:
            q = q[:, :, :1]
        return attend(q, k, v, scale).transpose(1, 2).flatten(2)

    def cost(self, widths: Widths, heads: Count, tokens: Count, grid: tuple[int, int]) -> Cost:
        inner, embed = width(self.inner, widths), width(self.embed, widths)
        queries = 1 if self.class_only else tokens
        cost = Cost(tokens * 3 * inner * embed, 3 * inner * embed + 3 * inner) + self.proj.cost(widths, queries)
        if self.relative is not None:
            return cost + self.relative.cost(widths, heads, tokens, grid)
        return cost + Cost(2 * queries * tokens * inner, 0)
