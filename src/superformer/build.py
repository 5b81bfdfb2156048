"""Supernets and published models by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from superformer.families import family
from superformer.families.base import Network
from superformer.memory import keep_freed
from superformer.sharing import Sharing
from superformer.space import Space, point
from superformer.space.arch import Arch
from superformer.spaces import arch as published_arch
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
    A process with a supernet keeps the memory it frees (`superformer.memory`).
    """
    space = published_space(space) if isinstance(space, str) else space
    if space.size > 1:
        keep_freed()
    return family(space.family).create(space, num_classes, sharing, seed, **settings).set_drop_path(drop_path)


def model(
    name: str | Arch, num_classes: int = 1000, seed: int = 0, drop_path: float = 0.0, img_size: int | None = None, **settings: Any
) -> Network:
    """A stand-alone network, of a published architecture or of any other, with initial weights."""
    arch = published_arch(name) if isinstance(name, str) else name
    if img_size is not None:
        arch = replace(arch, resolution=img_size)
    return supernet(point(arch), num_classes, seed=seed, drop_path=drop_path, **settings)
