"""The families of networks. Each is one module, written against elastic layers and read four ways: supernet, stand-alone network,
cost, and the mapping of weights between them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from superformer.errors import SpaceError, nearest

if TYPE_CHECKING:
    from superformer.families.base import Network

FAMILIES = {"vit": "Vit", "vit_res": "VitRes", "swin": "Swin", "twins": "Twins", "nasvit": "NasVit", "resnet": "ResNet"}


def family(name: str) -> type[Network]:
    """The class of a family's networks."""
    if name not in FAMILIES:
        raise SpaceError(f"unknown family {name!r}: {nearest(name, FAMILIES)}")
    found: type[Network] = getattr(importlib.import_module(f"superformer.families.{name}"), FAMILIES[name])
    return found
