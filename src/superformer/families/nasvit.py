"""The transformer blocks of NASViT's networks (figure 6 and appendix B.1), on maps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superformer.elastic.axis import Axis, Pass, Step, Units, View, fixed
from superformer.elastic.conv import BatchNorm, MapConv, kernel_axis
from superformer.elastic.layers import LayerNorm, Linear, PerChoice, Table, Widths, width
from superformer.elastic.mbconv import MBConv, MBConvCell, divisible
from superformer.elastic.positions import lookup
from superformer.elastic.transformer import Cell, Phase
from superformer.errors import SuperformerError
from superformer.families.network import Network, StageModule
from superformer.kernels.attention import halved, talking, unpack
from superformer.kernels.slices import take
from superformer.space import Space
from superformer.space.arch import Arch
from superformer.space.costs import NOTHING, Cost, Count
from superformer.space.schema import Schema


class MapNorm(LayerNorm):
    """One mean and one variance for all tokens and channels of a picture, as in the released networks."""

    def forward(self, x: Tensor, view: View) -> Tensor:  # type: ignore[override]
        out = F.layer_norm(x, x.shape[1:], eps=self.eps)
        weight, bias = self.selected(view, "weight", "bias")
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

    def sortable(self, heads: Sequence[int]) -> tuple[Units, ...]:
        return (Units.channels(self.fc1.dims["weight"][0]),)


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
        self.scales = nn.ModuleDict(
            {name: self._new_scale() for name in (("attn", "mlp1", "mlp2") if self.by_width else ("attn", "mlp1"))}
        )

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
            raise SuperformerError(
                f"a map of {rows} x {cols} does not divide into {windows} windows; use another picture size"
            )
        talks = [layer.wanted(name, view) for layer in (self.talk1, self.talk2) for name in ("weight", "bias")]
        kernel, table, w1, b1, w2, b2 = take(
            self.v_conv.wanted("weight", view), self.positions.wanted("weight", view), *talks
        )
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
        attention = Cost(
            pairs * (channels + 2 * heads * heads + 4 * channels), self.talk1.params(widths) + self.talk2.params(widths)
        )
        cost = attention + self.qk.cost(widths, tokens) + self.v.cost(widths, tokens) + self.v_conv.cost(widths, tokens)
        cost += self.proj.cost(widths, tokens) + self.positions.cost(widths)
        for norm in (self.norm1, self.norm2, self.norm3):
            cost += norm.cost(widths)
        for mlp in (self.mlp1, self.mlp2):
            cost += mlp.cost(widths, tokens)
        return cost + Cost(0, len(self.scales) * channels)

    def sortable(self, heads: Sequence[int]) -> tuple[Units, ...]:
        return (Units((self.axes.qk, self.axes.v, self.axes.heads), self.axes.heads.size),)


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


# NASViT's hybrid networks (Gong et al., table 1 and appendix B), and with convolution stages alone AlphaNet's.
#
# A convolution stem, stages of inverted residual blocks (MBConv), stages of transformer blocks, MobileNetV3's
# efficient last stage. For each stage its width and depth; kernel size and expansion of its MBConvs; of transformer
# stages the hidden width of the MLPs and the number of windows. Network-wide: the input size, the stem's and the
# head's width. Depth counts the layers after the stage's first one, which changes the size of the map and the width,
# and which in a transformer stage is a convolution too.
#
# The released code departs from the paper; every difference is an option, the paper's reading being the default
# (`OPTIONS`).
#
# **Batch norm.** In training, every sub-network is normalised by the statistics of its own pictures: ``net(x, [a, b])``
# gives each part of the batch what ``net(part, arch)`` would give it. A supernet keeps one set of running statistics,
# which every pass moves; they are no sub-network's own. Extract a network and call `superformer.recalibrate` before it
# is used.


OPTIONS: dict[str, Any] = {
    "stages": "ccctttt",  # of convolutions, of transformer blocks
    "strides": "1222212",
    "squeeze_excite": "0010000",
    "head_dim": 8,  # channels of a head
    "norm": "token",  # layer norm of each token; released: "map", of all tokens and channels together
    "scale": "width",  # a vector for each width and layer (section 3); released: "tokens", see TransformerCell
    "down": "depthwise",  # into a transformer stage: a 3x3 depthwise convolution (table 1); released: "mbconv"
    "activation": "after",  # of the attention, after its projection (appendix B.1); released: "before"
    "mlp_conv": True,  # a depthwise convolution inside the MLPs (appendix B.1); released: none
    "resize": True,  # pictures are resized to the architecture's input size; off: they run at their own
}
RELEASED = {"norm": "map", "scale": "tokens", "down": "mbconv", "activation": "before", "mlp_conv": False}
"""The options that make the released networks."""

FINAL = 6
"""Expansion of the last stage (table 1: MBPool)."""


def _stage_choices(space: Space, stage: int) -> frozenset[str]:
    kinds = NasVit.schema.option(space.options, "stages")
    if stage < len(kinds) and kinds[stage] == "t":
        opening = {"kernel", "expand"} if NasVit.schema.option(space.options, "down") == "mbconv" else set()
        return frozenset({"width", "mlp", "windows", *opening})
    return frozenset({"width", "kernel", "expand"})


def rules(space: Space) -> Iterable[str]:
    def option(name: str) -> Any:
        return NasVit.schema.option(space.options, name)

    for name, letters in (("stages", "ct"), ("strides", "12"), ("squeeze_excite", "01")):
        if len(option(name)) != len(space.stages) or set(option(name)) - set(letters):
            yield f"the option {name}={option(name)!r} must have a letter for each of {len(space.stages)} stages: {' or '.join(letters)}"
            return
    words = {
        "norm": ("token", "map"),
        "scale": ("width", "tokens"),
        "down": ("depthwise", "mbconv"),
        "activation": ("after", "before"),
    }
    for name, known in words.items():
        if option(name) not in known:
            yield f"the option {name} is {' or '.join(known)}, not {option(name)!r}"
    for i, kind in enumerate(option("stages")):
        names = space.stages[i].choices
        if "expand" in names and 1 in space.widths("expand", i) and len(space.widths("expand", i)) > 1:
            yield f"stage {i}: an expansion of 1 has no first convolution and cannot be chosen beside others"
        if "kernel" in names and (bad := [k for k in space.widths("kernel", i) if k % 2 == 0]):
            yield f"stage {i}: kernels have odd sizes, not {bad[0]}"
        if kind != "t":
            continue
        if bad := [w for w in space.widths("width", i) if w % option("head_dim")]:
            yield f"stage {i}: a width of {bad[0]} is no multiple of the heads' {option('head_dim')} channels"
        for windows in space.widths("windows", i):
            side = math.isqrt(windows)
            for size in space.widths("resolution"):
                if side * side != windows or NasVit.map_sizes(size, option("strides"))[i] % side:
                    yield f"stage {i}: its map at {size} pixels cannot be cut into {windows} square windows"


@dataclass(frozen=True)
class StageAxes:
    """The axes of one stage."""

    width: Axis
    enter_mid: Axis | None = None
    enter_se: Axis | None = None
    mid: Axis | None = None
    se: Axis | None = None
    kernel: Axis | None = None
    tokens: TransformerAxes | None = None


class NasVit(Network):
    """A hybrid of convolutions and attention (see the module)."""

    schema = Schema(
        "nasvit",
        choices=frozenset({"stem", "head"}),
        stage=_stage_choices,
        block=frozenset(),
        options=OPTIONS,
        rules=rules,
    )
    feature_level = "stage"
    alike = True
    depth_matters = True
    any_size = True

    @staticmethod
    def map_sizes(resolution: Count, strides: str) -> list[Count]:
        """The side of each stage's map."""
        out, side = [], (resolution + 1) // 2
        for stride in strides:
            side = (side + 1) // 2 if stride == "2" else side
            out.append(side)
        return out

    # --- modules ---

    def build(self) -> None:
        space = self.space
        self.stem_axis, self.head_axis = (Axis(name, space.widths(name)) for name in ("stem", "head"))
        self.stem = MapConv(fixed("picture", self.in_chans), self.stem_axis, 3, 2)
        self.stem_norm = BatchNorm(self.stem_axis)
        self.axes: list[StageAxes] = []
        before = self.stem_axis
        for i, stage in enumerate(space.stages):
            axes = self._axes(i, before)
            self.axes.append(axes)
            self.stages.append(
                StageModule([self._block(i, axes) for _ in range(stage.positions)], self._opening(i, before, axes))
            )
            before = axes.width
        self.final_axis = Axis("final", tuple(FINAL * w for w in before.widths))
        self.final = MapConv(before, self.final_axis, 1)
        self.final_norm = BatchNorm(self.final_axis)
        self.mix = Linear(self.final_axis, self.head_axis, bias=False)
        self.head = self.new_head(self.num_classes)

    def _axes(self, i: int, before: Axis) -> StageAxes:
        space, names = self.space, self.space.stages[i].choices
        width = Axis(f"width{i}", space.widths("width", i))
        tokens = self._transformer_axes(i, width) if self.option("stages")[i] == "t" else None
        if "expand" not in names:
            return StageAxes(width, tokens=tokens)
        expand = space.widths("expand", i)

        def products(axis: Axis, name: str) -> Axis | None:
            return (
                None
                if expand == (1,)
                else Axis(name, tuple(sorted({divisible(w * t) for w in axis.widths for t in expand})))
            )

        def squeezed(axis: Axis) -> Axis | None:
            if self.option("squeeze_excite")[i] == "0":
                return None
            return Axis("se", tuple(sorted({divisible(m // 4) for m in axis.widths})))

        enter_mid, mid = products(before, "enter_mid"), products(width, "mid")
        kernel = kernel_axis("kernel", space.widths("kernel", i))
        return StageAxes(width, enter_mid, squeezed(enter_mid or before), mid, squeezed(mid or width), kernel, tokens)

    def _transformer_axes(self, i: int, width: Axis) -> TransformerAxes:
        space, dim = self.space, self.option("head_dim")
        sides = [self.map_sizes(size, self.option("strides"))[i] for size in space.widths("resolution")]
        parts = [math.isqrt(n) for n in space.widths("windows", i)]
        return TransformerAxes(
            width,
            qk=Axis("qk", width.widths, dim),
            heads=Axis("heads", tuple(w // dim for w in width.widths)),
            v=Axis("v", tuple(4 * w for w in width.widths), 4 * dim),
            mlp=Axis("mlp", space.widths("mlp", i)),
            distances=Axis(
                "distances", tuple(sorted({2 * (s // p) - 1 for s in sides for p in parts})), kind="centred"
            ),
            depth=Axis("depth", tuple(d for d in space.stages[i].depths if d) or (1,), kind="private"),
            count=Axis("count", tuple(sorted({s * s % 8 for s in sides})), kind="private"),
        )

    def _opening(self, i: int, before: Axis, axes: StageAxes) -> MBConv:
        kernel = axes.kernel or fixed("kernel", 3)
        return MBConv(before, axes.width, axes.enter_mid, axes.enter_se, kernel, int(self.option("strides")[i]))

    def _block(self, i: int, axes: StageAxes) -> Cell:
        if axes.tokens is None:
            assert axes.kernel is not None
            return MBConvCell(MBConv(axes.width, axes.width, axes.mid, axes.se, axes.kernel, 1))
        return TransformerCell(
            axes.tokens,
            i,
            {name: self.option(name) for name in ("norm", "scale", "activation", "mlp_conv", "head_dim")},
        )

    def new_head(self, num_classes: int) -> Linear | None:
        return Linear(self.head_axis, fixed("classes", num_classes)) if num_classes else None

    def bind(self, choices: Mapping[str, Count], stages: Sequence[Mapping[str, Count]]) -> dict[Axis, Count]:
        out: dict[Axis, Count] = {self.stem_axis: choices["stem"], self.head_axis: choices["head"]}
        before = choices["stem"]
        sizes = self.map_sizes(choices["resolution"], self.option("strides"))
        for i, (axes, own) in enumerate(zip(self.axes, stages, strict=True)):
            width = own["width"]
            out[axes.width] = width
            if axes.kernel is not None:
                out[axes.kernel] = own["kernel"]
                for inp, mid, se in ((before, axes.enter_mid, axes.enter_se), (width, axes.mid, axes.se)):
                    middle = divisible(inp * own["expand"]) if mid is not None else inp
                    out |= {mid: middle} if mid is not None else {}
                    out |= {se: divisible(middle // 4)} if se is not None else {}
            if axes.tokens is not None:
                side = (
                    np.rint(np.sqrt(own["windows"])).astype(int)
                    if isinstance(own["windows"], np.ndarray)
                    else math.isqrt(own["windows"])
                )
                depth = own.get("depth") or axes.tokens.depth.widths[0]
                out |= axes.tokens.bind(width, own["mlp"], self.option("head_dim"), sizes[i], side, depth)
            before = width
        out[self.final_axis] = FINAL * before
        return out

    # --- the pass ---

    def canvas(self, values: Mapping[str, Count], size: tuple[Count, Count]) -> tuple[Count, Count]:
        return (values["resolution"], values["resolution"]) if self.option("resize") else size

    def grid(self, values: Mapping[str, Count], height: Count, width: Count) -> tuple[Count, Count]:
        return halved((height, width))

    def embed(self, x: Tensor, at: Pass) -> Tensor:
        size = at.arch.resolution
        if self.option("resize") and tuple(x.shape[-2:]) != (size, size):
            x = F.interpolate(x, size=(size, size), mode="bicubic", align_corners=False)
        x = x.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
        if not torch.is_grad_enabled() and not self.stem_norm.training:
            return F.silu(self.stem.convolve(x, *self.stem_norm.folded(self.stem, at.view)), inplace=True)
        out: Tensor = self.stem_norm(self.stem(x, at.view), at.view, swish=True)
        return out

    def enter(self, stage: int, x: Tensor, at: Pass) -> Tensor:
        opening = self.stage(stage).enter
        assert isinstance(opening, MBConv)
        out: Tensor = opening(x, at.view)
        return out

    def finish(self, x: Tensor, at: Pass) -> Tensor:
        out: Tensor = self.final_norm(self.final(x, at.view), at.view, swish=True)
        return out

    def pool(self, x: Tensor) -> Tensor:
        return x.mean((1, 2))

    def classify(self, x: Tensor, at: Pass) -> Tensor:
        mixed = F.silu(self.mix(self.pool(x), at.view))
        out: Tensor = self.head(mixed, at.view) if self.head is not None else mixed
        return out

    # --- timm ---

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        at = self.plan(self._arch(None), (self.space.img_size, self.space.img_size))
        mixed = F.silu(self.mix(self.pool(x), at.view))
        return mixed if pre_logits or self.head is None else self.head(mixed, at.view)

    @property
    def num_features(self) -> int:
        return self.final_axis.size

    @property
    def head_hidden_size(self) -> int:
        return self.head_axis.size

    def stage_grid(self, stage: int, grid: tuple[int, int]) -> tuple[int, int]:
        return halved(grid, self.option("strides")[: stage + 1].count("2"))

    def feature_width(self, arch: Arch, stage: int) -> int:
        return arch.stages[stage].choices.int("width")

    def reduction(self, arch: Arch, stage: int) -> int:
        return int(2 * math.prod(int(s) for s in self.option("strides")[: stage + 1]))

    def feature_stages(self, arch: Arch) -> Sequence[int]:
        """The last stage of each of the strides 4, 8, 16 and 32 (of all strides, in a network that has none of
        these)."""
        last = {self.reduction(arch, i): i for i in range(len(arch.stages))}
        return sorted(i for r, i in last.items() if r in (4, 8, 16, 32)) or sorted(last.values())

    # --- cost ---

    def enter_cost(
        self, stage: int, widths: Mapping[Axis, Count], values: Mapping[str, Count], size: tuple[Count, Count]
    ) -> Cost:
        before, after = (
            math.prod(self.cost_grid(i, values, size)) for i in (stage - 1, stage)
        )  # stage -1: after the stem
        opening = self.stage(stage).enter
        assert isinstance(opening, MBConv)
        cost = opening.cost(widths, before, after)
        if stage == 0:
            cost += self.stem.cost(widths, before) + self.stem_norm.cost(widths)
        return cost

    def exit_cost(self, widths: Mapping[Axis, Count], values: Mapping[str, Count], size: tuple[Count, Count]) -> Cost:
        rows, cols = self.cost_grid(len(self.stages) - 1, values, size)
        cost = self.final.cost(widths, rows * cols) + self.final_norm.cost(widths) + self.mix.cost(widths, 1)
        return cost + self.head_cost(widths)
