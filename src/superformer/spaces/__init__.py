"""The published search spaces and architectures, as data."""

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

MODULES = ("vitas", "vit_resnas", "s3", "nasvit")


def _modules() -> list[Any]:
    return [importlib.import_module(f"superformer.spaces.{name}") for name in MODULES]


@functools.cache
def _spaces() -> Mapping[str, Space]:
    return {s.name: s for module in _modules() for s in module.SPACES}


@functools.cache
def _models() -> Mapping[str, Arch]:
    return {name: arch for module in _modules() for name, arch in module.MODELS.items()}


def spaces() -> list[str]:
    """The names of the published spaces."""
    return list(_spaces())


def space(name: str) -> Space:
    """A published space."""
    if name not in _spaces():
        raise unknown("space", name, _spaces())
    return _spaces()[name]


_published = space


def models() -> list[str]:
    """The names of the published architectures."""
    return list(_models())


def arch(name: str) -> Arch:
    """A published architecture."""
    if name not in _models():
        raise unknown("model", name, _models())
    return _models()[name]


# --- networks of them ---


def supernet(
    space: Space | str,
    num_classes: int = 1000,
    sharing: Sharing | str = "ordinal",
    seed: int = 0,
    drop_path: float = 0.0,
    **settings: Any,
) -> Network:
    """The supernet of a space: ``net(x, arch)``.

    ``sharing``: ``"ordinal"``, ``"bilateral"`` or ``"cyclic"``. ``settings`` of the family: ``in_chans``, for vit_res
    ``patch_head``.
    """
    space = _published(space) if isinstance(space, str) else space
    return family(space.family).create(space, num_classes, sharing, seed, **settings).set_drop_path(drop_path)


def model(
    name: str | Arch,
    num_classes: int = 1000,
    seed: int = 0,
    drop_path: float = 0.0,
    img_size: int | None = None,
    **settings: Any,
) -> Network:
    """A stand-alone network, of a published architecture or of any other, with initial weights."""
    own = arch(name) if isinstance(name, str) else name
    if img_size is not None:
        own = replace(own, resolution=img_size)
    return supernet(point(own), num_classes, seed=seed, drop_path=drop_path, **settings)
