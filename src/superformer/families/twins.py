"""Twins-SVT and the Twins-based spaces of ViTAS v2 (table 1, figure 6).

Stages of a patch embedding and blocks. A patch embedding is a convolution whose stride is its kernel (4, later 2) and a
layer norm; its width is the stage's. Each block is of one *type*: ``"local"`` attends within windows, ``"global"`` to
sub-sampled tokens; both have a number of heads, an attention width (of q, of k and of v) and the hidden width of the
MLP.

*Weights.* Table 1 lists Local and Global as parametric operations of a position beside the identity, each with an
attention and an MLP (Max_a, Max_m), and figure 3 draws operations as nodes of their own. So a supernet has, at each
position, a whole block for each type; ``weights={"type": "attention"}`` keeps only the attention private, and norms and
MLP are shared by the types. Head counts share all weights: they "evenly divide" the same features (appendix A.2).

*Positions.* As in Twins-SVT, each stage has one conditional position encoding, a depthwise 3x3 convolution with a skip,
after its first block. It belongs to the stage, whichever block runs first. The paper does not say what becomes of it in
a stage of identities only; here it then follows the patch embedding, so that every network has positions and every
stage the same parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from superformer.elastic.axis import Axis, Pass, Units, View, Visit, fixed
from superformer.elastic.conv import MapConv
from superformer.elastic.layers import Branch, Cell, Conv2d, Layer, LayerNorm, Linear, PerChoice, width
from superformer.elastic.positions import Places, at_size, join_windows, pad_to_windows, padded, split_windows
from superformer.elastic.transformer import Mlp, in_heads, whole_heads
from superformer.errors import SuperformerError
from superformer.families.network import Network, Numbers, Pyramid, Size, StageModule, Widths
from superformer.kernels.attention import attention, split_heads
from superformer.kernels.convolution import patches
from superformer.space import Space
from superformer.space.costs import Cost, Count
from superformer.space.schema import Schema, undivided_heads, undivided_pictures

BLOCK_CHOICES, WEIGHTS = frozenset({"type", "heads", "attn", "mlp"}), {"type": ("block", "attention")}
PRIVATE = {frozenset({"attention"}): {"type": "attention"}, frozenset({"attention", "mlp"}): {"type": "block"}}
"""To a type of block; local and global attention are different operations, and so always are."""
OPTIONS: dict[str, Any] = {
    "patch": 4,  # pixels of a patch in a row; each later stage halves the grid
    "ws": 7,  # side of the windows of local blocks
    "sr": 8,  # tokens in a row that global blocks of the first stage summarise; then 4, 2, 1
}
EPS = 1e-6
"""Of the norms of blocks and of the final norm."""
NORM_EPS = 1e-5
"""Of the norms of patch embeddings and of sub-sampled tokens, for which Twins-SVT keeps torch's default."""
TYPES = ("local", "global")
WORDS = {"type": TYPES}
LARGEST_WINDOW = 64


def ratio(first: int, stage: int) -> int:
    """How many tokens in a row the global blocks of a stage summarise."""
    return int(max(first >> stage, 1))


def types(space: Space, stage: int, position: int) -> tuple[Any, ...]:
    return space.stages[stage].blocks[position]["type"].values


def rules(space: Space) -> Iterable[str]:
    patch, ws, sr = (Twins.schema.option(space.options, name) for name in ("patch", "ws", "sr"))
    if ws > LARGEST_WINDOW:  # maps are padded to whole windows
        yield f"windows (ws) have at most {LARGEST_WINDOW} tokens in a row, not {ws}"
    yield from undivided_heads(space)
    for resolution in space.widths("resolution"):
        yield from undivided_pictures([resolution], patch)
        for i, stage in enumerate(space.stages):
            side, uses = resolution // patch >> i, any("global" in types(space, i, p) for p in range(stage.positions))
            if side < (ratio(sr, i) if uses else 1):
                yield f"a picture of {resolution} pixels is too small: stage {i} has {side} x {side} tokens"


