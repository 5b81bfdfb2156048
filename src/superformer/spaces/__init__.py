"""The published search spaces and architectures, and networks of them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superformer.errors import unknown
from superformer.space import Arch, Space, point
from superformer.space.schema import family

if TYPE_CHECKING:
    from superformer.families.network import Network
    from superformer.sharing import Sharing

PUBLISHED = ("vitas.", "s3.AUTOFORMER_", "vit_resnas.", "s3.", "vitas.TWINS_", "nasvit.", "vitas.RESNET_")
"""Where, in the order of the lists: modules of this package with their ``SPACES`` and ``MODELS``. They build spaces,
which needs torch, and so are imported when they are asked for."""


@functools.cache
def _published(kind: str) -> Mapping[str, Any]:
    out: dict[str, Any] = {}
    for where in PUBLISHED:
        module, prefix = where.split(".")
        found = getattr(importlib.import_module(f"{__name__}.{module}"), f"{prefix}{kind.upper()}S")
        out |= found if kind == "model" else {space.name: space for space in found}
    return out


def _find(kind: str, name: str) -> Any:
    if name not in _published(kind):
        raise unknown(kind, name, _published(kind))
    return _published(kind)[name]


def spaces() -> list[str]:
    """The names of the published spaces."""
    return list(_published("space"))


def space(name: str) -> Space:
    """A published space."""
    found: Space = _find("space", name)
    return found


def models() -> list[str]:
    """The names of the published architectures."""
    return list(_published("model"))


def arch(name: str) -> Arch:
    """A published architecture."""
    found: Arch = _find("model", name)
    return found


def supernet(
    space: Space | str, num_classes: int = 1000, sharing: Sharing | str = "ordinal", seed: int = 0,
    drop_path: float = 0.0, **settings: Any,
) -> Network:  # fmt: skip
    """The supernet of a space: ``net(x, arch)``. ``sharing``: ``"ordinal"``, ``"bilateral"`` or ``"cyclic"``.
    ``settings`` of the family: ``in_chans``, for vit_res ``patch_head``."""
    own: Space = _find("space", space) if isinstance(space, str) else space
    return family(own.family).create(own, num_classes, sharing, seed, **settings).set_drop_path(drop_path)


def model(
    name: str | Arch, num_classes: int = 1000, seed: int = 0, drop_path: float = 0.0, img_size: int | None = None,
    **settings: Any,
) -> Network:  # fmt: skip
    """A stand-alone network, of a published architecture or of any other, with initial weights."""
    own = arch(name) if isinstance(name, str) else name
    if img_size is not None:
        own = replace(own, resolution=img_size)
    return supernet(point(own), num_classes, seed=seed, drop_path=drop_path, **settings)
