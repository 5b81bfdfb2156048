"""ViTAS: the DeiT-like spaces of v1 and v2, v2's Twins spaces, ResNet-50 with searched widths; released networks.

v1 lets every position be an identity; v2 shifts identities to the end of the stage and shares channels cyclically. "Max
Output Dim" of the attention, "Max_a" of Twins, is the width of q, k and v together: three attention widths."""

from __future__ import annotations

from superformer.space import Space, Stage, tenths
from superformer.space.arch import Arch, StageArch, Values

HEADS = (3, 6, 12, 16)
PATCHES = (32, 16, 14)
V1 = {"shared": "v", "cls_token": "private"}
"""v1, section 4.2: a class token for each patch size, q and k for each number of heads, v shared."""
V2 = {"shared": "qkv", "cls_token": "private"}
"""v2, section 5 and appendix A.2: private class tokens only; all heads divide the same q, k and v."""
OPTIONS = {"final_eps": 1e-5}
"""As released: the final norm has torch's default eps."""


def _block(widest: int) -> dict[str, tuple[int, ...]]:
    return {"heads": HEADS, "attn": tenths(widest, parts=3), "mlp": tenths(widest)}


def _space(
    name: str, width: int, stage: Stage, patch_size: tuple[int, ...] = PATCHES, size: int = 224,
    weights: dict[str, str] = V1,
) -> Space:  # fmt: skip
    choices = {"patch_size": patch_size, "width": tenths(width)}
    return Space(name, "vit", (stage,), choices, size, options=OPTIONS, weights=weights)


def _v1(name: str, width: int, widest: int, patch_size: tuple[int, ...] = PATCHES, size: int = 224) -> Space:
    """v1, table 1 (and 9): 16 positions, each a block with one of four head counts or an identity."""
    return _space(name, width, Stage(_block(widest), depth=16, skippable=range(16), skip=1 / 5), patch_size, size)


def _block_level(name: str, width: int, widest: int, depth: int | range) -> Space:
    """v1, section 5.3: one block, repeated; 10 widths x 4 head counts x 10 attention and 10 hidden widths."""
    return _space(name, width, Stage(_block(widest), depth=depth, tied=True), (16,))


def _v2(name: str, width: int, widest: int) -> Space:
    """v2, figure 7: 14 positions with identity shifting (table 2 prints v1's 16; the specific appendix has 14)."""
    return _space(name, width, Stage(_block(widest), depth=range(15)), weights=V2)


SPACES = (
    _v1("vitas-v1", 384, 1440),
    _v1("vitas-v1-wide", 768, 2880),
    _v1("vitas-v1-112", 384, 1440, (16, 14), 112),  # tables 2 and 3: half the pictures' side, which 32 does not divide
    _block_level("vitas-block", 384, 1440, 12),
    # Appendix E: the widths of table 9; the depth "according to the pre-defined overall resource" (section 3.2).
    _block_level("vitas-block-wide", 768, 2880, range(1, 17)),
    _v2("vitas-deit-tiny", 384, 1440),
    _v2("vitas-deit-small", 768, 2880),
)


def vit_network(
    width: int, blocks: list[tuple[int, int, int]], patch_size: int = 16, options: dict[str, object] | None = None
) -> Arch:
    """A network of blocks (heads, attention width, hidden width)."""
    stage = StageArch(tuple(Values(heads=h, attn=a, mlp=f) for h, a, f in blocks))
    own = Values(OPTIONS if options is None else options)
    return Arch("vit", 224, Values(patch_size=patch_size, width=width), (stage,), own)


MODELS = {
    "vitas_858m": vit_network(154, [
        (12, 96, 1008), (16, 240, 576), (6, 96, 1296), (16, 336, 720), (16, 384, 1008), (16, 288, 1152),
        (16, 480, 1296),
    ]),
    "vitas_1g": vit_network(192, [
        (16, 96, 864), (16, 144, 576), (16, 144, 1008), (12, 384, 864),
        (12, 336, 720), (12, 288, 576), (16, 144, 1296), (6, 288, 864),
    ]),
    "vitas_1_3g": vit_network(230, [(3, 144, 720)] * 12),
    "vitas_block_5g": vit_network(384, [(6, 384, 1728)] * 12),  # v1, table 13; the one before is table 8
    "vitas_2_7g": vit_network(346, [
        (16, 240, 720), (16, 336, 864), (16, 288, 1008), (6, 288, 1008), (3, 192, 720), (12, 432, 1296),
        (6, 432, 1152), (12, 240, 144), (12, 480, 864), (6, 192, 1008), (12, 384, 1296),
    ]),
    "vitas_4_9g": vit_network(307, [(16, a, f) for a, f in (
        (288, 1728), (96, 2304), (576, 864), (384, 2016), (672, 864), (480, 1440), (864, 2304),
        (480, 2016), (768, 864), (672, 576), (672, 2016), (480, 2304), (576, 2304),
    )]),
}  # fmt: skip


