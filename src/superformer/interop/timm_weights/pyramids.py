"""timm's networks of stages, both ways (see `superformer.interop.timm_weights.vit`): SwinTransformer, Twins (SVT, and
PCPVT, whose blocks are all global) and ResNet (plain bottleneck ones: resnet50, resnet101, wide_resnet50_2, ...)."""

from __future__ import annotations

import re
from typing import Any

from timm.models.resnet import Bottleneck
from torch import Tensor, nn

from superformer.errors import SuperformerError
from superformer.families.twins import OPTIONS, Twins, ratio
from superformer.interop.official.release import Rules, rename
from superformer.interop.official.s3 import swin_names
from superformer.interop.timm_weights.vit import ratio as mlp_ratio
from superformer.interop.timm_weights.vit import widths
from superformer.space.arch import Arch, StageArch, Values


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
            if any(side % window for side in grid):
                given = f"a map of {grid[0]} x {grid[1]} tokens is padded to windows of {window}"
                why = "timm attends to the padding, a swin here never does: take a size that divides"
                raise SuperformerError(f"{given}; {why} (img_size, window_size)")
            blocks.append(Values(window=window, **widths(block)))
        stages.append(StageArch(tuple(blocks), Values(width=layer.blocks[0].norm1.normalized_shape[0])))
    eps = model.norm.eps
    return Arch("swin", int(rows), Values(), tuple(stages), Values({} if eps == 1e-5 else {"eps": eps}))


def swin_state(model: Any) -> dict[str, Tensor]:
    """timm has a stage's patch merging before its blocks, as we do; Swin's authors have it one stage earlier."""
    rules = [(r"^layers\.(\d+)\.downsample\.", r"stages.\1.enter."), (r"^head\.fc\.", "head.")]
    return swin_names(rename(model.state_dict(), rules))


def swin_words(arch: Arch) -> tuple[str, dict[str, Any]]:
    """A network of timm and the words that make it this architecture, as far as words can."""
    stages = [(stage.choices.int("width"), stage.blocks[0]) for stage in arch.stages]
    windows = [b["window"] for _, b in stages]
    words: dict[str, Any] = {"img_size": arch.resolution, "embed_dim": stages[0][0]}
    words |= {"depths": [len(stage.blocks) for stage in arch.stages], "num_heads": [b["heads"] for _, b in stages]}
    words |= {"head_dim": [b.int("attn") // b.int("heads") for _, b in stages]}
    words |= {"window_size": windows if len(set(windows)) > 1 else windows[0]}
    words |= {"mlp_ratio": [mlp_ratio(width, b.int("mlp")) for width, b in stages]}
    return "swin_tiny_patch4_window7_224", words


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
        values = (Values(type=_twins_type(block), **widths(block)) for block in stage)
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


def twins_words(arch: Arch) -> tuple[str, dict[str, Any]]:
    """A network of timm and the words that make it this architecture, as far as words can."""
    patch, side, sr = (Twins.schema.option(arch.options, name) for name in ("patch", "ws", "sr"))
    stages = [(stage.choices.int("width"), stage.blocks[0]) for stage in arch.stages]
    words: dict[str, Any] = {"img_size": arch.resolution, "patch_size": patch}
    words |= {"embed_dims": [width for width, _ in stages], "num_heads": [b["heads"] for _, b in stages]}
    words |= {"mlp_ratios": [mlp_ratio(width, b.int("mlp")) for width, b in stages]}
    words |= {"depths": [len(stage.blocks) for stage in arch.stages]}
    words |= {"sr_ratios": [ratio(sr, i) for i, _ in enumerate(stages)]}
    words |= {"out_indices": [i for i, _ in enumerate(stages)]} if len(stages) < 4 else {}  # of features_only
    return "twins_svt_small", words | {"wss": [side if b["type"] == "local" else 1 for _, b in stages]}


PLAIN = {
    "ResNet", "Sequential", "Bottleneck", "Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d", "Identity", "Linear",
    "DropPath", "SelectAdaptivePool2d", "AdaptiveAvgPool2d", "Flatten",
}  # fmt: skip
"""The layers of a plain ResNet and of its pooling."""
OTHER = {
    "BasicBlock": "blocks of two 3x3 convolutions (BasicBlock, as resnet18 and resnet34 have)",
    "AvgPool2d": "shortcuts that average (AvgPool2d: ResNet-D)",
}
"""What other ones have, in words."""
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
    size = getattr(model, "default_cfg", {}).get("input_size", (3, 224, 224))
    return Arch("resnet", int(size[-1]), Values(stem=model.conv1.out_channels), tuple(stages))


def resnet_state(model: nn.Module) -> dict[str, Tensor]:
    """Its tensors under our names."""
    return rename(model.state_dict(), RESNET_RULES)


def resnet_words(arch: Arch) -> tuple[str, dict[str, Any]]:
    """A network of timm and the words that make it this architecture, as far as words can."""
    planes = [stage.choices.int("width") // 4 for stage in arch.stages]
    words: dict[str, Any] = {"layers": [1 + len(stage.blocks) for stage in arch.stages], "channels": planes}
    return "resnet50", words | {"base_width": 64 * arch.stages[0].choices.int("entry1") / planes[0]}


def _resnet_check(model: Any) -> None:
    """Only what this family computes: anything else would load and be another function."""
    if other := sorted({OTHER.get(type(m).__name__, type(m).__name__) for m in model.modules()} - PLAIN):
        raise SuperformerError(f"{ONLY}; this one has {', '.join(other)}")
    if isinstance(model.conv1, nn.Sequential):
        raise SuperformerError(f"{ONLY}; this one (ResNet-C, -D, ...) has a stem of three convolutions")
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
