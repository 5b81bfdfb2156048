"""A package whose names are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> None:
    """Give a package names that live in its submodules: ``{"name": "submodule:name there"}``, or ``{"name": "submodule"}``.

    A name may also be that of a submodule (``superformer.cost`` has the function ``cost``). The import system then sets the submodule
    over it; here the name keeps to what ``homes`` says, whatever was imported before, and the submodule is reached by importing from it.
    """

    class Package(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name not in homes:
                raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=self)
            module, _, attribute = homes[name].partition(":")
            value: Any = importlib.import_module(f"{package}.{module}")
            value = getattr(value, attribute) if attribute else value
            setattr(self, name, value)
            return value

        def __setattr__(self, name: str, value: object) -> None:
            if not (isinstance(value, ModuleType) and ":" in homes.get(name, "")):
                super().__setattr__(name, value)

        def __dir__(self) -> list[str]:
            return sorted({*super().__dir__(), *homes})

    sys.modules[package].__class__ = Package
