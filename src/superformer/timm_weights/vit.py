"""timm's plain vision transformers: ViT, DeiT."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from superformer.errors import SuperformerError
from superformer.official.family import Rules, rename
from superformer.space.arch import Arch, StageArch, Values


def arch(model: Any) -> Arch:
    """The architecture of a ``timm.models.vision_transformer.VisionTransformer``."""
    rows, cols = model.patch_embed.img_size
    (patch, other), width = model.patch_embed.patch_size, model.embed_dim
    if rows != cols or patch != other:
        raise SuperformerError(f"only square pictures and patches are known here, not {rows} x {cols} and {patch} x {other}")
    first = model.blocks[0]
    unknown = {
        "register or distillation tokens": model.num_prefix_tokens != 1 or model.cls_token is None,
        "no position table": model.pos_embed is None or model.no_embed_class,
        "a norm before the blocks": not isinstance(model.norm_pre, nn.Identity),
        "pooling other than by class token": model.global_pool != "token" or not isinstance(model.fc_norm, nn.Identity),
        "norms of queries and keys": not isinstance(first.attn.q_norm, nn.Identity),
        "gated or otherwise different MLPs": type(first.mlp).__name__ != "Mlp" or not isinstance(first.mlp.act, nn.GELU),
        "no biases of q, k and v": first.attn.qkv.bias is None,
    }
    if found := [name for name, there in unknown.items() if there]:
        raise SuperformerError(f"this vision transformer has {', '.join(found)}; that is not known here")
    blocks = tuple(Values(heads=b.attn.num_heads, attn=b.attn.proj.in_features, mlp=b.mlp.fc1.out_features) for b in model.blocks)
    options: dict[str, Any] = {"eps": first.norm1.eps, "final_eps": model.norm.eps}
    if hasattr(first.ls1, "gamma"):
        options["layer_scale"] = float(getattr(first.ls1, "init_values", 1e-5))
    defaults = {"eps": 1e-6, "final_eps": 1e-6}
    kept = Values({k: v for k, v in options.items() if defaults.get(k) != v})
    return Arch("vit", int(rows), Values(patch_size=patch, width=width), (StageArch(blocks),), kept)


def state(model: Any) -> dict[str, Tensor]:
    stem = f"stems.{model.patch_embed.patch_size[0]}."
    rules: Rules = [
        (r"^blocks\.", "stages.0.blocks."),
        (r"\.ls(\d)\.gamma$", r".scale\1.weight"),
        (r"^patch_embed\.", stem),
        (r"^(pos_embed|cls_token)$", rf"{stem}\1.weight"),
    ]
    return {k: v[0] if k.startswith(stem) and v.ndim == 3 else v for k, v in rename(model.state_dict(), rules).items()}
