"""S3: the initial space (section 4.1), the released networks and their forms for 384 pixels; AutoFormer's spaces and
networks, the supernet that S3 builds on.

Section 4.1 gives {3, 3.5, 4} to the heads and {7, 8, 9} to the MLP ratio: the two lists are swapped, for 7, 8 and 9
heads of 32 channels are the Q-K-V dimensions 224, 256 and 288 of the same sentence. So the Q-K-V dimension is what a
block chooses, and what moves (by 64, two heads) when the space evolves; the heads follow: Q-K-V / 32. The last stage
has 7 x 7 tokens, where windows 7 and 14 are the same."""

from __future__ import annotations

from collections.abc import Sequence

from superformer.space import Space, Stage, divided, ratio, times
from superformer.space.arch import Arch, StageArch, Values
from superformer.space.stage import scaled

HEAD = 32
"""Channels of a head: 224 / 7."""


def _stage(*windows: int) -> Stage:
    attention = {"window": windows, "attn": (224, 256, 288), "heads": divided(HEAD, of="attn")}
    block = {**attention, "mlp": ratio(3, 3.5, 4, of="width")}
    return Stage(block, depth=(2, 3, 4), choices={"width": (224, 256, 288)})


SPACES = (Space("s3-initial", "swin", (_stage(7, 14), _stage(7, 14), _stage(7, 14), _stage(7))),)

Block = tuple[int, int, float]
"""Window, heads and MLP ratio."""


def network(stages: Sequence[tuple[int, Sequence[Block]]], resolution: int = 224) -> Arch:
    """A network of stages (width, blocks). Windows are cut to the stage's map."""
    out = []
    for i, (width, blocks) in enumerate(stages):
        side = -(-resolution // (4 * 2**i))
        values = (Values(window=min(w, side), heads=h, attn=HEAD * h, mlp=scaled(width, r)) for w, h, r in blocks)
        out.append(StageArch(tuple(values), Values(width=width)))
    return Arch("swin", resolution, Values(), tuple(out))


def _released(depths: tuple[int, ...], windows: tuple[int, ...], resolution: int = 224) -> Arch:
    """All released networks have the widths and heads of Swin-T."""
    stages = [(96 * 2**i, [(w, 3 * 2**i, 4.0)] * d) for i, (d, w) in enumerate(zip(depths, windows, strict=True))]
    return network(stages, resolution)


MODELS = {
    "s3_tiny": _released((2, 2, 6, 2), (7, 7, 14, 7)),
    "s3_small": _released((2, 2, 18, 2), (14, 14, 14, 7)),
    "s3_base": _released((2, 2, 30, 2), (7, 7, 14, 7)),
    # No source gives the windows at 384 pixels; scaled with the picture they give the costs of table 1 (33G and 46G).
    "s3_tiny_384": _released((2, 2, 6, 2), (12, 12, 24, 12), 384),
    "s3_small_384": _released((2, 2, 18, 2), (24, 24, 24, 12), 384),
    "s3_base_384": _released((2, 2, 30, 2), (12, 12, 24, 12), 384),
}

AUTOFORMER_HEAD = 64
"""AutoFormer as released: heads of 64 channels, relative positions in every block, MLPs of a multiple of the width."""
OPTIONS = {"rel_pos": 14, "pool": "mean", "eps": 1e-5, "final_eps": 1e-5}


def autoformer(
    name: str, width: tuple[int, ...], heads: tuple[int, ...], ratios: tuple[float, ...], depth: tuple[int, ...]
) -> Space:
    block = {"heads": heads, "attn": times(AUTOFORMER_HEAD, of="heads"), "mlp": ratio(*ratios, of="width")}
    return Space(name, "vit", (Stage(block, depth=depth),), {"patch_size": 16, "width": width}, options=OPTIONS)


AUTOFORMER_SPACES = (
    autoformer("autoformer-tiny", (192, 216, 240), (3, 4), (3.5, 4), (12, 13, 14)),
    autoformer("autoformer-small", (320, 384, 448), (5, 6, 7), (3, 3.5, 4), (12, 13, 14)),
    autoformer("autoformer-base", (528, 576, 624), (9, 10), (3, 3.5, 4), (14, 15, 16)),
)


def autoformer_network(width: int, heads: Sequence[int], ratios: Sequence[float]) -> Arch:
    """A network of so many heads and such an MLP ratio in each block."""
    pairs = zip(heads, ratios, strict=True)
    blocks = tuple(Values(heads=h, attn=AUTOFORMER_HEAD * h, mlp=int(width * r)) for h, r in pairs)
    return Arch("vit", 224, Values(patch_size=16, width=width), (StageArch(blocks),), Values(OPTIONS))


AUTOFORMER_MODELS = {
    # Ratio 3 in three blocks is not in the released space: the network is published, but no point of "autoformer-tiny".
    "autoformer_tiny": autoformer_network(
        192, [3] * 10 + [4, 3, 3], [3.5, 3.5, 3, 3.5, 3, 3, 4, 4, 3.5, 4, 3.5, 4, 3.5]
    ),
    "autoformer_small": autoformer_network(
        384, [6, 6, 5, 7, 5, 5, 5, 6, 6, 7, 7, 6, 7], [3, 3.5, 3, 3.5, 4, 4, 4, 4, 4, 4, 4, 3.5, 4]
    ),
    "autoformer_base": autoformer_network(
        576, [9, 9, 9, 9, 9, 10, 9, 9, 10, 9, 10, 9, 9, 10], [3.5, 3.5, 4, 3.5, 4, 3.5, 3.5, 3, 4, 4, 3, 4, 3, 3.5]
    ),
}
