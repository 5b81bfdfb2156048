"""timm's Twins: both ``twins_svt_*`` and ``twins_pcpvt_*``, whose blocks are all global."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from superformer.errors import SuperformerError
from superformer.families.twins import OPTIONS, Twins, ratio
from superformer.official.family import Rules, rename
from superformer.space.arch import Arch, StageArch, Values


def _type(block: Any) -> str:
    return "global" if hasattr(block.attn, "sr_ratio") else "local"


def arch(model: Any) -> Arch:
    """The architecture of a timm Twins."""
    if model.global_pool != "avg":
        raise SuperformerError(f"twins networks pool the mean of all tokens, not {model.global_pool!r}")
    blocks = [(i, block.attn, _type(block)) for i, stage in enumerate(model.blocks) for block in stage]
    side = next((attn.ws for _, attn, kind in blocks if kind == "local"), OPTIONS["ws"])
    first = next((attn.sr_ratio << i for i, attn, kind in blocks if kind == "global"), OPTIONS["sr"])
    for i, attn, kind in blocks:
        if kind == "local" and attn.ws != side:
            raise SuperformerError(f"twins networks have windows of one size; this one has {side} and {attn.ws}")
        if kind == "global" and attn.sr_ratio != ratio(first, i):
            raise SuperformerError(f"twins networks halve sr_ratio from stage to stage; in stage {i} it is {attn.sr_ratio}")
    embed = model.patch_embeds[0]
    stages = tuple(_stage(i, model) for i in range(len(model.blocks)))
    options = {"patch": embed.patch_size[0], "ws": side, "sr": first}
    return Arch("twins", embed.img_size[0], Values(), stages, Twins.schema.normal_options(options))


def _stage(index: int, model: Any) -> StageArch:
    values = (
        Values(type=_type(b), heads=b.attn.num_heads, attn=b.attn.proj.in_features, mlp=b.mlp.fc1.out_features) for b in model.blocks[index]
    )
    return StageArch(tuple(values), Values(width=model.patch_embeds[index].proj.out_channels))


def state(model: Any) -> dict[str, Tensor]:
    """The tensors of a timm Twins by the names they have here."""
    rules: Rules = (
        (r"^patch_embeds\.(\d+)\.", r"stages.\1.enter."),
        (r"^pos_block\.(\d+)\.proj\.0\.", r"stages.\1.enter.peg."),
        (r"^blocks\.(\d+)\.(\d+)\.", lambda m: f"stages.{m[1]}.blocks.{m[2]}.op.{_type(model.blocks[int(m[1])][int(m[2])])}."),
    )
    return rename(model.state_dict(), rules)
