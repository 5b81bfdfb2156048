"""The plain vision transformer: the spaces of ViTAS (v1 table 1, v2 table 2) and AutoFormer.

Network-wide: the patch size, each with its own stem, and the width of the tokens. For each block: the number of heads,
the attention width (of q, of k and of v) and the hidden width of the MLP. Optional: AutoFormer's relative positions and
mean pooling; CaiT's class attention, as a second stage, with LayerScale (v1, appendix D)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from superformer.elastic.axis import Axis, Pass, View, fixed
from superformer.elastic.layers import Conv2d, LayerNorm, Linear, PerChoice, Table
from superformer.elastic.positions import resized
from superformer.elastic.transformer import SHARED, Attention, Block, Mlp
from superformer.families.network import Network, Numbers, Size, StageModule, Widths
from superformer.space import Arch, Space
from superformer.space.costs import NOTHING, Cost, Count
from superformer.space.schema import (
    Schema,
    free_heads,
    in_patches,
    many_resolutions,
    undivided_heads,
    undivided_pictures,
)

CHOICES, BLOCK_CHOICES = frozenset({"patch_size", "width"}), frozenset({"heads", "attn", "mlp"})
WEIGHTS = {"shared": SHARED, "cls_token": ("private", "shared")}
PRIVATE = {
    frozenset(token + attn): {"cls_token": "private" if token else "shared", "shared": shared}
    for token in ((), ("cls_token",))
    for attn, shared in (((), "qkv"), (("qk",), "v"), (("v",), "qk"), (("qk", "v"), "none"))
}
"""ViTAS v1, table 2: the class token private to a patch size, q and k or v to a head count; the rest shared."""
OPTIONS: dict[str, Any] = {
    "rel_pos": None,  # reach of AutoFormer's relative positions
    "pool": "cls",  # "cls": the class token; "mean": the mean of the patches
    "scale": "head",  # of the attention logits, see Attention
    "eps": 1e-6,  # of the blocks' layer norms
    "final_eps": 1e-6,  # of the final layer norm
    "layer_scale": None,  # initial value of LayerScale
    "class_attention": False,  # the last stage is CaiT's class attention
}


def rules(space: Space) -> Iterable[str]:
    """What a space of this family must keep to."""

    def option(name: str) -> Any:
        return Vit.schema.option(space.options, name)

    wanted = 2 if option("class_attention") else 1
    if len(space.stages) != wanted:
        which = "(the second is the class attention)" if wanted == 2 else ""
        yield f"a vit has {wanted} stage(s) {which}, not {len(space.stages)}"
    if option("pool") not in ("cls", "mean"):
        yield f"pool must be cls or mean, not {option('pool')!r}"
    scale = option("scale")
    if isinstance(scale, str) and scale not in ("head", "embed"):
        yield f"scale must be head, embed or a number, not {scale!r}"
    if option("class_attention") and (option("rel_pos") or option("pool") != "cls"):
        yield "class attention goes with pool=cls and without relative positions"
    yield from many_resolutions(space)
    yield from undivided_pictures(space.widths("resolution"), *space.widths("patch_size"))
    yield from undivided_heads(space)
    if option("rel_pos") and any(
        len({a // h for a in widths for h in heads}) > 1 for _, _, widths, heads in free_heads(space)
    ):
        yield "relative positions need heads of one width: write attn=times(head_width, of='heads')"


class Stem(nn.Module):
    """Patches as tokens: a strided convolution, a class token and a position for each token. All are private to a patch
    size, except that the stems may share one class token (ViTAS v1, table 2, groups 0 to 2)."""

    def __init__(self, pixels: Axis, width: Axis, patch: int, positions: int, cls_token: Table):
        super().__init__()
        self.proj = Conv2d(pixels, width, patch, patch)
        self.cls_token = cls_token
        self.pos_embed = Table(positions, width)

    def with_class(self, tokens: Tensor, view: View) -> Tensor:
        """The class token first: (batch, 1 + patches, width)."""
        return torch.cat([self.cls_token(view).expand(tokens.shape[0], 1, -1), tokens], 1)

    def cost(self, widths: Widths, patches: Count) -> Cost:
        return self.proj.cost(widths, patches) + self.pos_embed.cost(widths) + self.cls_token.cost(widths)


class Vit(Network):
    """A vision transformer (see the module)."""

    schema = Schema(
        "vit", CHOICES, frozenset(), BLOCK_CHOICES, options=OPTIONS, weights=WEIGHTS, rules=rules, private=PRIVATE,
        kinds={"rel_pos": (int,), "layer_scale": (float,), "scale": (str, float)},
    )  # fmt: skip
    maskable = True

    def option(self, name: str) -> Any:
        return super().option(name) or None

    def build(self) -> None:
        space = self.space
        self.width = width = Axis("width", space.widths("width"))
        late = bool(self.option("class_attention"))
        resolution = space.widths("resolution")[-1]
        pixels, common, stems = fixed("pixels", self.in_chans), Table(1, width), {}
        for patch in space.widths("patch_size"):
            token = common if space.weights.get("cls_token") == "shared" else Table(1, width)
            stems[patch] = Stem(pixels, width, patch, (resolution // patch) ** 2 + (not late), token)
        self.stems = PerChoice("patch_size", stems)
        for i, stage in enumerate(space.stages):
            self.stages.append(StageModule([self._block(i, p, late and i == 1) for p in range(stage.positions)]))
        self.norm = LayerNorm(width, self.option("final_eps"))
        self.head = self.new_head(self.num_classes)

    def _block(self, stage: int, position: int, class_only: bool) -> Block:
        space, shared = self.space, str(self.space.weights.get("shared", "qkv"))
        inner = Axis("attn", space.widths("attn", stage, position), space.unit("attn", stage, position))
        hidden, heads = Axis("mlp", space.widths("mlp", stage, position)), space.widths("heads", stage, position)
        attn = Attention(self.width, inner, heads, shared, self.option("scale"), self.option("rel_pos"), class_only)
        return Block(self.width, attn, Mlp(self.width, hidden), self.option("eps"), self.option("layer_scale"))

    def new_head(self, num_classes: int) -> Linear | None:
        return Linear(self.width, fixed("classes", num_classes)) if num_classes else None

    def bind(self, choices: Numbers, stages: Sequence[Numbers]) -> dict[Axis, Count]:
        return {self.width: choices["width"]}

    def tokens_axis(self, stage: int) -> Axis:
        return self.width

    def token_channels(self) -> Sequence[Axis]:
        return (self.width,)

    def grid(self, values: Numbers, height: Count, width: Count) -> Size:
        return in_patches(height, width, values["patch_size"])

    def masked_group(self, arch: Arch) -> object:
        return arch.resolution, arch.choices["patch_size"]

    def embed(self, x: Tensor, at: Pass) -> Tensor:
        stem = self._stem(at)
        tokens, prefix = stem.proj(x, at.view), 0 if self.option("class_attention") else 1
        if prefix:
            tokens = stem.with_class(tokens, at.view)
        return tokens + resized(stem.pos_embed(at.view), at.native, at.grid, prefix)

    def _stem(self, at: Pass) -> Stem:
        return cast(Stem, self.stems[self.stems.key(at.arch.choices)])

    def enter(self, stage: int, x: Tensor, at: Pass) -> Tensor:
        return self._stem(at).with_class(x, at.view) if stage else x

    def finish(self, x: Tensor, at: Pass) -> Tensor:
        return self.norm(x, at.view)

    def pool(self, x: Tensor) -> Tensor:
        return x[:, 0] if self.option("pool") == "cls" else x[:, 1:].mean(1)

    def stage_grid(self, stage: int, grid: tuple[int, int]) -> tuple[int, int]:
        return grid

    def prefix_tokens(self, stage: int) -> int:
        return 0 if self.option("class_attention") and stage == 0 else 1

    def feature_width(self, arch: Arch, stage: int) -> int:
        return arch.choices.int("width")

    def reduction(self, arch: Arch, stage: int) -> int:
        return arch.choices.int("patch_size")

    def enter_cost(self, stage: int, widths: Widths, values: Numbers, size: Size) -> Cost:
        if stage > 0:
            return NOTHING
        rows, cols = self.grid(values, *size)
        total = NOTHING
        for patch in self.space.widths("patch_size"):
            own = cast(Stem, self.stems[str(patch)]).cost(widths, rows * cols)
            total += own.times(np.equal(values["patch_size"], patch).astype(np.int64))
        return total

    def exit_cost(self, widths: Widths, values: Numbers, size: Size) -> Cost:
        return self.norm.cost(widths) + self.head_cost(widths)
