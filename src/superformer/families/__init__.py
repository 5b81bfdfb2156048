"""The families of networks. Each is one module, written against elastic layers and read four ways: supernet, stand-alone network,
cost, and the mapping of weights between them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, TypeVar

from superformer.errors import SpaceError, nearest

if TYPE_CHECKING:
    from superformer.families.base import Network

FAMILIES: dict[str, str | type[Network]] = {
    "vit": "Vit", "vit_res": "VitRes", "swin": "Swin", "twins": "Twins", "nasvit": "NasVit", "resnet": "ResNet",
}  # fmt: skip
"""The class of each family, or its name in the module of the family's name, which is imported when it is needed."""

N = TypeVar("N", bound="type[Network]")


def register(cls: N) -> N:
    """Make a family from outside known by the name in its schema; also a decorator. A name is given once."""
    name = cls.schema.family
    if FAMILIES.setdefault(name, cls) is not cls:
        raise SpaceError(f"there is a family {name!r} already; give this one another name in its schema")
    return cls


def family(name: str) -> type[Network]:
    """The class of a family's networks."""
    if name not in FAMILIES:
        raise SpaceError(f"unknown family {name!r}: {nearest(name, FAMILIES)}")
    found = FAMILIES[name]
    if not isinstance(found, str):
        return found
    cls: type[Network] = getattr(importlib.import_module(f"superformer.families.{name}"), found)
    return cls
