"""AutoFormer and S3 (AutoFormerV2) as released."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from superformer.errors import ArchError, SuperformerError
from superformer.interop.official.release import Release, Rules, State, rename
from superformer.sharing import Sharing
from superformer.space import Space, Stage, point, ratio, times
from superformer.space.arch import Arch, StageArch, Values
from superformer.spaces import s3 as s3_spaces
from superformer.spaces import space as published_space


class AutoFormer(Release):
    """github.com/microsoft/Cream, AutoFormer: YAML files with SUPERNET, SEARCH_SPACE and SUBNET (or RETRAIN), or a
    sub-network's configuration alone.

    Their q, k and v rows are interleaved in the weight but not in the bias: a sub-network of h heads takes the first 3
    * 64 h entries of the bias and cuts them in thirds, so an entry changes its role with h. Kept (``joint``), or
    released weights would not fit."""

    head = "head.weight"
    sharing = Sharing("ordinal", frozenset({"qkv.bias"}))

    def arch(self, official: Any) -> Arch:
        chosen = official.get("SUBNET") or official.get("RETRAIN") or official
        sub = {k.lower(): v for k, v in chosen.items()}
        depth, widths = int(sub.get("layer_num", sub.get("depth", 0))), sub["embed_dim"]
        width = int(widths[0] if isinstance(widths, Sequence) else widths)
        if isinstance(widths, Sequence) and len(set(widths)) > 1:
            raise ArchError(f"AutoFormer networks have one embedding width, not {sorted(set(widths))}")
        heads, ratios = sub["num_heads"], sub["mlp_ratio"]
        if len(heads) != depth or len(ratios) != depth:
            raise ArchError(f"{depth} layers need as many head counts and ratios, not {len(heads)} and {len(ratios)}")
        return s3_spaces.autoformer_network(width, [int(h) for h in heads], [float(r) for r in ratios])

    def is_supernet(self, arch: Arch, state: State) -> bool:
        blocks = arch.stages[0].blocks
        hidden = {k: len(state[name]) for k in range(len(blocks)) if (name := f"blocks.{k}.fc1.bias") in state}
        wider = state["cls_token"].shape[-1] != arch.choices["width"]
        deeper = f"blocks.{len(blocks)}.fc1.bias" in state
        return wider or deeper or any(size != blocks[k]["mlp"] for k, size in hidden.items())

    def space(self, state: State) -> Space:
        """The released space of this supernet, with ratio 3, which AutoFormer-T uses outside its own space."""
        known = {256: "autoformer-tiny", 448: "autoformer-small", 640: "autoformer-base"}
        size = state["cls_token"].shape[-1]
        if size not in known:
            raise SuperformerError(f"no AutoFormer supernet has {size} channels; known: {', '.join(map(str, known))}")
        found = published_space(known[size])
        heads = range(1, state["blocks.0.attn.qkv.bias"].shape[0] // 192 + 1)
        block = {"heads": heads, "attn": times(64, of="heads"), "mlp": ratio(3, 3.5, 4, of="width")}
        return replace(found, name=f"{found.name}-released", stages=(Stage(block, depth=found.stages[0].depths),))

    def tensors(self, space: Space, state: State) -> dict[str, Tensor]:
        """Channels that no sub-network uses (the supernets are wider than their largest choice) are left out."""
        width = space.widths("width")[-1]
        hidden = [space.widths("mlp", 0, p)[-1] for p in range(space.stages[0].positions)]
        rules: Rules = [
            (r"^blocks\.", "stages.0.blocks."),
            (r"attn_layer_norm", "norm1"), (r"ffn_layer_norm", "norm2"), (r"\.(fc\d)\.", r".mlp.\1."),
            (r"rel_pos_embed_(k|v)\.embeddings_table_v$", r"relative.\1_rows.weight"),
            (r"rel_pos_embed_(k|v)\.embeddings_table_h$", r"relative.\1_cols.weight"),
            (r"^patch_embed_super\.", "stems.16."), (r"^(pos_embed|cls_token)$", r"stems.16.\1.weight"),
        ]  # fmt: skip
        out = rename(state, rules)
        for name, tensor in out.items():
            rows = columns = None
            if m := re.search(r"blocks\.(\d+)\.mlp\.(fc\d)\.(weight|bias)$", name):
                rows, columns = (hidden[int(m[1])], width) if m[2] == "fc1" else (width, hidden[int(m[1])])
                columns = columns if m[3] == "weight" else None
            elif name.endswith("qkv.weight"):
                tensor, columns = torch.cat([tensor[part::3] for part in range(3)]), width
            elif name.endswith(("pos_embed.weight", "cls_token.weight")):
                tensor, columns = tensor.flatten(0, -2), width
            elif name == "head.weight":
                columns = width
            elif name.startswith(("stems.16.proj", "norm.")) or ".norm" in name or "attn.proj" in name:
                rows = width
            out[name] = tensor[:rows] if columns is None else tensor[:rows, :columns]
        return out


BUFFERS = ("relative_position_index", "attn_mask")
"""What their state dictionaries hold besides weights."""


def swin_names(state: State) -> dict[str, Tensor]:
    """Our names for the tensors of a Swin transformer; a table of relative positions goes by its window."""
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


class S3(Release):
    """github.com/microsoft/Cream, AutoFormerV2: configurations (DEPTHS, EMBED_DIM, NUM_HEADS, MLP_RATIO, WINDOW_SIZE).

    Their lists may be longer than a stage is deep (S3-T's are); what is too much is not read. No supernet was released:
    `supernet` gives the space of the one network that the weights are of."""

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
        own = swin_names(state)
        stages: dict[int, dict[int, Values]] = {}
        for name in own:
            if m := re.fullmatch(r"stages\.(\d+)\.blocks\.(\d+)\.attn\.relative_bias\.(\d+)\.weight", name):
                block = f"stages.{m[1]}.blocks.{m[2]}."
                attn, mlp = own[f"{block}attn.proj.weight"].shape[1], own[f"{block}mlp.fc1.weight"].shape[0]
                values = Values(window=int(m[3]), heads=own[name].shape[-1], attn=attn, mlp=mlp)
                stages.setdefault(int(m[1]), {})[int(m[2])] = values
        if sorted(stages) != list(range(len(stages))) or not stages:
            given = f"these weights have blocks in the stages {sorted(stages)}"
            raise SuperformerError(f"{given}; a network has some in every stage")
        parts = []
        for i, blocks in sorted(stages.items()):
            width = Values(width=own[f"stages.{i}.blocks.0.norm1.weight"].shape[0])
            parts.append(StageArch(tuple(blocks[j] for j in sorted(blocks)), width))
        widest = max(int(b["window"]) * 2**i for i, s in enumerate(parts) for b in s.blocks)
        return point(Arch("swin", 224 if 4 * widest <= 224 else 384, Values(), tuple(parts)))

    def tensors(self, space: Space, state: State) -> dict[str, Tensor]:
        return swin_names(state)
