"""Multi-head self-attention whose width, number of heads and input width are searched."""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superformer.elastic.axis import Axis, Pass, Step, Units, View
from superformer.elastic.layers import LayerNorm, Linear, Table, Widths, width
from superformer.kernels.attention import attend, unpack
from superformer.kernels.relative import RelativePosition
from superformer.space.costs import Cost, Count

SHARED = ("qkv", "v", "qk", "none")


class Attention(nn.Module):
    """softmax(q k^T scale) v, then a projection back (ViTAS v1, eqs. 3, 4, 7 and 8).

    ``shared`` says which of q, k and v are shared by all head counts; the others are private to each (v1, table 2:
    ``"v"`` is the paper's choice, group 7). A stand-alone network has one head count and one packed matrix, whatever
    its supernet shared.

    ``scale``: ``"head"`` is (attention width / heads)^-1/2; ``"embed"`` is (input width // heads)^-1/2 and a number is
    itself, as the released ViTAS networks and supernets need it."""

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
        """Queries, keys and values, packed as the matrices give them: the first of two halves. In a masked pass where
        heads of other widths lie elsewhere there are none yet, but the tokens: `attend` then takes each part of the
        batch at its own width."""
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
        packed = [
            y.view(*y.shape[:2], parts, heads, -1) for y, (_, parts) in zip(products, self.parts(heads), strict=True)
        ]
        if self.relative is not None:
            out: Tensor = self.relative(
                packed[0] if len(packed) == 1 else torch.cat(packed, 2), scale, at.grid, at.native
            )
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

    def sortable(self, heads: Sequence[int]) -> tuple[Units, ...]:
        return (Units.heads((self.inner,), self.heads),)


# The pre-norm transformer block (ViTAS v1, eqs. 1 and 2) and its class-attention form (CaiT; v1, appendix D).


class Mlp(nn.Module):
    """Two matrices with an exact GELU between them; the hidden width is searched."""

    def __init__(self, embed: Axis, hidden: Axis):
        super().__init__()
        self.hidden = hidden
        self.fc1 = Linear(embed, hidden)
        self.fc2 = Linear(hidden, embed)

    def widen(self, x: Tensor, view: View) -> Tensor:
        """The hidden units."""
        return view[self.hidden].keep(F.gelu(self.fc1(x, view)))

    def forward(self, x: Tensor, view: View) -> Tensor:
        out: Tensor = self.fc2(self.widen(x, view), view)
        return out

    def cost(self, widths: Widths, tokens: Count) -> Cost:
        return self.fc1.cost(widths, tokens) + self.fc2.cost(widths, tokens)

    def sortable(self, heads: Sequence[int]) -> tuple[Units, ...]:
        return (Units.channels(self.hidden),)


class Cell(nn.Module, abc.ABC):
    """One block of a stage, of any family. It runs in ``phases``: of several sub-networks in a batch all run the first,
    then all the second, so that the weights they share (and in the backward pass their gradients) stay in the cache:
    the fewer in a phase the better."""

    drop_path: float = 0.0

    def bind(self, values: Mapping[str, Count]) -> dict[Axis, Count]:
        """The widths of this block's own axes."""
        return {}

    @abc.abstractmethod
    def phases(self) -> Sequence[Phase]:
        """What it computes, step by step. The first gets the tokens and the last returns them; what one hands to the
        next is theirs."""

    def stretches(self) -> Sequence[Stretch]:
        """The phases, cut where nothing but tokens is handed on, so that sub-networks can go together for a while."""
        return (Stretch(self.phases()),)

    def forward(self, x: Tensor, view: View, step: Step, at: Pass) -> Tensor:
        state: Any = x
        for phase in self.phases():
            state = phase(state, view, step, at)
        out: Tensor = state
        return out

    @abc.abstractmethod
    def cost(self, widths: Widths, values: Mapping[str, Count], tokens: Count, grid: tuple[Count, Count]) -> Cost:
        """MACs and parameters on so many tokens, the patches among them in rows and columns."""

    def dropped(self, y: Tensor) -> Tensor:
        """A branch of this block with stochastic depth: for some pictures nothing, for the others more."""
        if not self.drop_path or not self.training:
            return y
        kept = 1 - self.drop_path
        return y * y.new_empty(y.shape[0], *(1,) * (y.ndim - 1)).bernoulli_(kept).div_(kept or 1)


