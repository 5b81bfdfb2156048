"""The pre-norm transformer block (ViTAS v1, eqs. 1 and 2) and its class-attention form (CaiT; v1, appendix D)."""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superformer.elastic.attention import Attention
from superformer.elastic.axis import Axis, View
from superformer.elastic.count import Cost, Count
from superformer.elastic.layers import LayerNorm, Linear, Table, Widths
from superformer.elastic.pass_ import Pass, Step


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


class Cell(nn.Module, abc.ABC):
    """One block of a stage, of any family. It runs in ``phases``: of several sub-networks in a batch all run the first, then all the
    second, so that the weights they share (and in the backward pass their gradients) stay in the cache: the fewer in a phase the better."""

    drop_path: float = 0.0

    def bind(self, values: Mapping[str, Count]) -> dict[Axis, Count]:
        """The widths of this block's own axes."""
        return {}

    @abc.abstractmethod
    def phases(self) -> Sequence[Phase]:
        """What it computes, step by step. The first gets the tokens and the last returns them; what one hands to the next is theirs."""

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
    """Phases from tokens to tokens. Sub-networks for which ``alike`` says the same compute the same there: they can be one batch."""

    phases: Sequence[Phase]
    alike: Callable[[View, Step, Pass], Hashable] | None = None


class Block(Cell):
    """x + Attention(LN(x)), then x + MLP(LN(x)).

    With ``class_only`` the class token alone is changed: it attends to itself and to the patches, which stay as they are.
    """

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
        cost += self.attn.cost(widths, values["heads"], tokens, grid) + self.mlp.cost(widths, 1 if self.attn.class_only else tokens)
        for scale in (self.scale1, self.scale2):
            cost += scale.cost(widths) if scale is not None else Cost(0, 0)
        return cost
