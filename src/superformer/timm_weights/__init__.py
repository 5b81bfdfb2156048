"""timm's networks as ours: the same architecture, the same weights, the same logits.

One file a family says which architecture a timm network is and what its tensors are called here.
"""

from __future__ import annotations

import importlib
from typing import Any

import timm
import torch
from torch import Tensor, nn

from superformer.errors import SuperformerError
from superformer.families import family
from superformer.families.base import Network
from superformer.space import point
from superformer.space.arch import Arch

KNOWN = {"VisionTransformer": "vit", "SwinTransformer": "swin", "Twins": "twins", "ResNet": "resnet"}
"""timm's classes, and the file here that reads them: ``arch(model)`` and ``state(model)``."""


def from_timm(model: nn.Module | str, **settings: Any) -> Network:
    """Our network with the architecture and the weights of a timm network (or of the name of one; ``settings`` are timm's, such as
    ``pretrained=True``), in the same mode."""
    source = timm.create_model(model, **settings) if isinstance(model, str) else model
    reader = _reader(source)
    arch: Arch = reader.arch(source)
    state: dict[str, Tensor] = reader.state(source)
    with torch.device("meta"):
        net = family(arch.family)(point(arch), int(getattr(source, "num_classes", 1000)), in_chans=_channels(source))
    net.load_state_dict({k: v.detach().clone() for k, v in state.items()}, assign=True)
    for p in net.parameters():
        p.requires_grad_(True)
    return net.train(source.training)


def _channels(model: nn.Module) -> int:
    return next(m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d))


def _reader(model: nn.Module) -> Any:
    kind = type(model).__name__
    if kind not in KNOWN:
        raise SuperformerError(f"timm networks of the kind {kind} have no family here; known: {', '.join(KNOWN)}")
    return importlib.import_module(f"superformer.timm_weights.{KNOWN[kind]}")
