"""timm's plain vision transformers, both ways: which architecture one is, what its tensors are called here, and with
which words timm builds an architecture of ours.

Known are all that differ from ViT by options of our family: DeiT and DeiT-III, DINOv2 (with and without registers),
MAE and augreg with the mean of the patches, networks without a class token (``gap``), CLIP's picture towers."""

from __future__ import annotations

from typing import Any

from timm.layers import LayerNorm
from torch import Tensor, nn

from superformer.errors import SuperformerError
from superformer.families.vit import Vit
from superformer.interop.official.release import Rules, rename
from superformer.space.arch import Arch, StageArch, Values

ACTS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu"}
PLAIN = {
    "VisionTransformer", "PatchEmbed", "Sequential", "Block", "Attention", "Mlp", "LayerNorm", "LayerScale", "Linear",
    "Conv2d", "Identity", "Dropout", "DropPath", "PatchDropout", *ACTS,
}  # fmt: skip
"""The layers of a plain vision transformer."""
OTHER = {
    "AttentionPoolLatent": "attention pooling (SigLIP's; timm has the same networks with the mean, named gap)",
    "GluMlp": "gated MLPs", "SwiGLU": "gated MLPs", "SwiGLUPacked": "gated MLPs", "RmsNorm": "RMS norms",
    "HybridEmbed": "a convolutional stem", "ParallelScalingBlock": "attention and MLP side by side",
    "ParallelThingsBlock": "blocks side by side", "ResPostBlock": "norms after attention and MLP",
}  # fmt: skip
"""What other ones have, in words."""
ENTRIES = {1e-6: "vit_tiny_patch16_224", 1e-5: "vit_base_patch16_clip_224"}
"""A network of timm for each eps of its norms, the one thing that its words (JSON) cannot say."""


def widths(block: Any) -> dict[str, int]:
    """The choices that transformer blocks of all families have."""
    return {"heads": block.attn.num_heads, "attn": block.attn.proj.in_features, "mlp": block.mlp.fc1.out_features}


def ratio(width: int, hidden: int) -> float:
    """timm's ``mlp_ratio`` for a hidden width: the whole part of its product with the width."""
    found = hidden / width
    return found if int(width * found) == hidden else (hidden + 0.5) / width


def vit_arch(model: Any) -> Arch:
    """The architecture of a ``timm.models.vision_transformer.VisionTransformer``."""
    _check(model)
    rows, cols = model.patch_embed.img_size
    (patch, other), first = model.patch_embed.patch_size, model.blocks[0]
    if rows != cols or patch != other:
        given = f"{rows} x {cols} and {patch} x {other}"
        raise SuperformerError(f"only square pictures and patches are known here, not {given}")
    act, mean = first.mlp.act, model.global_pool == "avg"
    final = model.norm if isinstance(model.fc_norm, nn.Identity) else model.fc_norm
    options: dict[str, Any] = {"eps": first.norm1.eps, "final_eps": final.eps, "pool": "mean" if mean else "cls"}
    # of one token the norm is the same before and after the pooling
    options |= {"pool_norm": mean and final is model.fc_norm, "class_token": model.cls_token is not None}
    options |= {"reg_tokens": model.num_reg_tokens or None, "pre_norm": not isinstance(model.norm_pre, nn.Identity)}
    options["embed_class"] = not (model.no_embed_class and model.num_prefix_tokens)
    options["act"] = "gelu_tanh" if getattr(act, "approximate", "") == "tanh" else ACTS[type(act).__name__]
    if hasattr(first.ls1, "gamma"):
        options["layer_scale"] = float(getattr(first.ls1, "init_values", 1e-5))
    choices = Values(patch_size=patch, width=model.embed_dim)
    blocks = tuple(Values(widths(block)) for block in model.blocks)
    return Arch("vit", int(rows), choices, (StageArch(blocks),), Vit.schema.normal_options(options))


