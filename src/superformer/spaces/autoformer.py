"""AutoFormer's spaces and networks (the supernet that S3 builds on), as released.

Heads are 64 channels wide; the MLP's hidden width is a multiple of the tokens' width; relative positions in every block.
"""

from __future__ import annotations

from superformer.space import Space, Stage, ratio, times
from superformer.space.arch import Arch, StageArch, Values

HEAD = 64
OPTIONS = {"rel_pos": 14, "pool": "mean", "eps": 1e-5, "final_eps": 1e-5}


def autoformer(name: str, width: tuple[int, ...], heads: tuple[int, ...], ratios: tuple[float, ...], depth: tuple[int, ...]) -> Space:
    block = {"heads": heads, "attn": times(HEAD, of="heads"), "mlp": ratio(*ratios, of="width")}
    return Space(name, "vit", (Stage(block, depth=depth),), {"patch_size": 16, "width": width}, options=OPTIONS)


SPACES = (
    autoformer("autoformer-tiny", (192, 216, 240), (3, 4), (3.5, 4), (12, 13, 14)),
    autoformer("autoformer-small", (320, 384, 448), (5, 6, 7), (3, 3.5, 4), (12, 13, 14)),
    autoformer("autoformer-base", (528, 576, 624), (9, 10), (3, 3.5, 4), (14, 15, 16)),
)


def network(width: int, heads: list[int], ratios: list[float]) -> Arch:
    blocks = tuple(Values(heads=h, attn=HEAD * h, mlp=int(width * r)) for h, r in zip(heads, ratios, strict=True))
    return Arch("vit", 224, Values(patch_size=16, width=width), (StageArch(blocks),), Values(OPTIONS))


MODELS = {
    # Ratio 3 in three blocks is not in the released space: the network is published, but no point of "autoformer-tiny".
    "autoformer_tiny": network(192, [3] * 10 + [4, 3, 3], [3.5, 3.5, 3, 3.5, 3, 3, 4, 4, 3.5, 4, 3.5, 4, 3.5]),
    "autoformer_small": network(384, [6, 6, 5, 7, 5, 5, 5, 6, 6, 7, 7, 6, 7], [3, 3.5, 3, 3.5, 4, 4, 4, 4, 4, 4, 4, 3.5, 4]),
    "autoformer_base": network(576, [9, 9, 9, 9, 9, 10, 9, 9, 10, 9, 10, 9, 9, 10], [3.5, 3.5, 4, 3.5, 4, 3.5, 3.5, 3, 4, 4, 3, 4, 3, 3.5]),
}
