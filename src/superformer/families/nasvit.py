"""NASViT's hybrid networks (Gong et al., table 1 and appendix B), and with convolution stages alone AlphaNet's.

A convolution stem, stages of inverted residual blocks (MBConv), stages of transformer blocks, MobileNetV3's efficient
last stage. For each stage its width and depth; kernel size and expansion of its MBConvs; of transformer stages the
hidden width of the MLPs and the number of windows. Network-wide: the input size, the stem's and the head's width. Depth
counts the layers after the stage's first one, which changes the size of the map and the width, and which in a
transformer stage is a convolution too.

The released code departs from the paper; each difference is an option, by default the paper's reading (`OPTIONS`).

**Batch norm.** In training, every sub-network is normalised by the statistics of its own pictures: ``net(x, [a, b])``
gives each part of the batch what ``net(part, arch)`` would give it. A supernet keeps one set of running statistics,
which every pass moves; they are no sub-network's own. Extract a network and call `superformer.recalibrate` before it is
used."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from superformer.elastic.axis import Axis, Pass, fixed
from superformer.elastic.conv import BatchNorm, MapConv, kernel_axis
from superformer.elastic.hybrid import MBConv, MBConvCell, TransformerAxes, TransformerCell, divisible
from superformer.elastic.layers import Cell, Linear
from superformer.elastic.positions import halved
from superformer.families.network import Network, Numbers, Size, StageModule, Widths
from superformer.kernels.convolution import channels_last
from superformer.space import Arch, Space
from superformer.space.costs import Cost, Count
from superformer.space.schema import Schema

OPTIONS: dict[str, Any] = {
    "stages": "ccctttt",  # of convolutions, of transformer blocks
    "strides": "1222212",
    "squeeze_excite": "0010000",
    "head_dim": 8,  # channels of a head
    "norm": "token",  # layer norm of each token; released: "map", of all tokens and channels together
    "scale": "width",  # a vector for each width and layer (section 3); released: "tokens"; "shared", "none" (table 7)
    "down": "depthwise",  # into a transformer stage: a 3x3 depthwise convolution (table 1); released: "mbconv"
    "activation": "after",  # of the attention, after its projection (appendix B.1); released: "before"
    "mlp_conv": True,  # a depthwise convolution inside the MLPs (appendix B.1); released: none
    "resize": True,  # to classify, pictures are resized to the architecture's input size; off: they run at their own
}
WORDS = {"norm": ("token", "map"), "scale": ("width", "tokens", "shared", "none"), "down": ("depthwise", "mbconv")}
WORDS |= {"activation": ("after", "before")}
RELEASED = {"norm": "map", "scale": "tokens", "down": "mbconv", "activation": "before", "mlp_conv": False}
"""The options that make the released networks."""

LARGEST_KERNEL, LARGEST_EXPANSION = 63, 64
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
            wanted = f"a letter for each of {len(space.stages)} stages: {' or '.join(letters)}"
            yield f"the option {name}={option(name)!r} must have {wanted}"
            return
    for name, known in WORDS.items():
        if option(name) not in known:
            yield f"the option {name} is {' or '.join(known)}, not {option(name)!r}"
    for i, kind in enumerate(option("stages")):
        names = space.stages[i].choices
        if "expand" in names and 1 in space.widths("expand", i) and len(space.widths("expand", i)) > 1:
            yield f"stage {i}: an expansion of 1 has no first convolution and cannot be chosen beside others"
        if "kernel" in names and (bad := [k for k in space.widths("kernel", i) if k % 2 == 0 or k > LARGEST_KERNEL]):
            yield f"stage {i}: kernels have odd sizes up to {LARGEST_KERNEL}, not {bad[0]}"
        if "expand" in names and space.widths("expand", i)[-1] > LARGEST_EXPANSION:
            yield f"stage {i}: the largest expansion is {LARGEST_EXPANSION}, not {space.widths('expand', i)[-1]}"
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
        "nasvit", frozenset({"stem", "head"}), _stage_choices, block=frozenset(), options=OPTIONS, rules=rules,
        widths={"stem": 1, "head": 1, "width": "head_dim", "mlp": 1}, opens=1,
    )  # fmt: skip
    feature_level = "stage"
    equal_blocks = True
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
        space, self.resizes = self.space, bool(self.option("resize"))
        self.stem_axis, self.head_axis = (Axis(name, space.widths(name)) for name in ("stem", "head"))
        self.stem = MapConv(fixed("picture", self.in_chans), self.stem_axis, 3, 2)
        self.stem_norm = BatchNorm(self.stem_axis)
        self.axes: list[StageAxes] = []
        before = self.stem_axis
        for i, stage in enumerate(space.stages):
            axes = self._axes(i, before)
            self.axes.append(axes)
            blocks = [self._block(i, axes) for _ in range(stage.positions)]
            self.stages.append(StageModule(blocks, self._opening(i, before, axes)))
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
            found = {divisible(w * t) for w in axis.widths for t in expand}
            return None if expand == (1,) else Axis(name, tuple(sorted(found)))

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
        distances = {2 * (s // math.isqrt(n)) - 1 for s in sides for n in space.widths("windows", i)}
        return TransformerAxes(
            width,
            qk=Axis("qk", width.widths, dim),
            heads=Axis("heads", tuple(w // dim for w in width.widths)),
            v=Axis("v", tuple(4 * w for w in width.widths), 4 * dim),
            mlp=Axis("mlp", space.widths("mlp", i)),
            distances=Axis("distances", tuple(sorted(distances)), kind="centred"),
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
        names = ("norm", "scale", "activation", "mlp_conv", "head_dim")
        return TransformerCell(axes.tokens, i, {name: self.option(name) for name in names})

    def new_head(self, num_classes: int) -> Linear | None:
        return Linear(self.head_axis, fixed("classes", num_classes)) if num_classes else None

    def bind(self, choices: Numbers, stages: Sequence[Numbers]) -> dict[Axis, Count]:
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
                windows = own["windows"]
                many = isinstance(windows, np.ndarray)
                side = np.rint(np.sqrt(windows)).astype(int) if many else math.isqrt(windows)
                depth = own.get("depth") or axes.tokens.depth.widths[0]
                out |= axes.tokens.bind(width, own["mlp"], self.option("head_dim"), sizes[i], side, depth)
            before = width
        out[self.final_axis] = FINAL * before
        return out

    def tokens_axis(self, stage: int) -> Axis:
        return self.axes[stage].width

    # --- the pass ---

    def grid(self, values: Numbers, height: Count, width: Count) -> Size:
        return halved((height, width))

    def embed(self, x: Tensor, at: Pass) -> Tensor:
        if tuple(x.shape[-2:]) != at.canvas:
            x = F.interpolate(x, size=at.canvas, mode="bicubic", align_corners=False)
        x = channels_last(x).permute(0, 2, 3, 1)  # (batch, rows, columns, channels)
        return self.stem_norm.after(self.stem, x, at.view, swish=True)

    def enter(self, stage: int, x: Tensor, at: Pass) -> Tensor:
        opening: MBConv = self.stage(stage).enter
        return opening(x, at.view)

    def finish(self, x: Tensor, at: Pass) -> Tensor:
        return self.final_norm(self.final(x, at.view), at.view, swish=True)

    def pool(self, x: Tensor) -> Tensor:
        return x.mean((1, 2))

    def classify(self, x: Tensor, at: Pass) -> Tensor:
        mixed = F.silu(self.mix(self.pool(x), at.view))
        return self.head(self.drop_features(mixed), at.view) if self.head is not None else mixed

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        at = self.plan(self._arch(None), (self.space.img_size, self.space.img_size))
        mixed = F.silu(self.mix(self.pool(x), at.view))
        return mixed if pre_logits or self.head is None else self.head(self.drop_features(mixed), at.view)

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
        """The last stage of each of the strides 4, 8, 16 and 32 (of all, in a network that has none of these)."""
        last = {self.reduction(arch, i): i for i in range(len(arch.stages))}
        return sorted(i for r, i in last.items() if r in (4, 8, 16, 32)) or sorted(last.values())

    def enter_cost(self, stage: int, widths: Widths, values: Numbers, size: Size) -> Cost:
        # stage -1: after the stem
        before, after = (math.prod(self.cost_grid(i, values, size)) for i in (stage - 1, stage))
        opening: MBConv = self.stage(stage).enter
        cost = opening.cost(widths, before, after)
        return cost if stage else cost + self.stem.cost(widths, before) + self.stem_norm.cost(widths)

    def block_cost(self, stage: int, position: int, widths: Widths, values: Numbers, size: Size) -> Cost:
        now, own = (math.prod(self.grid(values, *s)) for s in (size, (values["resolution"], values["resolution"])))
        return super().block_cost(stage, position, widths, {**values, "larger": now > own}, size)

    def exit_cost(self, widths: Widths, values: Numbers, size: Size) -> Cost:
        rows, cols = self.cost_grid(len(self.stages) - 1, values, size)
        cost = self.final.cost(widths, rows * cols) + self.final_norm.cost(widths) + self.mix.cost(widths, 1)
        return cost + self.head_cost(widths)
