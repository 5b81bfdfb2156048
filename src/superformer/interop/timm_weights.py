"""timm's networks as ours: the same architecture, the same weights, the same logits.

For each of timm's classes one function says which architecture a network is, and one what its tensors are called here:
VisionTransformer (ViT, DeiT), SwinTransformer, Twins (SVT, and PCPVT, whose blocks are all global) and ResNet (plain
bottleneck ones: resnet50, resnet101, wide_resnet50_2, ...)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import timm
import torch
from timm.models.resnet import Bottleneck
from torch import Tensor, nn

import superformer.interop.timm  # noqa: F401  # timm knows our models, too
from superformer.errors import SuperformerError
from superformer.families.network import Network
from superformer.families.twins import OPTIONS, Twins, ratio
from superformer.interop.official.release import Rules, rename
from superformer.interop.official.s3 import swin_names
from superformer.space import point
from superformer.space.arch import Arch, StageArch, Values
from superformer.space.schema import family

Reader = tuple[Callable[[Any], Arch], Callable[[Any], dict[str, Tensor]]]
"""What says which architecture a timm network is, and what its tensors are called here."""


def from_timm(model: nn.Module | str, **settings: Any) -> Network:
    """Our network with the architecture and the weights of a timm network (or of the name of one; ``settings`` are
    timm's, such as ``pretrained=True``), in the same mode."""
    source = timm.create_model(model, **settings) if isinstance(model, str) else model
    kind = type(source).__name__
    if kind not in READERS:
        raise SuperformerError(f"timm networks of the kind {kind} have no family here; known: {', '.join(READERS)}")
    read_arch, read_state = READERS[kind]
    arch, state = read_arch(source), read_state(source)
    channels = next(m.in_channels for m in source.modules() if isinstance(m, nn.Conv2d))
    with torch.device("meta"):
        net = family(arch.family)(point(arch), int(getattr(source, "num_classes", 1000)), in_chans=channels)
    net.load_state_dict({k: v.detach().clone() for k, v in state.items()}, assign=True)
    for p in net.parameters():
        p.requires_grad_(True)
    return net.train(source.training)


def _widths(block: Any) -> dict[str, int]:
    """The choices that transformer blocks of all families have."""
    return {"heads": block.attn.num_heads, "attn": block.attn.proj.in_features, "mlp": block.mlp.fc1.out_features}


def vit_arch(model: Any) -> Arch:
    """The architecture of a ``timm.models.vision_transformer.VisionTransformer``."""
    rows, cols = model.patch_embed.img_size
    (patch, other), width = model.patch_embed.patch_size, model.embed_dim
    if rows != cols or patch != other:
        given = f"{rows} x {cols} and {patch} x {other}"
        raise SuperformerError(f"only square pictures and patches are known here, not {given}")
    first = model.blocks[0]
    plain_mlp = type(first.mlp).__name__ == "Mlp" and isinstance(first.mlp.act, nn.GELU)
    unknown = {
        "register or distillation tokens": model.num_prefix_tokens != 1 or model.cls_token is None,
        "no position table": model.pos_embed is None or model.no_embed_class,
        "a norm before the blocks": not isinstance(model.norm_pre, nn.Identity),
        "pooling other than by class token": model.global_pool != "token" or not isinstance(model.fc_norm, nn.Identity),
        "norms of queries and keys": not isinstance(first.attn.q_norm, nn.Identity),
        "gated or otherwise different MLPs": not plain_mlp,
        "no biases of q, k and v": first.attn.qkv.bias is None,
    }
    if found := [name for name, there in unknown.items() if there]:
        raise SuperformerError(f"this vision transformer has {', '.join(found)}; that is not known here")
    blocks = tuple(Values(_widths(block)) for block in model.blocks)
    options = {k: v for k, v in (("eps", first.norm1.eps), ("final_eps", model.norm.eps)) if v != 1e-6}
    if hasattr(first.ls1, "gamma"):
        options["layer_scale"] = float(getattr(first.ls1, "init_values", 1e-5))
    return Arch("vit", int(rows), Values(patch_size=patch, width=width), (StageArch(blocks),), Values(options))


def vit_state(model: Any) -> dict[str, Tensor]:
    stem = f"stems.{model.patch_embed.patch_size[0]}."
    rules: Rules = [
        (r"^blocks\.", "stages.0.blocks."),
        (r"\.ls(\d)\.gamma$", r".scale\1.weight"),
        (r"^patch_embed\.", stem),
        (r"^(pos_embed|cls_token)$", rf"{stem}\1.weight"),
    ]
    return {k: v[0] if k.startswith(stem) and v.ndim == 3 else v for k, v in rename(model.state_dict(), rules).items()}


def swin_arch(model: Any) -> Arch:
    """The architecture of a ``timm.models.swin_transformer.SwinTransformer``."""
    rows, cols = model.patch_embed.img_size
    if rows != cols or model.patch_embed.patch_size != (4, 4):
        given = f"{rows} x {cols} and {model.patch_embed.patch_size}"
        raise SuperformerError(f"only square pictures and patches of 4 pixels are known, not {given}")
    stages = []
    for layer in model.layers:
        blocks = []
        for k, block in enumerate(layer.blocks):
            (window, other), grid = block.window_size, block.input_resolution
            moved = window // 2 if k % 2 and window < min(grid) else 0
            if window != other or window > min(grid) or tuple(block.shift_size) != (moved, moved):
                given = f"windows of {window} x {other} tokens, moved by {tuple(block.shift_size)}, on {grid}"
                raise SuperformerError(f"{given} are not known here")
            blocks.append(Values(window=window, **_widths(block)))
        stages.append(StageArch(tuple(blocks), Values(width=layer.blocks[0].norm1.normalized_shape[0])))
    eps = model.norm.eps
    return Arch("swin", int(rows), Values(), tuple(stages), Values({} if eps == 1e-5 else {"eps": eps}))


def swin_state(model: Any) -> dict[str, Tensor]:
    """timm has a stage's patch merging before its blocks, as we do; Swin's authors have it one stage earlier."""
    rules = [(r"^layers\.(\d+)\.downsample\.", r"stages.\1.enter."), (r"^head\.fc\.", "head.")]
    return swin_names(rename(model.state_dict(), rules))


def _twins_type(block: Any) -> str:
    return "global" if hasattr(block.attn, "sr_ratio") else "local"


def twins_arch(model: Any) -> Arch:
    """The architecture of a timm Twins."""
    if model.global_pool != "avg":
        raise SuperformerError(f"twins networks pool the mean of all tokens, not {model.global_pool!r}")
    blocks = [(i, block.attn, _twins_type(block)) for i, stage in enumerate(model.blocks) for block in stage]
    side = next((attn.ws for _, attn, kind in blocks if kind == "local"), OPTIONS["ws"])
    first = next((attn.sr_ratio << i for i, attn, kind in blocks if kind == "global"), OPTIONS["sr"])
    for i, attn, kind in blocks:
        if kind == "local" and attn.ws != side:
            raise SuperformerError(f"twins networks have windows of one size; this one has {side} and {attn.ws}")
        if kind == "global" and attn.sr_ratio != ratio(first, i):
            given = f"in stage {i} it is {attn.sr_ratio}"
            raise SuperformerError(f"twins networks halve sr_ratio from stage to stage; {given}")
    stages = []
    for embed, stage in zip(model.patch_embeds, model.blocks, strict=True):
        values = (Values(type=_twins_type(block), **_widths(block)) for block in stage)
        stages.append(StageArch(tuple(values), Values(width=embed.proj.out_channels)))
    stem = model.patch_embeds[0]
    options = Twins.schema.normal_options({"patch": stem.patch_size[0], "ws": side, "sr": first})
    return Arch("twins", stem.img_size[0], Values(), tuple(stages), options)


def twins_state(model: Any) -> dict[str, Tensor]:
    """The tensors of a timm Twins by the names they have here."""

    def block(m: re.Match[str]) -> str:
        return f"stages.{m[1]}.blocks.{m[2]}.op.{_twins_type(model.blocks[int(m[1])][int(m[2])])}."

    enter: Rules = [
        (r"^patch_embeds\.(\d+)\.", r"stages.\1.enter."), (r"^pos_block\.(\d+)\.proj\.0\.", r"stages.\1.enter.peg."),
    ]  # fmt: skip
    return rename(model.state_dict(), [*enter, (r"^blocks\.(\d+)\.(\d+)\.", block)])


PLAIN = {
    "ResNet", "Sequential", "Bottleneck", "Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d", "Identity", "Linear",
    "DropPath", "SelectAdaptivePool2d", "AdaptiveAvgPool2d", "Flatten",
}  # fmt: skip
"""The layers of a plain ResNet and of its pooling."""
ONLY = "only plain bottleneck ResNets are of the family resnet"
RESNET_RULES: Rules = (
    (r"^conv1\.", "stem.conv."), (r"^bn1\.", "stem.norm."), (r"^fc\.", "head."),
    (r"\.conv(\d)\.", r".conv\1.conv."), (r"\.bn(\d)\.", r".conv\1.norm."),
    (r"\.downsample\.0\.", ".shortcut.conv."), (r"\.downsample\.1\.", ".shortcut.norm."),
    (r"^layer(\d)\.0\.", lambda m: f"stages.{int(m[1]) - 1}.enter."),
    (r"^layer(\d)\.(\d+)\.", lambda m: f"stages.{int(m[1]) - 1}.blocks.{int(m[2]) - 1}."),
)  # fmt: skip


def resnet_arch(model: Any) -> Arch:
    """Which architecture a timm network is."""
    _resnet_check(model)
    stages = []
    for layer in (model.layer1, model.layer2, model.layer3, model.layer4):
        mids = [(b.conv1.out_channels, b.conv2.out_channels) for b in layer]
        entry = Values(width=layer[0].conv3.out_channels, entry1=mids[0][0], entry2=mids[0][1])
        stages.append(StageArch(tuple(Values(mid1=a, mid2=b) for a, b in mids[1:]), entry))
    size = model.default_cfg.get("input_size", (3, 224, 224))
    return Arch("resnet", int(size[-1]), Values(stem=model.conv1.out_channels), tuple(stages))


def resnet_state(model: nn.Module) -> dict[str, Tensor]:
    """Its tensors under our names."""
    return rename(model.state_dict(), RESNET_RULES)


def _resnet_check(model: Any) -> None:
    """Only what this family computes: anything else would load and be another function."""
    if other := sorted({type(m).__name__ for m in model.modules()} - PLAIN):
        raise SuperformerError(f"{ONLY}; this one has {', '.join(other)}")
    wanted: dict[str, tuple[int, int]] = {"conv1": (7, 2)}
    for i in range(4):
        for k, block in enumerate(getattr(model, f"layer{i + 1}")):
            name, stride = f"layer{i + 1}.{k}", 2 if i and not k else 1
            assert isinstance(block, Bottleneck)
            wanted |= {f"{name}.conv1": (1, 1), f"{name}.conv2": (3, stride), f"{name}.conv3": (1, 1)}
            if not k:
                wanted[f"{name}.downsample.0"] = (1, stride)
    found = {
        name: (m.kernel_size[0], m.stride[0]) if m.groups == 1 and m.dilation == (1, 1) and m.bias is None else m
        for name, m in model.named_modules()
        if isinstance(m, nn.Conv2d)
    }
    for name in sorted({*wanted, *found}):
        if found.get(name) != wanted.get(name):
            what = f"{name} is {found.get(name, 'missing')}, not {wanted.get(name, 'there')}"
            raise SuperformerError(f"{ONLY}; kernel and stride of {what}")
    eps = {m.eps for m in model.modules() if isinstance(m, nn.BatchNorm2d)}
    pool = getattr(model.global_pool, "pool_type", "avg")
    if pool != "avg" or eps != {1e-5} or type(model.maxpool) is not nn.MaxPool2d:
        raise SuperformerError(f"{ONLY}; this one pools by {pool!r}, with eps {eps}")


READERS: dict[str, Reader] = {
    "VisionTransformer": (vit_arch, vit_state),
    "SwinTransformer": (swin_arch, swin_state),
    "Twins": (twins_arch, twins_state),
    "ResNet": (resnet_arch, resnet_state),
}
"""By timm's classes."""
