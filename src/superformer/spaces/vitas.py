"""ViTAS: the DeiT-like spaces of v1 and v2, and the released networks.

v1 lets every position be an identity; v2 shifts identities to the end of the stage and shares channels cyclically. "Max Output Dim" of
the attention is the width of q, k and v together: a third of it is the attention width.
"""

from __future__ import annotations

from superformer.space import Space, Stage, tenths
from superformer.space.arch import Arch, StageArch, Values

HEADS = (3, 6, 12, 16)
PATCHES = (32, 16, 14)
PRIVATE = {"shared": "v", "cls_token": "private"}
"""v1, section 4.2: a class token for each patch size, q and k for each number of heads, v shared."""
OPTIONS = {"final_eps": 1e-5}
"""As released: the final norm has torch's default eps."""


def _block(widest: int) -> dict[str, tuple[int, ...]]:
    return {"heads": HEADS, "attn": tenths(widest, parts=3), "mlp": tenths(widest)}


def _v1(name: str, width: int, widest: int) -> Space:
    """v1, table 1 (and 9): 16 positions, each a block with one of four head counts or an identity."""
    stage = Stage(_block(widest), depth=16, skippable=range(16), skip=1 / 5)
    return Space(name, "vit", (stage,), {"patch_size": PATCHES, "width": tenths(width)}, options=OPTIONS, weights=PRIVATE)


def _v2(name: str, width: int, widest: int) -> Space:
    """v2, figure 7: 14 positions with identity shifting.

    (Table 2 of v2 prints 16 positions, v1's; the appendix, which is specific, has 14.)
    """
    stage = Stage(_block(widest), depth=range(15))
    return Space(name, "vit", (stage,), {"patch_size": PATCHES, "width": tenths(width)}, options=OPTIONS, weights=PRIVATE)


SPACES = (
    _v1("vitas-v1", 384, 1440),
    _v1("vitas-v1-wide", 768, 2880),
    # v1, section 5.3: one block, repeated 12 times; 10 widths x 4 head counts x 10 attention widths x 10 hidden widths.
    Space(
        "vitas-block",
        "vit",
        (Stage(_block(1440), depth=12, tied=True),),
        {"patch_size": 16, "width": tenths(384)},
        options=OPTIONS,
        weights=PRIVATE,
    ),
    _v2("vitas-deit-tiny", 384, 1440),
    _v2("vitas-deit-small", 768, 2880),
)


def network(width: int, blocks: list[tuple[int, int, int]], patch_size: int = 16, options: dict[str, object] | None = None) -> Arch:
    """A network of blocks (heads, attention width, hidden width)."""
    stage = StageArch(tuple(Values(heads=h, attn=a, mlp=f) for h, a, f in blocks))
    return Arch("vit", 224, Values(patch_size=patch_size, width=width), (stage,), Values(OPTIONS if options is None else options))


MODELS = {
    "vitas_858m": network(
        154,
        [(12, 96, 1008), (16, 240, 576), (6, 96, 1296), (16, 336, 720), (16, 384, 1008), (16, 288, 1152), (16, 480, 1296)],
    ),
    "vitas_1g": network(
        192,
        [
            (16, 96, 864), (16, 144, 576), (16, 144, 1008), (12, 384, 864),
            (12, 336, 720), (12, 288, 576), (16, 144, 1296), (6, 288, 864),
        ],
    ),
    "vitas_1_3g": network(230, [(3, 144, 720)] * 12),
    "vitas_2_7g": network(
        346,
        [
            (16, 240, 720), (16, 336, 864), (16, 288, 1008), (6, 288, 1008), (3, 192, 720), (12, 432, 1296),
            (6, 432, 1152), (12, 240, 144), (12, 480, 864), (6, 192, 1008), (12, 384, 1296),
        ],
    ),
    "vitas_4_9g": network(
        307,
        [
            (16, a, f)
            for a, f in [
                (288, 1728), (96, 2304), (576, 864), (384, 2016), (672, 864), (480, 1440), (864, 2304),
                (480, 2016), (768, 864), (672, 576), (672, 2016), (480, 2304), (576, 2304),
            ]
        ],
    ),
}  # fmt: skip
