"""NASViT's released supernet."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from superformer.interop.official.release import Release, Rules, State, rename
from superformer.space import Space
from superformer.space.arch import Arch
from superformer.spaces import nasvit as spaces
from superformer.spaces import space as published_space

UNUSED = r"bn_tracking|num_batches_tracked|relative_position_index|mobile_inverted_conv\.rescale"
RULES: Rules = [
    (r"\.(conv|bn)\.\1\.", r".\1."), (r"\.linear\.(weight|bias)$", r".\1"),
    (r"^first_conv\.conv\.", "stem."), (r"^first_conv\.bn\.", "stem_norm."),
    (r"mobile_inverted_conv\.", ""),
    (r"inverted_bottleneck\.conv", "expand"), (r"inverted_bottleneck\.bn", "expand_norm"),
    (r"depth_conv\.conv", "depthwise"), (r"depth_conv\.bn", "depthwise_norm"), (r"depth_conv\.se\.fc", "excite"),
    (r"point_linear\.conv", "point"), (r"point_linear\.bn", "point_norm"), (r"shortcut\.conv", "shortcut"),
    (r"attn\.vconv", "v_conv"), (r"attn\.proj_l", "talk1"), (r"attn\.proj_w", "talk2"),
    (r"attn\.relative_position_bias_table", "positions.weight"), (r"attn\.", ""),
    (r"rescale_attn", "scales.attn.weight"), (r"rescale_mlp", "scales.mlp1.weight"),
    # their second MLP runs first
    (r"mlp2\.linear", "FIRST.fc"), (r"mlp1\.linear", "mlp2.fc"), (r"FIRST", "mlp1"),
    (r"norm3\.", "FIRST."), (r"norm2\.", "norm3."), (r"FIRST\.", "norm2."),
    (r"^last_conv\.final_expand_layer\.conv", "final"), (r"^last_conv\.final_expand_layer\.bn", "final_norm"),
    (r"^last_conv\.feature_mix_layer\.conv", "mix"), (r"^classifier\.linear", "head"),
]  # fmt: skip


class NasVit(Release):
    """Architectures: resolution, width[9], depth[7], kernel_size[7], expand_ratio[7]. The networks resize pictures to
    their own resolution, so another ``img_size`` changes nothing."""

    head = "classifier.linear.linear.weight"
    any_size = True

    def arch(self, official: Any) -> Arch:
        names = ("width", "depth", "kernel_size", "expand_ratio")
        return spaces.network(int(official["resolution"]), *(official[name] for name in names))

    def is_supernet(self, arch: Arch, state: State) -> bool:
        return True

    def space(self, state: State) -> Space:
        return published_space("nasvit-released")

    def tensors(self, space: Space, state: State) -> dict[str, Tensor]:
        where: dict[int, str] = {}
        for i, stage in enumerate(space.stages):
            where[len(where)] = f"stages.{i}.enter."
            inner = "conv." if i < 3 else ""
            for p in range(stage.positions):
                where[len(where)] = f"stages.{i}.blocks.{p}.{inner}"
        used = {name: tensor for name, tensor in state.items() if not re.search(UNUSED, name)}
        out = rename(used, [(r"^blocks\.(\d+)\.", lambda m: where[int(m[1])]), *RULES])
        out = {name: t for name, t in out.items() if not re.search(r"blocks\.\d+\.(conv\.)?shortcut", name)}
        for name in [n for n in out if n.endswith((".q.weight", ".q.bias"))]:
            out[name.replace(".q.", ".qk.")] = torch.cat([out.pop(name), out.pop(name.replace(".q.", ".k."))])
        return {name: self._shaped(name, tensor, space) for name, tensor in out.items()}

    @staticmethod
    def _shaped(name: str, tensor: Tensor, space: Space) -> Tensor:
        """Tables at the sizes that some architecture reaches; matrices instead of 1x1 kernels where a layer is one."""
        if name.endswith(("excite.reduce.weight", "excite.expand.weight")) or name == "mix.weight":
            return tensor.flatten(1)
        if "positions" not in name and "scales" not in name:
            return tensor
        stage = int(name.split(".")[1])
        sizes = [spaces.map_side(size, stage) for size in spaces.RESOLUTIONS]
        if "scales" in name:  # their depth counts the stage's first layer
            tensor = tensor[torch.tensor([d + 1 for d in space.stages[stage].depths])]
            return tensor[:, sorted({s * s % 8 for s in sizes})]
        side = round(len(tensor) ** 0.5)
        cut = (side - (2 * max(sizes) - 1)) // 2
        return tensor.view(side, side, -1)[cut : side - cut, cut : side - cut]
