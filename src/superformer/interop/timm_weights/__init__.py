"""timm's networks as ours and ours as timm's: the same architecture, the same weights, the same logits.

For each of timm's classes three functions: which architecture a network is, what its tensors are called here, and with
which words timm builds an architecture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import timm
import torch
from torch import Tensor, nn

from superformer.errors import SuperformerError
from superformer.families.network import Network
from superformer.interop.timm_weights import pyramids, vit
from superformer.space import point
from superformer.space.arch import Arch
from superformer.space.schema import family


@dataclass(frozen=True)
class Kind:
    """One of timm's classes. ``state`` shares the memory of the network's tensors. ``sized``: it is built for pictures
    of one size (timm's word ``img_size``)."""

    arch: Callable[[Any], Arch]
    state: Callable[[Any], dict[str, Tensor]]
    words: Callable[[Arch], tuple[str, dict[str, Any]]]
    sized: bool = True


KINDS = {
    "VisionTransformer": Kind(vit.vit_arch, vit.vit_state, vit.vit_words),
    "SwinTransformer": Kind(pyramids.swin_arch, pyramids.swin_state, pyramids.swin_words),
    "Twins": Kind(pyramids.twins_arch, pyramids.twins_state, pyramids.twins_words),
    "ResNet": Kind(pyramids.resnet_arch, pyramids.resnet_state, pyramids.resnet_words, sized=False),
}
CLASSES = {"vit": "VisionTransformer", "swin": "SwinTransformer", "twins": "Twins", "resnet": "ResNet"}
"""timm's class for a family of ours."""
SHORTCUT = "no shortcut where the width or the stride changes; the blocks of a nasvit here have one everywhere"
REFUSED = {
    "VisionTransformerDistilled": "it has two classifiers, on two tokens, and averages them; a vit here has one: take "
    "the network without distillation (deit_tiny_patch16_224 for deit_tiny_distilled_patch16_224)",
    "MobileNetV3": f"it has ReLU and hard swish, and {SHORTCUT}, and swish",
    "EfficientNet": f"it has {SHORTCUT}",
    "Eva": "it has rotary positions (EVA-02, DINOv3); a vit here has a table of positions",
}
"""Classes that people ask for, and why they are not known."""


def from_timm(model: nn.Module | str, **settings: Any) -> Network:
    """Our network with the architecture and the weights of a timm network (or of the name of one; ``settings`` are
    timm's, such as ``pretrained=True``), in the same mode.

    With ``img_size`` the weights, also those of ``checkpoint_path``, become a network for pictures of that size, as
    timm itself makes it of its pretrained ones."""
    size = settings.get("img_size")
    source = _created(model, **settings) if isinstance(model, str) else model
    own = _kind(source)
    arch, state = own.arch(source), own.state(source)
    if size is not None and not own.sized:
        arch = replace(arch, resolution=int(size))
    if size is not None and arch.resolution != size:
        told = f"this {type(source).__name__} was built for pictures of {arch.resolution} pixels, not {size}"
        raise SuperformerError(f"{told}: give its name and checkpoint_path, or call its set_input_size before")
    channels = next(m.in_channels for m in source.modules() if isinstance(m, nn.Conv2d))
    with torch.device("meta"):
        net = family(arch.family)(point(arch), int(getattr(source, "num_classes", 1000)), in_chans=channels)
    net.load_state_dict({k: v.detach().clone() for k, v in state.items()}, assign=True)
    for p in net.parameters():
        p.requires_grad_(True)
    return net.train(source.training)


def _kind(model: nn.Module) -> Kind:
    name = type(model).__name__
    if name in REFUSED:
        raise SuperformerError(f"timm networks of the kind {name} have no family here: {REFUSED[name]}")
    if name not in KINDS:
        raise SuperformerError(f"timm networks of the kind {name} have no family here; known: {', '.join(KINDS)}")
    return KINDS[name]


def _created(name: str, **settings: Any) -> nn.Module:
    """A network of timm. A checkpoint for another size is read as timm reads its pretrained weights."""
    if settings.get("img_size") is not None:
        with torch.device("meta"):
            sized = _kind(timm.create_model(name)).sized
        if not sized:
            del settings["img_size"]
        elif (path := settings.pop("checkpoint_path", None)) is not None:
            classes = {"num_classes": settings["num_classes"]} if "num_classes" in settings else {}
            overlay = {"file": str(path), "custom_load": False, **classes}
            settings |= {"pretrained": True, "pretrained_cfg_overlay": overlay}
    return timm.create_model(name, **settings)


def to_timm(net: Network) -> nn.Module:
    """timm's own network with the architecture and the weights of a stand-alone network, in the same mode. An error
    says why timm's class cannot be this network: it has, say, one number of heads for all blocks."""
    if net.space.size > 1:
        raise SuperformerError(f"this is a supernet of {net.space.size:.3g} architectures: give net.extract(arch)")
    name, words = timm_words(arch := net.space.smallest())
    model: nn.Module = timm.create_model(name, num_classes=net.num_classes, in_chans=net.in_chans, **words)
    state, own = net.state_dict(), KINDS[CLASSES[arch.family]]
    with torch.no_grad():
        for key, tensor in own.state(model).items():
            tensor.copy_(state[key])
    like = next(net.parameters())
    return model.to(like.device, like.dtype).train(net.training)


def tensor_names(model: nn.Module) -> dict[str, str]:
    """Our name for each tensor of a timm network."""
    ours = {tensor.data_ptr(): name for name, tensor in _kind(model).state(model).items()}
    return {name: ours[tensor.data_ptr()] for name, tensor in model.state_dict().items()}


def timm_words(arch: Arch) -> tuple[str, dict[str, Any]]:
    """A name and words with which ``timm.create_model`` builds an architecture; or the error that `to_timm` tells."""
    if arch.family not in CLASSES:
        raise SuperformerError(f"timm has no class for networks of the family {arch.family}")
    own, cls = KINDS[CLASSES[arch.family]], f"timm's {CLASSES[arch.family]}"
    if own.sized and not all(stage.blocks for stage in arch.stages):
        raise SuperformerError(f"{cls} cannot be this network: it has a stage without blocks")
    name, words = own.words(arch)
    try:
        with torch.device("meta"):
            found = own.arch(timm.create_model(name, **words))
    except Exception as error:  # timm's own errors are of many kinds
        what = (str(error) or type(error).__name__).splitlines()[0]
        raise SuperformerError(f"{cls} cannot be this network: {what}") from error
    wrong = next(_differences(arch, found if own.sized else replace(found, resolution=arch.resolution)), None)
    if wrong is not None:
        raise SuperformerError(f"{cls} cannot be this network: {wrong}")
    return name, words


def _differences(arch: Arch, found: Arch) -> Iterator[str]:
    """What one architecture has and another, that timm makes of it, has not."""
    pairs = [("", arch.options, found.options), ("", arch.choices, found.choices)]
    for i, (a, b) in enumerate(zip(arch.stages, found.stages, strict=False)):
        pairs.append((f" of stage {i}", a.choices, b.choices))
        blocks = zip(a.blocks, b.blocks, strict=False)
        pairs += [(f" of block {k} of stage {i}", one, other) for k, (one, other) in enumerate(blocks)]
    for where, ours, theirs in pairs:
        for name in sorted({*ours, *theirs}):
            if ours.get(name) != theirs.get(name):
                yield f"{name}{where} is {ours.get(name, 'the default')}, there it is {theirs.get(name, 'the default')}"
    if arch != found:
        yield "it has another number of stages or blocks"