def _check(model: Any) -> None:
    """Only what this family computes: anything else would load and be another function."""
    found = {type(m).__name__ for m in model.modules()} - PLAIN
    reasons = sorted({OTHER.get(name, f"layers of the kind {name}") for name in found})
    if not reasons:
        reasons = [name for name, there in _unknown(model) if there]
    if reasons:
        raise SuperformerError(f"this vision transformer has {', '.join(reasons)}; a vit here does not compute that")


def _unknown(model: Any) -> list[tuple[str, bool]]:
    blocks = list(model.blocks)
    norms = [n for b in blocks for n in (b.norm1, b.norm2)]
    norms += [] if isinstance(model.norm_pre, nn.Identity) else [model.norm_pre]
    inner = [n for b in blocks for n in (b.attn.q_norm, b.attn.k_norm, b.attn.norm, b.mlp.norm)]
    biased = [layer for b in blocks for layer in (b.attn.qkv, b.attn.proj, b.mlp.fc1, b.mlp.fc2)]
    ends = [n for n in (model.norm, model.fc_norm) if not isinstance(n, nn.Identity)]
    patch_bias, pre_norm = model.patch_embed.proj.bias is not None, not isinstance(model.norm_pre, nn.Identity)
    return [
        ("no blocks", not blocks),
        ("no position table", model.pos_embed is None),
        ("norms within attention or MLPs (of queries, keys, ...)", any(not isinstance(n, nn.Identity) for n in inner)),
        ("a norm of the patches", not isinstance(model.patch_embed.norm, nn.Identity)),
        ("a gate of the attention", any(getattr(b.attn, "gate", None) is not None for b in blocks)),
        ("matrices without biases", any(layer.bias is None for layer in biased)),
        ("blocks of several kinds", len({(type(b.mlp.act), hasattr(b.ls1, "gamma")) for b in blocks}) > 1),
        ("norms of several eps", len({n.eps for n in norms}) > 1),
        ("no final norm, or two", len(ends) != 1),
        (f"the pooling {model.global_pool!r}", model.global_pool not in ("token", "avg")),
        ("a mean of all tokens, not of the patches", model.global_pool == "avg" and model.pool_include_prefix),
        ("a bias of the patches before a norm, or neither", patch_bias == pre_norm),
    ]


def vit_state(model: Any) -> dict[str, Tensor]:
    stem = f"stems.{model.patch_embed.patch_size[0]}."
    rules: Rules = [
        (r"^blocks\.", "stages.0.blocks."),
        (r"\.ls(\d)\.gamma$", r".scale\1.weight"),
        (r"^patch_embed\.", stem),
        (r"^(pos_embed|cls_token|reg_token)$", rf"{stem}\1.weight"),
        (r"^fc_norm\.", "norm."),
    ]
    return {k: v[0] if k.startswith(stem) and v.ndim == 3 else v for k, v in rename(model.state_dict(), rules).items()}


def vit_words(arch: Arch) -> tuple[str, dict[str, Any]]:
    """A network of timm and the words that make it this architecture, as far as words can."""

    def option(name: str) -> Any:
        return Vit.schema.option(arch.options, name)

    width, first = arch.choices.int("width"), arch.stages[0].blocks[0]
    words: dict[str, Any] = {"img_size": arch.resolution, "patch_size": arch.choices["patch_size"], "embed_dim": width}
    words |= {"depth": len(arch.stages[0].blocks), "num_heads": first["heads"]}
    words |= {
        "mlp_ratio": ratio(width, first.int("mlp")),
        "global_pool": "avg" if option("pool") == "mean" else "token",
    }
    words |= {"class_token": bool(option("class_token")), "no_embed_class": not option("embed_class")}
    words |= {"pre_norm": bool(option("pre_norm")), "fc_norm": bool(option("pool_norm"))}
    words |= {"reg_tokens": option("reg_tokens") or 0, "act_layer": option("act")}
    words |= {"out_indices": list(range(words["depth"]))} if words["depth"] < 3 else {}  # of features_only
    words |= {"init_values": option("layer_scale")} if option("layer_scale") else {}
    return ENTRIES.get(option("eps"), ENTRIES[LayerNorm(1).eps]), words
