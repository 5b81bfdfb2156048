"""S3 as released."""

from __future__ import annotations

import math
import re
from typing import Any

from torch import Tensor

from superformer.errors import ArchError, SuperformerError
from superformer.official.family import Family, Rules, State, rename
from superformer.space import Space, point
from superformer.space.arch import Arch, StageArch, Values
from superformer.spaces import s3 as s3_spaces

BUFFERS = ("relative_position_index", "attn_mask")
"""What their state dictionaries hold besides weights."""


def names(state: State) -> dict[str, Tensor]:
    """Our names for the tensors of a Swin transformer. A table of relative positions goes by its window, which its size tells."""
    out = {}
    rules: Rules = [
        (r"^patch_embed\.", "stem."),
        (r"^layers\.(\d+)\.blocks\.", r"stages.\1.blocks."),
        (r"^layers\.(\d+)\.downsample\.", lambda m: f"stages.{int(m[1]) + 1}.enter."),
    ]
    for name, tensor in rename({k: v for k, v in state.items() if not k.endswith(BUFFERS)}, rules).items():
        if name.endswith("relative_position_bias_table"):
            side = math.isqrt(len(tensor))
            name = name.replace("relative_position_bias_table", f"relative_bias.{(side + 1) // 2}.weight")
            tensor = tensor.reshape(side, side, -1)
        out[name] = tensor
    return out


class S3(Family):
    """github.com/microsoft/Cream, AutoFormerV2: configurations with DEPTHS, EMBED_DIM, NUM_HEADS, MLP_RATIO and WINDOW_SIZE.

    Their lists may be longer than a stage is deep (S3-T's are); what is too much is not read. No supernet was released: `supernet` gives
    the space of the one network that the weights are of.
    """

    head = "head.weight"

    def arch(self, official: Any) -> Arch:
        own = {k.lower(): v for k, v in official.get("MODEL", official).items()}
        lists = {k: own[k] for k in ("window_size", "num_heads", "mlp_ratio")}
        stages = []
        for i, (width, depth) in enumerate(zip(own["embed_dim"], own["depths"], strict=True)):
            for name, values in lists.items():
                if len(values[i]) < depth:
                    raise ArchError(f"stage {i} has {depth} blocks, but {name} only {len(values[i])} entries")
            stages.append((int(width), [tuple(v[i][j] for v in lists.values()) for j in range(depth)]))
        return s3_spaces.network(stages)

    def is_supernet(self, arch: Arch, state: State) -> bool:
        return False

    def space(self, state: State) -> Space:
        own = names(state)
        stages: dict[int, dict[int, Values]] = {}
        for name in own:
            if m := re.fullmatch(r"stages\.(\d+)\.blocks\.(\d+)\.attn\.relative_bias\.(\d+)\.weight", name):
                block = f"stages.{m[1]}.blocks.{m[2]}."
                attn, mlp = own[f"{block}attn.proj.weight"].shape[1], own[f"{block}mlp.fc1.weight"].shape[0]
                stages.setdefault(int(m[1]), {})[int(m[2])] = Values(window=int(m[3]), heads=own[name].shape[-1], attn=attn, mlp=mlp)
        if sorted(stages) != list(range(len(stages))) or not stages:
            raise SuperformerError(f"these weights have blocks in the stages {sorted(stages)}; a network has some in every stage")
        parts = []
        for i, blocks in sorted(stages.items()):
            width = Values(width=own[f"stages.{i}.blocks.0.norm1.weight"].shape[0])
            parts.append(StageArch(tuple(blocks[j] for j in sorted(blocks)), width))
        widest = max(int(b["window"]) * 2**i for i, s in enumerate(parts) for b in s.blocks)
        return point(Arch("swin", 224 if 4 * widest <= 224 else 384, Values(), tuple(parts)))

    def standalone(self, arch: Arch, state: State) -> dict[str, Tensor]:
        return names(state)

    def supernet(self, space: Space, state: State) -> dict[str, Tensor]:
        return names(state)
