"""ViTAS v2's Twins spaces (table 1, figure 6), and the networks they were made from.

"Max_a" is the width of q, k and v together, as in the DeiT-like spaces: a third of it is the attention width. The searched networks
ViTAS-Twins-T/S/B/L are not published: figure 11 only draws the proportions of three of them.
"""

from __future__ import annotations

from superformer.space import Space, Stage, tenths
from superformer.space.arch import Arch, StageArch, Values

HEADS = (2, 4, 8, 16)
TYPES = ("local", "global")


def _space(name: str, *stages: tuple[int, int, int, int]) -> Space:
    """Stages of (width of the embedding, Max_a, Max_m, positions) with identity shifting (v2, section 5)."""
    return Space(
        f"vitas-twins-{name}",
        "twins",
        tuple(
            Stage(
                {"type": TYPES, "heads": HEADS, "attn": tenths(attn, parts=3), "mlp": tenths(mlp)},
                depth=range(positions + 1),
                choices={"width": tenths(width)},
            )
            for width, attn, mlp, positions in stages
        ),
    )


_SMALL = ((128, 480, 512, 4), (256, 960, 1024, 4), (512, 1920, 2048, 12), (1024, 3840, 4096, 6))

SPACES: tuple[Space, ...] = (
    _space("tiny", *_SMALL),  # figure 6a prints the small space
    _space("small", *_SMALL),
    _space("base", (192, 480, 768, 4), (384, 960, 1536, 4), (768, 1920, 3072, 20), (1536, 3840, 6144, 4)),
    _space("large", (256, 960, 1024, 4), (512, 1920, 2048, 4), (1024, 3840, 4096, 20), (2048, 7680, 8192, 4)),
)


def network(width: int, heads: int, depths: tuple[int, ...]) -> Arch:
    """A Twins-SVT: local and global blocks in turn; width and heads double from stage to stage."""
    stages = []
    for i, depth in enumerate(depths):
        wide = width << i
        blocks = (Values(type=TYPES[k % 2], heads=heads << i, attn=wide, mlp=4 * wide) for k in range(depth))
        stages.append(StageArch(tuple(blocks), Values(width=wide)))
    return Arch("twins", 224, Values(), tuple(stages))


MODELS: dict[str, Arch] = {
    "twins_svt_s": network(64, 2, (2, 2, 10, 4)),
    "twins_svt_b": network(96, 3, (2, 2, 18, 2)),
    "twins_svt_l": network(128, 4, (2, 2, 18, 2)),
}
"""Twins-SVT, under names that timm does not use."""