Phase = Callable[[Any, View, Step, Pass], Any]


class Stretch(NamedTuple):
    """Phases from tokens to tokens. Sub-networks for which ``alike`` says the same compute the same there: they can be
    one batch."""

    phases: Sequence[Phase]
    alike: Callable[[View, Step, Pass], Hashable] | None = None


class Block(Cell):
    """x + Attention(LN(x)), then x + MLP(LN(x)).

    With ``class_only`` the class token alone is changed: it attends to itself and to the patches, which stay as they
    are."""

    def __init__(self, embed: Axis, attn: Attention, mlp: Mlp, eps: float = 1e-6, layer_scale: float | None = None):
        super().__init__()
        self.embed = embed
        self.norm1 = LayerNorm(embed, eps)
        self.attn = attn
        self.norm2 = LayerNorm(embed, eps)
        self.mlp = mlp
        self.scale1 = Table(embed, fill=layer_scale) if layer_scale is not None else None
        self.scale2 = Table(embed, fill=layer_scale) if layer_scale is not None else None

    def bind(self, values: Mapping[str, Count]) -> dict[Axis, Count]:
        return {self.attn.inner: values["attn"], self.mlp.hidden: values["mlp"]}

    def phases(self) -> Sequence[Phase]:
        return self.look, self.attend, self.widen, self.narrow

    def stretches(self) -> Sequence[Stretch]:
        look, attend, widen, narrow = self.phases()
        return Stretch((look, attend), self.attn.alike), Stretch((widen, narrow), self._same_mlp)

    def _same_mlp(self, view: View, step: Step, at: Pass) -> Hashable:
        return view[self.embed].segments, view[self.mlp.hidden].segments

    def look(self, x: Tensor, view: View, step: Step, at: Pass) -> tuple[Tensor, list[Tensor]]:
        """The tokens, and their queries, keys and values."""
        return x, self.attn.look(self.norm1(x, view), view, step, at)

    def attend(self, state: tuple[Tensor, list[Tensor]], view: View, step: Step, at: Pass) -> Tensor:
        """The tokens after the attention branch."""
        x, looks = state
        y = self._branch(self.attn.attend(looks, view, step, at), view, step, self.scale1)
        return torch.cat([x[:, :1] + y, x[:, 1:]], 1) if self.attn.class_only else x + y

    def widen(self, x: Tensor, view: View, step: Step, at: Pass) -> tuple[Tensor, Tensor]:
        """The tokens, and the hidden units of those that the MLP changes."""
        return x, self.mlp.widen(self.norm2(self._changing(x), view), view)

    def narrow(self, state: tuple[Tensor, Tensor], view: View, step: Step, at: Pass) -> Tensor:
        """The tokens after the MLP branch."""
        x, hidden = state
        new = self._changing(x) + self._branch(self.mlp.fc2(hidden, view), view, step, self.scale2)
        return torch.cat([new, x[:, 1:]], 1) if self.attn.class_only else new

    def _changing(self, x: Tensor) -> Tensor:
        return x[:, :1] if self.attn.class_only else x

    def _branch(self, y: Tensor, view: View, step: Step, scale: Table | None) -> Tensor:
        if scale is not None:
            y = y * scale(view)
        y = view[self.embed].keep(y)
        if step.gate is not None:
            y = y * step.gate
        return self.dropped(y)

    def cost(self, widths: Widths, values: Mapping[str, Count], tokens: Count, grid: tuple[Count, Count]) -> Cost:
        cost = self.norm1.cost(widths) + self.norm2.cost(widths)
        cost += self.attn.cost(widths, values["heads"], tokens, grid) + self.mlp.cost(
            widths, 1 if self.attn.class_only else tokens
        )
        for scale in (self.scale1, self.scale2):
            cost += scale.cost(widths) if scale is not None else Cost(0, 0)
        return cost
