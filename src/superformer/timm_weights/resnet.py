"""timm's plain bottleneck ResNets (resnet50, resnet101, wide_resnet50_2, ...)."""

from __future__ import annotations

from typing import Any

from timm.models.resnet import Bottleneck
from torch import Tensor, nn

from superformer.errors import SuperformerError
from superformer.official.family import Rules, rename
from superformer.space.arch import Arch, StageArch, Values

PLAIN = ("ResNet", "Sequential", "Bottleneck", "Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d", "Identity", "Linear", "DropPath")
POOL = ("SelectAdaptivePool2d", "AdaptiveAvgPool2d", "Flatten")
NAMES: Rules = (
    (r"^conv1\.", "stem.conv."),
    (r"^bn1\.", "stem.norm."),
    (r"^fc\.", "head."),
    (r"\.conv(\d)\.", r".conv\1.conv."),
    (r"\.bn(\d)\.", r".conv\1.norm."),
    (r"\.downsample\.0\.", ".shortcut.conv."),
    (r"\.downsample\.1\.", ".shortcut.norm."),
    (r"^layer(\d)\.0\.", lambda m: f"stages.{int(m[1]) - 1}.enter."),
    (r"^layer(\d)\.(\d+)\.", lambda m: f"stages.{int(m[1]) - 1}.blocks.{int(m[2]) - 1}."),
)


def arch(model: Any) -> Arch:
    """Which architecture a timm network is."""
    _check(model)
    stages = []
    for layer in (model.layer1, model.layer2, model.layer3, model.layer4):
        mids = [(b.conv1.out_channels, b.conv2.out_channels) for b in layer]
        entry = Values(width=layer[0].conv3.out_channels, entry1=mids[0][0], entry2=mids[0][1])
        stages.append(StageArch(tuple(Values(mid1=a, mid2=b) for a, b in mids[1:]), entry))
    size = model.default_cfg.get("input_size", (3, 224, 224))
    return Arch("resnet", int(size[-1]), Values(stem=model.conv1.out_channels), tuple(stages))


def state(model: nn.Module) -> dict[str, Tensor]:
    """Its tensors under our names."""
    return rename(model.state_dict(), NAMES)


def _check(model: Any) -> None:
    """Only what this family computes: anything else would load and be another function."""
    other = sorted({type(m).__name__ for m in model.modules()} - {*PLAIN, *POOL})
    if other:
        raise SuperformerError(f"only plain bottleneck ResNets are of the family resnet; this one has {', '.join(other)}")
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
            raise SuperformerError(f"only plain bottleneck ResNets are of the family resnet; kernel and stride of {what}")
    eps = {m.eps for m in model.modules() if isinstance(m, nn.BatchNorm2d)}
    pool = getattr(model.global_pool, "pool_type", "avg")
    if pool != "avg" or eps != {1e-5} or type(model.maxpool) is not nn.MaxPool2d:
        raise SuperformerError(f"only plain bottleneck ResNets are of the family resnet; this one pools by {pool!r}, with eps {eps}")
