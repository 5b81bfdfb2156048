"""The model ``superformer`` of timm: a network of any architecture, which the configuration of an exported folder tells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from superformer.errors import SuperformerError
from superformer.families import family
from superformer.families.base import Network
from superformer.space import point
from superformer.space.arch import Arch

ENTRY = "superformer"


def register() -> None:
    """Make it known to timm."""
    from timm.models import is_model, register_model

    if not is_model(ENTRY):
        register_model(superformer)


def superformer(
    pretrained: bool = False,
    pretrained_cfg: Mapping[str, Any] | None = None,
    pretrained_cfg_overlay: Mapping[str, Any] | None = None,
    arch: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """The network of an architecture, given as JSON has it."""
    if arch is None:
        raise SuperformerError("superformer is a model of timm that is loaded from a folder: timm.create_model('local-dir:FOLDER')")
    return create(
        ENTRY, Arch.from_json(json.dumps(arch)), pretrained, pretrained_cfg, pretrained_cfg_overlay=pretrained_cfg_overlay, **kwargs
    )


def create(name: str, arch: Arch, pretrained: bool = False, pretrained_cfg: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
    """A network as timm makes its own."""
    from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
    from timm.models._builder import build_model_with_cfg

    from superformer.build import model

    def build(num_classes: int = 1000, drop_path_rate: float = 0.0, **settings: Any) -> Network:
        return model(arch, num_classes, drop_path=drop_path_rate or 0.0, **settings)

    default: dict[str, Any] = {
        "num_classes": 1000, "input_size": (3, arch.resolution, arch.resolution), "interpolation": "bicubic", "crop_pct": 0.9,
        "mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD, "classifier": "head",
    }  # fmt: skip
    features = {"out_indices": _levels(arch), "feature_cls": "getter"} if kwargs.get("features_only") else None
    return build_model_with_cfg(build, name, pretrained, pretrained_cfg=dict(pretrained_cfg or default), feature_cfg=features, **kwargs)


def _levels(arch: Arch) -> tuple[int, ...]:
    """The features that ``features_only`` gives: those of all stages, or of the last three blocks."""
    with torch.device("meta"):
        net = family(arch.family)(point(arch), 0)
    levels = len(net.feature_info)
    return tuple(range(levels) if net.feature_level == "stage" else range(max(levels - 3, 0), levels))