class PatchConv(Conv2d):
    """A convolution whose stride is its kernel, from map to map; what does not fill a patch is left out."""

    def __init__(self, inp: Axis, out: Axis, side: int):
        super().__init__(inp, out, side, side)

    def under_kernel(self, x: Tensor) -> Tensor:
        if x.shape[1] < self.side or x.shape[2] < self.side:
            what = f"a map of {x.shape[1]} x {x.shape[2]} tokens is too small for patches of {self.side}"
            raise SuperformerError(f"{what}; use larger pictures")
        return patches(x, self.side).flatten(3)  # (batch, rows, columns, channels * side * side)


class SpatialAttention(Layer):
    """What both attentions share: an inner width (of q, of k and of v) in heads, and the matrix back to the tokens'
    width. They run on maps, (batch, rows, columns, channels)."""

    def __init__(self, embed: Axis, inner: Axis):
        super().__init__()
        self.embed, self.inner = embed, inner

    def scale(self, view: View, heads: int) -> float:
        return float((view[self.inner].width // heads) ** -0.5)

    def sortable(self, heads: Sequence[int]) -> tuple[Units, ...]:
        return (Units((self.inner,), whole_heads(self.inner, heads)),)


class LocalAttention(SpatialAttention):
    """Locally grouped: attention within windows of ``side`` x ``side`` tokens.

    Maps that do not divide into windows are padded with zero tokens below and to the right, which take part in the
    attention: so does Twins-SVT."""

    def __init__(self, embed: Axis, inner: Axis, side: int):
        super().__init__(embed, inner)
        self.side = side
        self.qkv = Linear(embed, inner, parts=3, tag="qkv")
        self.proj = Linear(inner, embed)

    def forward(self, x: Tensor, view: View, heads: int) -> Tensor:
        # q, k, v: (batch * windows, heads, side * side, width)
        q, k, v = split_windows(self.qkv(pad_to_windows(x, self.side), view), self.side, 3, heads)
        y = join_windows(attention(q, k, v, self.scale(view, heads)), self.side, x.shape[1], x.shape[2])
        return self.proj(y, view)

    def places(self, where: Tensor, grid: tuple[int, int]) -> Places:
        (own,) = split_windows(pad_to_windows(where, self.side), self.side, 1, 1)
        return Places.of(grid, own[:, 0], own[:, 0])

    def cost(self, widths: Widths, rows: Count, cols: Count) -> Cost:
        tokens = padded(rows, self.side) * padded(cols, self.side)
        pairs = Cost(2 * tokens * self.side**2 * width(self.inner, widths), 0)
        return self.qkv.cost(widths, tokens) + pairs + self.proj.cost(widths, rows * cols)


class GlobalAttention(SpatialAttention):
    """Global with sub-sampled keys: attention of every token to summaries of ``ratio`` x ``ratio`` tokens (to all
    tokens where the ratio is 1)."""

    def __init__(self, embed: Axis, inner: Axis, ratio: int):
        super().__init__(embed, inner)
        self.ratio = ratio
        self.q = Linear(embed, inner)
        self.kv = Linear(embed, inner, parts=2, tag="kv")
        self.sr = PatchConv(embed, embed, ratio) if ratio > 1 else None
        self.norm = LayerNorm(embed, NORM_EPS) if ratio > 1 else None
        self.proj = Linear(inner, embed)

    def forward(self, x: Tensor, view: View, heads: int) -> Tensor:
        tokens = few = x.flatten(1, 2)  # (batch, tokens, channels)
        if self.sr is not None and self.norm is not None:
            few = self.norm(self.sr(x, view).flatten(1, 2), view)
        (q,) = split_heads(in_heads(self.q(tokens, view), 1, heads))  # (batch, heads, tokens, width)
        k, v = split_heads(in_heads(self.kv(few, view), 2, heads))
        y = attention(q, k, v, self.scale(view, heads)).transpose(1, 2).flatten(2)
        return self.proj(y, view).view(x.shape)

    def places(self, where: Tensor, grid: tuple[int, int]) -> Places:
        keys = patches(where, self.ratio).mean((-1, -2)).flatten(1, 2)
        return Places.of(grid, where.flatten(1, 2), keys, side=self.ratio)

    def cost(self, widths: Widths, rows: Count, cols: Count) -> Cost:
        tokens, few = rows * cols, (rows // self.ratio) * (cols // self.ratio)
        cost = self.q.cost(widths, tokens) + self.kv.cost(widths, few) + self.proj.cost(widths, tokens)
        if self.sr is not None and self.norm is not None:
            cost += self.sr.cost(widths, few) + self.norm.cost(widths)
        return cost + Cost(2 * tokens * few * width(self.inner, widths), 0)


class Embedding(Layer):
    """Into a stage: patches as tokens, their norm; and the stage's position encoding, which the first block applies."""

    def __init__(self, inp: Axis, out: Axis, side: int):
        super().__init__()
        self.proj = PatchConv(inp, out, side)
        self.norm = LayerNorm(out, NORM_EPS)
        self.peg = MapConv(out, out, 3, bias=True, depthwise=True)

    def forward(self, x: Tensor, view: View) -> Tensor:
        return self.norm(self.proj(x, view), view)

    def positions(self, x: Tensor, view: View) -> Tensor:
        return x + self.peg(x, view)

    def cost(self, widths: Widths, tokens: Count) -> Cost:
        return self.proj.cost(widths, tokens) + self.norm.cost(widths) + self.peg.cost(widths, tokens)


class Operation(nn.Module):
    """A block of one type: x + Attention(LN(x)), then x + MLP(LN(x))."""

    def __init__(self, norm1: LayerNorm, attn: LocalAttention | GlobalAttention, norm2: LayerNorm, mlp: Mlp):
        super().__init__()
        self.norm1, self.attn, self.norm2, self.mlp = norm1, attn, norm2, mlp


class TwinsBlock(Cell):
    """A position of a stage: an operation for each type."""

    def __init__(self, operations: Mapping[Any, Operation], stage: int, entry: Embedding):
        super().__init__()
        self.op = PerChoice("type", operations)
        self.stage, self._entry = stage, (entry,)  # in a tuple: the stage's module, not this block's
        some = next(iter(operations.values()))
        self.inner, self.hidden = some.attn.inner, some.mlp.hidden

    def bind(self, values: Numbers) -> dict[Axis, Count]:
        return {self.inner: values["attn"], self.hidden: values["mlp"]}

    def operation(self, values: Mapping[str, object]) -> Operation:
        return cast(Operation, self.op[self.op.key(values)])

    def forward(self, x: Tensor, visit: Visit, at: Pass) -> Tensor:
        return self.transform(self.attend(x, visit, at), visit, at)

    def attend(self, x: Tensor, visit: Visit, at: Pass) -> Tensor:
        op, view = self.operation(visit.values), at.view
        return x + self.dropped(op.attn(op.norm1(x, view), view, visit.values.int("heads")))

    def transform(self, x: Tensor, visit: Visit, at: Pass) -> Tensor:
        """The MLP branch, and the position encoding after the first block."""
        op, view = self.operation(visit.values), at.view
        x = x + self.dropped(op.mlp(op.norm2(x, view), view))
        return self._entry[0].positions(x, view) if visit is at.stages[self.stage][0] else x

    def branches(self) -> Sequence[Branch]:
        return Branch(self.attend), Branch(self.transform)

    def places(self, net: Network, stage: int, visit: Visit, at: Pass) -> Places:
        where = Places.coordinates(grid := net.stage_grid(stage, at.grid))
        return self.operation(visit.values).attn.places(where, grid)

    def cost(self, widths: Widths, values: Numbers, tokens: Count, grid: Size) -> Cost:
        operations = {name: self.operation({"type": name}) for name in self.op}
        costs = {name: op.attn.cost(widths, *grid) for name, op in operations.items()}
        attn, *others = costs.values()
        if others:
            local = np.equal(values["type"], "local")
            attn = Cost(*(np.where(local, a, b) for a, b in zip(costs["local"], costs["global"], strict=True)))
        op = next(iter(operations.values()))  # norms and MLP are alike in all types
        return attn + op.norm1.cost(widths) + op.norm2.cost(widths) + op.mlp.cost(widths, tokens)


class Twins(Pyramid):
    """A network of local and global blocks (see the module)."""

    schema = Schema(
        "twins", frozenset(), frozenset({"width"}), BLOCK_CHOICES, OPTIONS, WEIGHTS, rules, private=PRIVATE, words=WORDS
    )

    @property
    def patch(self) -> int:
        return int(self.option("patch"))

    def token_channels(self) -> Sequence[Axis]:
        return self.widths

    def build(self) -> None:
        before = fixed("pixels", self.in_chans)
        for i, stage in enumerate(self.space.stages):
            entry = Embedding(before, self.widths[i], 2 if i else self.patch)
            self.stages.append(StageModule([self._block(i, p, entry) for p in range(stage.positions)], entry))
            before = self.widths[i]
        self.norm = LayerNorm(self.widths[-1], EPS)
        self.head = self.new_head(self.num_classes)

    def _block(self, stage: int, position: int, entry: Embedding) -> TwinsBlock:
        space, embed = self.space, self.widths[stage]
        at = (stage, position)
        inner, hidden = (Axis(name, space.widths(name, *at), space.unit(name, *at)) for name in ("attn", "mlp"))
        operations: dict[Any, Operation] = {}
        for name in types(space, stage, position):
            attn: LocalAttention | GlobalAttention
            if name == "local":
                attn = LocalAttention(embed, inner, self.option("ws"))
            else:
                attn = GlobalAttention(embed, inner, ratio(self.option("sr"), stage))
            if operations and space.weights.get("type") == "attention":
                other = next(iter(operations.values()))
                operations[name] = Operation(other.norm1, attn, other.norm2, other.mlp)
            else:
                operations[name] = Operation(LayerNorm(embed, EPS), attn, LayerNorm(embed, EPS), Mlp(embed, hidden))
        return TwinsBlock(operations, stage, entry)

    def embed(self, x: Tensor, at: Pass) -> Tensor:
        return at_size(x, at.canvas).permute(0, 2, 3, 1)

    def enter(self, stage: int, x: Tensor, at: Pass) -> Tensor:
        entry: Embedding = self.stage(stage).enter
        x = entry(x, at.view)
        return x if at.stages[stage] else entry.positions(x, at.view)

    def finish(self, x: Tensor, at: Pass) -> Tensor:
        return self.norm(x.flatten(1, -2), at.view)

    def pool(self, x: Tensor) -> Tensor:
        return x.mean(1)

    def stage_grid(self, stage: int, grid: Size) -> Size:
        """A patch embedding leaves out what is less than a patch."""
        return grid[0] // 2**stage, grid[1] // 2**stage

    def no_weight_decay(self) -> set[str]:
        """The position encodings, as in Twins-SVT."""
        return {name for name, _ in self.named_parameters() if ".peg." in name}

    def enter_cost(self, stage: int, widths: Widths, values: Numbers, size: Size) -> Cost:
        rows, cols = self.cost_grid(stage, values, size)
        entry: Embedding = self.stage(stage).enter
        return entry.cost(widths, rows * cols)

    def exit_cost(self, widths: Widths, values: Numbers, size: Size) -> Cost:
        return self.norm.cost(widths) + self.head_cost(widths)
