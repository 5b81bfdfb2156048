"""Supernets and published models by name; registration with timm."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import register_model as timm_register
from timm.models._builder import build_model_with_cfg

from superformer.errors import SuperformerError
from superformer.families import family
from superformer.families.base import Network
from superformer.sharing import Sharing
from superformer.space import Space, point
from superformer.space.arch import Arch
from superformer.spaces import arch as published_arch
from superformer.spaces import models
from superformer.spaces import space as published_space


def supernet(
    space: Space | str,
    num_classes: int = 1000,
    sharing: Sharing | str = "ordinal",
    seed: int = 0,
    drop_path: float = 0.0,
    **settings: Any,
) -> Network:
    """The supernet of a space: ``net(x, arch)``.

    ``sharing``: ``"ordinal"``, ``"bilateral"`` or ``"cyclic"``. ``settings`` of the family: ``in_chans``, for vit_res ``patch_head``.
    """
    space = published_space(space) if isinstance(space, str) else space
    return family(space.family).create(space, num_classes, sharing, seed, **settings).set_drop_path(drop_path)


def model(
    name: str | Arch, num_classes: int = 1000, seed: int = 0, drop_path: float = 0.0, img_size: int | None = None, **settings: Any
) -> Network:
    """A stand-alone network, of a published architecture or of any other, with initial weights."""
    arch = published_arch(name) if isinstance(name, str) else name
    if img_size is not None:
        arch = replace(arch, resolution=img_size)
    return supernet(point(arch), num_classes, seed=seed, drop_path=drop_path, **settings)


def register_model(name: str, arch: Arch) -> None:
    """Make an architecture a model of timm: ``timm.create_model(name)``."""
    if not name.isidentifier():
        raise SuperformerError(f"{name!r} cannot be a timm model's name: use letters, digits and underscores")
    timm_register(_entry(name, arch))


def _entry(name: str, arch: Arch) -> Callable[..., Any]:
    def build(num_classes: int = 1000, drop_path_rate: float = 0.0, **settings: Any) -> Network:
        return model(arch, num_classes, drop_path=drop_path_rate or 0.0, **settings)

    def entry(pretrained: bool = False, pretrained_cfg: Any = None, pretrained_cfg_overlay: Any = None, **kwargs: Any) -> Any:
        if pretrained:
            raise SuperformerError(f"no trained weights of {name} are published for this library; build it with pretrained=False")
        config = {
            "num_classes": 1000, "input_size": (3, arch.resolution, arch.resolution), "interpolation": "bicubic", "crop_pct": 0.9,
            "mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD, "classifier": "head",
        }  # fmt: skip
        blocks = len(arch.stages[0].blocks)
        levels = range(len(arch.stages)) if len(arch.stages) > 1 else range(max(blocks - 3, 0), blocks)
        return build_model_with_cfg(
            build, name, False, pretrained_cfg=config, feature_cfg={"out_indices": tuple(levels), "feature_cls": "getter"}, **kwargs
        )

    entry.__name__ = entry.__qualname__ = name
    entry.__module__ = __name__
    entry.__doc__ = f"The published architecture {name}."
    setattr(sys.modules[__name__], name, entry)
    return entry


for _name in models():
    register_model(_name, published_arch(_name))
