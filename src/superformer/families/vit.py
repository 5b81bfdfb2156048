"""The plain vision transformer: the spaces of ViTAS (v1 table 1, v2 table 2) and AutoFormer.

Network-wide: the patch size, each with its own stem, and the width of the tokens. For each block: the number of heads,
the attention width (of q, of k and of v) and the hidden width of the MLP. Optional: AutoFormer's relative positions and
mean pooling; CaiT's class attention, as a second stage, with LayerScale (v1, appendix D).

The other options are those of the plain transformers that people start from, under timm's names where it has some:
registers (DINOv2), positions of the patches alone (DeiT-III), no class token, a norm before the blocks and the quick
GELU (CLIP), the norm after the pooling (MAE, BEiT)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from superformer.elastic.axis import EMPTY, Axis, Pass, View, fixed
from superformer.elastic.layers import Conv2d, LayerNorm, Linear, PerChoice, Table
from superformer.elastic.positions import at_size, resized
from superformer.elastic.transformer import ACTS, SHARED, Attention, Block, Mlp
from superformer.families.network import Network, Numbers, Size, StageModule, Widths
from superformer.space import Arch, Space
from superformer.space.costs import NOTHING, Cost, Count
from superformer.space.schema import Schema, free_heads, in_patches, undivided_heads, undivided_pictures

Prefix = tuple[Table | None, Table | None]
"""A class token and registers."""
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
    "pool_norm": False,  # the final norm is that of the mean, not of the tokens
    "class_token": True,
    "reg_tokens": None,  # how many registers come after the class token
    "embed_class": True,  # the position table has entries for the class token and the registers
    "pre_norm": False,  # a norm before the blocks, and patches without bias
    "act": "gelu",  # of the MLPs, see elastic.transformer.ACTS
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
    for name, known in (("pool", ("cls", "mean")), ("act", tuple(ACTS))):
        if option(name) not in known:
            yield f"{name} must be {' or '.join(known)}, not {option(name)!r}"
    mean = option("pool") == "mean"
    if not option("class_token") and not mean:
        yield "without a class token (class_token) the pooling is pool=mean"
    if option("pool_norm") and not mean:
        yield "pool_norm is the norm of a mean: it goes with pool=mean"
    if not option("embed_class") and not (option("class_token") or option("reg_tokens")):
        yield "embed_class=false is for a class token or registers; here the positions are those of the patches anyway"
    scale = option("scale")
    if isinstance(scale, str) and scale not in ("head", "embed"):
        yield f"scale must be head, embed or a number, not {scale!r}"
    alone = option("class_token") and not option("reg_tokens")
    if option("class_attention") and (option("rel_pos") or mean or not alone or not option("embed_class")):
        yield "class attention goes with pool=cls, a class token alone and no relative positions, nor with embed_class"
    if option("rel_pos") and not alone:
        yield "relative positions go with a class token alone, without registers"
    yield from undivided_pictures(space.widths("resolution"), *space.widths("patch_size"))
    yield from undivided_heads(space)
    if option("rel_pos") and any(
        len({a // h for a in widths for h in heads}) > 1 for _, _, widths, heads in free_heads(space)
    ):
        yield "relative positions need heads of one width: write attn=times(head_width, of='heads')"


class Stem(nn.Module):
    """Patches as tokens: a strided convolution, a position for each token, and the tokens that come first: a class
    token, registers. All are private to a patch size, except that the stems may share these tokens (ViTAS v1, table 2,
    groups 0 to 2); positions are also private to an input size."""

    def __init__(
        self, pixels: Axis, width: Axis, patch: int, sizes: Sequence[int], tokens: Prefix, embedded: int, bias: bool
    ):
        super().__init__()
        self.proj = Conv2d(pixels, width, patch, patch, bias=bias)
        self.cls_token, self.reg_token = tokens
        tables = {size: Table((size // patch) ** 2 + embedded, width, prefix=embedded) for size in sizes}
        self.pos_embed = tables[sizes[0]] if len(sizes) == 1 else PerChoice("resolution", tables, bare=True)

    def positions(self, resolution: int) -> Table:
        """The table of positions of an input size."""
        return cast(Table, self.pos_embed[str(resolution)] if isinstance(self.pos_embed, PerChoice) else self.pos_embed)

    def with_prefix(self, tokens: Tensor, view: View) -> Tensor:
        """Class token and registers first: (batch, prefix + patches, width)."""
        first = [t(view).expand(tokens.shape[0], -1, -1) for t in (self.cls_token, self.reg_token) if t is not None]
        return torch.cat([*first, tokens], 1) if first else tokens

    def cost(self, widths: Widths, values: Numbers, patches: Count) -> Cost:
        cost = self.proj.cost(widths, patches)
        if isinstance(self.pos_embed, PerChoice):
            for size, table in self.pos_embed.items():
                here = np.equal(values["resolution"], int(size)).astype(np.int64)
                cost += cast(Table, table).cost(widths).times(here)
        else:
            cost += self.pos_embed.cost(widths)
        return sum((t.cost(widths) for t in (self.cls_token, self.reg_token) if t is not None), cost)


class Vit(Network):
    """A vision transformer (see the module)."""

    schema = Schema(
        "vit", CHOICES, frozenset(), BLOCK_CHOICES, options=OPTIONS, weights=WEIGHTS, rules=rules, private=PRIVATE,
        kinds={"rel_pos": (int,), "layer_scale": (float,), "scale": (str, float), "reg_tokens": (int,)},
    )  # fmt: skip
    maskable = True

    def option(self, name: str) -> Any:
        return super().option(name) or None

    def build(self) -> None:
        space = self.space
        self.width = width = Axis("width", space.widths("width"))
        late, before = bool(self.option("class_attention")), bool(self.option("pre_norm"))
        pixels, common, stems = fixed("pixels", self.in_chans), self._prefix(), {}
        sizes = space.widths("resolution")
        for patch in space.widths("patch_size"):
            tokens = common if space.weights.get("cls_token") == "shared" else self._prefix()
            stems[patch] = Stem(pixels, width, patch, sizes, tokens, self._embedded, not before)
        self.stems = PerChoice("patch_size", stems)
        self.norm_pre = LayerNorm(width, self.option("eps")) if before else None
        for i, stage in enumerate(space.stages):
            self.stages.append(StageModule([self._block(i, p, late and i == 1) for p in range(stage.positions)]))
        self.norm = LayerNorm(width, self.option("final_eps"))
        self.head = self.new_head(self.num_classes)

    def _block(self, stage: int, position: int, class_only: bool) -> Block:
        space, shared = self.space, str(self.space.weights.get("shared", "qkv"))
        inner = Axis("attn", space.widths("attn", stage, position), space.unit("attn", stage, position))
        hidden, heads = Axis("mlp", space.widths("mlp", stage, position)), space.widths("heads", stage, position)
        attn = Attention(self.width, inner, heads, shared, self.option("scale"), self.option("rel_pos"), class_only)
        mlp = Mlp(self.width, hidden, self.option("act"))
        return Block(self.width, attn, mlp, self.option("eps"), self.option("layer_scale"))

    def _prefix(self) -> Prefix:
        """The tokens before the patches."""
        registers = self.option("reg_tokens")
        return (
            Table(1, self.width) if self.option("class_token") else None,
            Table(registers, self.width) if registers else None,
        )

    @property
    def _embedded(self) -> int:
        """How many of the tokens before the patches have a position."""
        return self.prefix_tokens(0) if self.option("embed_class") else 0

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
        tokens = stem.proj(at_size(x, at.canvas), at.view)
        table = stem.positions(at.arch.resolution)
        # as timm resizes, whose networks are of this family
        positions = resized(table(at.view), at.native, at.grid, self._embedded, antialias=True)
        if self.option("class_attention"):
            return tokens + positions
        if self._embedded:
            return stem.with_prefix(tokens, at.view) + positions
        return stem.with_prefix(tokens + positions, at.view)

    def _stem(self, at: Pass) -> Stem:
        return cast(Stem, self.stems[self.stems.key(at.arch.choices)])

    def enter(self, stage: int, x: Tensor, at: Pass) -> Tensor:
        if stage:
            return self._stem(at).with_prefix(x, at.view)
        return self.norm_pre(x, at.view) if self.norm_pre is not None else x

    def finish(self, x: Tensor, at: Pass) -> Tensor:
        return x if self.option("pool_norm") else self.norm(x, at.view)

    def pool(self, x: Tensor, view: View = EMPTY) -> Tensor:
        if self.option("pool") == "cls":
            return x[:, 0]
        mean = x[:, self.prefix_tokens(0) :].mean(1, keepdim=True)
        return (self.norm(mean, view) if self.option("pool_norm") else mean)[:, 0]

    def classify(self, x: Tensor, at: Pass) -> Tensor:
        pooled = self.pool(x, at.view)
        return self.head(self.drop_features(pooled), at.view) if self.head is not None else pooled

    def stage_grid(self, stage: int, grid: tuple[int, int]) -> tuple[int, int]:
        return grid

    def prefix_tokens(self, stage: int) -> int:
        if self.option("class_attention") and stage == 0:
            return 0
        return int(bool(self.option("class_token"))) + (self.option("reg_tokens") or 0)

    def has_class_token(self, stage: int) -> bool:
        return bool(self.option("class_token")) and self.prefix_tokens(stage) > 0

    def feature_width(self, arch: Arch, stage: int) -> int:
        return arch.choices.int("width")

    def reduction(self, arch: Arch, stage: int) -> int:
        return arch.choices.int("patch_size")

    def enter_cost(self, stage: int, widths: Widths, values: Numbers, size: Size) -> Cost:
        if stage > 0:
            return NOTHING
        rows, cols = self.grid(values, *size)
        total = self.norm_pre.cost(widths) if self.norm_pre is not None else NOTHING
        for patch in self.space.widths("patch_size"):
            own = cast(Stem, self.stems[str(patch)]).cost(widths, values, rows * cols)
            total += own.times(np.equal(values["patch_size"], patch).astype(np.int64))
        return total

    def exit_cost(self, widths: Widths, values: Numbers, size: Size) -> Cost:
        return self.norm.cost(widths) + self.head_cost(widths)
