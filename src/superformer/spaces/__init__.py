"""The published search spaces and architectures, as data."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

from superformer.errors import unknown
from superformer.space import Space
from superformer.space.arch import Arch

MODULES = ("vitas", "autoformer", "vit_resnas", "s3", "twins", "nasvit", "resnet")


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


def models() -> list[str]:
    """The names of the published architectures."""
    return list(_models())


def arch(name: str) -> Arch:
    """A published architecture."""
    if name not in _models():
        raise unknown("model", name, _models())
    return _models()[name]