# Twins (v2, table 1, figure 6), and the networks that the spaces were made from.
# The searched networks ViTAS-Twins-T/S/B/L are not published: figure 11 only draws the proportions of three of them.
TWINS_HEADS = (2, 4, 8, 16)
TYPES = ("local", "global")


def _twins(name: str, *stages: tuple[int, int, int, int]) -> Space:
    """Stages of (width of the embedding, Max_a, Max_m, positions) with identity shifting (v2, section 5)."""
    out = []
    for width, attn, mlp, positions in stages:
        block = {"type": TYPES, "heads": TWINS_HEADS, "attn": tenths(attn, parts=3), "mlp": tenths(mlp)}
        out.append(Stage(block, depth=range(positions + 1), choices={"width": tenths(width)}))
    return Space(f"vitas-twins-{name}", "twins", tuple(out))


_TWINS_SMALL = ((128, 480, 512, 4), (256, 960, 1024, 4), (512, 1920, 2048, 12), (1024, 3840, 4096, 6))

TWINS_SPACES = (
    _twins("tiny", *_TWINS_SMALL),  # figure 6a prints the small space
    _twins("small", *_TWINS_SMALL),
    _twins("base", (192, 480, 768, 4), (384, 960, 1536, 4), (768, 1920, 3072, 20), (1536, 3840, 6144, 4)),
    _twins("large", (256, 960, 1024, 4), (512, 1920, 2048, 4), (1024, 3840, 4096, 20), (2048, 7680, 8192, 4)),
)


def twins_network(width: int, heads: int, depths: tuple[int, ...]) -> Arch:
    """A Twins-SVT: local and global blocks in turn; width and heads double from stage to stage."""
    stages = []
    for i, depth in enumerate(depths):
        wide = width << i
        blocks = (Values(type=TYPES[k % 2], heads=heads << i, attn=wide, mlp=4 * wide) for k in range(depth))
        stages.append(StageArch(tuple(blocks), Values(width=wide)))
    return Arch("twins", 224, Values(), tuple(stages))


TWINS_MODELS = {
    "twins_svt_s": twins_network(64, 2, (2, 2, 10, 4)),
    "twins_svt_b": twins_network(96, 3, (2, 2, 18, 2)),
    "twins_svt_l": twins_network(128, 4, (2, 2, 18, 2)),
}
"""Twins-SVT, under names that timm does not use."""


# ResNet-50 with searched widths (v2, appendix A.7).
# The appendix takes "the same search space as" BCNet and gives no table of its own; the recipe partitions every width
# into 10 groups. So each convolution of ResNet-50 has ten widths, those that a residual ties together one for the
# whole stage; depths are not searched.
BLOCKS = (3, 4, 6, 3)
"""Bottlenecks of each stage of ResNet-50, the first of which leads into it."""


def _resnet_stage(i: int) -> Stage:
    inner, outer = tenths(64 * 2**i), tenths(256 * 2**i)
    entry = {"width": outer, "entry1": inner, "entry2": inner}
    return Stage({"mid1": inner, "mid2": inner}, depth=BLOCKS[i] - 1, choices=entry)


RESNET_SPACES = (Space("vitas-resnet50", "resnet", tuple(map(_resnet_stage, range(4))), {"stem": tenths(64)}),)


def resnet_network(blocks: tuple[int, ...], inner: int = 64, resolution: int = 224) -> Arch:
    """A plain ResNet of so many bottlenecks in each stage; inner and outer widths (256 at first) double each stage."""
    stages = []
    for i, n in enumerate(blocks):
        mid = inner * 2**i
        entry = Values(width=256 * 2**i, entry1=mid, entry2=mid)
        stages.append(StageArch((Values(mid1=mid, mid2=mid),) * (n - 1), entry))
    return Arch("resnet", resolution, Values(stem=64), tuple(stages))


RESNET_MODELS = {"resnet50_plain": resnet_network(BLOCKS)}
