"""timm's Swin transformers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from superformer.errors import SuperformerError
from superformer.official.family import rename
from superformer.official.s3 import names
from superformer.space.arch import Arch, StageArch, Values


def arch(model: Any) -> Arch:
    """The architecture of a ``timm.models.swin_transformer.SwinTransformer``."""
    rows, cols = model.patch_embed.img_size
    if rows != cols or model.patch_embed.patch_size != (4, 4):
        raise SuperformerError(
            f"only square pictures and patches of 4 pixels are known, not {rows} x {cols} and {model.patch_embed.patch_size}"
        )
    stages = []
    for layer in model.layers:
        blocks = []
        for k, block in enumerate(layer.blocks):
            (window, other), grid = block.window_size, block.input_resolution
            moved = window // 2 if k % 2 and window < min(grid) else 0
            if window != other or window > min(grid) or tuple(block.shift_size) != (moved, moved):
                raise SuperformerError(
                    f"windows of {window} x {other} tokens, moved by {tuple(block.shift_size)}, on {grid} are not known here"
                )
            blocks.append(
                Values(window=window, heads=block.attn.num_heads, attn=block.attn.proj.in_features, mlp=block.mlp.fc1.out_features)
            )
        stages.append(StageArch(tuple(blocks), Values(width=layer.blocks[0].norm1.normalized_shape[0])))
    eps = model.norm.eps
    return Arch("swin", int(rows), Values(), tuple(stages), Values({} if eps == 1e-5 else {"eps": eps}))


def state(model: Any) -> dict[str, Tensor]:
    """timm has a stage's patch merging before its blocks, as we do; Swin's authors have it after those of the previous stage."""
    rules = [(r"^layers\.(\d+)\.downsample\.", r"stages.\1.enter."), (r"^head\.fc\.", "head.")]
    return names(rename(model.state_dict(), rules))
