"""ViTAS (v1) as released."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from superformer.errors import ArchError, SuperformerError
from superformer.interop.official.release import Release, Rules, State, numbers, rename
from superformer.sharing import Sharing
from superformer.space import Space
from superformer.space.arch import Arch
from superformer.spaces import space as published_space
from superformer.spaces import vitas as vitas_spaces


class Vitas(Release):
    """github.com/xiusu/ViTAS (v1): networks as the configuration's ``backbone``, with ``net_id`` genes.

    Kept from the released code: attention logits are scaled by (width // heads)^-1/2 in stand-alone networks and by
    128^-1/2 in supernets, and a supernet's packed q and k are cut as one run (``joint``). Mended: the supernet's
    position table, of which the released code gives every token the last row, and genes of identities, which its
    forward pass does not consume."""

    head = "net.backbone_FC_FC_0.0.module.0.weight"
    sharing = Sharing("bilateral", frozenset({"qk.weight", "qk.bias"}))
    ratios = tuple(i / 10 for i in range(1, 11))

    def arch(self, official: Any) -> Arch:
        own = official.get("supernet", official)
        backbone = own["backbone"]
        patches, width = backbone["init_stem"][2], int(backbone["init_stem"][4])
        positions, _, heads, packed, _, hidden, *_ = backbone["Block"]
        genes = official.get("net_id")
        options = {**vitas_spaces.OPTIONS, "scale": 128**-0.5 if "supernet" in official else "embed"}
        if genes is None:
            return vitas_spaces.vit_network(width, [(heads[0], packed // 3, hidden)] * positions, patches[0], options)
        if isinstance(genes, str):
            genes = [int(g) for g in genes.split()]
        if len(genes) != positions + 3 + 1 + 2 * positions:
            raise ArchError(f"a net_id of {positions} positions has {4 + 3 * positions} genes, not {len(genes)}")
        ratios = official.get("channel_percent", self.ratios)
        ops, widths = genes[1 : positions + 1], [ratios[g] for g in genes[positions + 3 :]]
        blocks, at = [], []
        for p, op in enumerate(ops):
            if op < len(heads):
                a, f = widths[1 + 2 * p], widths[2 + 2 * p]
                blocks.append((heads[op], round(a * packed) // 3, round(f * hidden)))
                at.append(p)
        found = vitas_spaces.vit_network(round(widths[0] * width), blocks, patches[genes[0]], options)
        placed = None if at == list(range(len(at))) else tuple(at)
        return found.placed((placed,))

    def is_supernet(self, arch: Arch, state: State) -> bool:
        return any(".attn.qk0." in name for name in state)

    def space(self, state: State) -> Space:
        width = state["net.backbone_Norm_Norm_0.0.weight"].shape[0]
        known = {384: "vitas-v1", 768: "vitas-v1-wide"}
        if width not in known:
            raise SuperformerError(f"no ViTAS supernet is {width} wide; known: {', '.join(map(str, known))}")
        found = published_space(known[width])
        return replace(found, name=f"{found.name}-released", options={**found.options, "scale": 128**-0.5})

    def tensors(self, space: Space, state: State) -> dict[str, Tensor]:
        """A stand-alone network has one of three stems, and numbers its blocks as the supernet does."""
        heads, patches = vitas_spaces.HEADS, sorted(space.widths("patch_size"))
        stems = patches * 3 if len(patches) == 1 else patches
        positions = numbers(state, r"net\.backbone_Block_(?:Block|id)_(\d+)\.0\.norm1")
        rules: Rules = [
            (r"^net\.", ""),
            (r"^backbone_init_stem_Patch_init_0\.(\d)\.", lambda m: f"stems.{stems[int(m[1])]}."),
            (r"patch_embed\.proj", "proj"), (r"(cls_token|pos_embed)$", r"\1.weight"),
            (r"^backbone_Block_(?:Block|id)_(\d+)\.0\.", lambda m: f"stages.0.blocks.{positions.index(int(m[1]))}."),
            (r"attn\.qk(\d)\.", lambda m: f"attn.qk.{heads[int(m[1])]}."), (r"attn\.v\.", "attn.v.all."),
            (r"^backbone_Norm_Norm_0\.0", "norm"), (r"^backbone_FC_FC_0\.0\.module\.0", "head"),
        ]  # fmt: skip
        renamed = rename(state, rules)
        return {k: v[0] if v.ndim == 3 and k.startswith("stems.") else v for k, v in renamed.items()}
