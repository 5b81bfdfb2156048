"""Registration with timm. Nothing here imports timm; what is published becomes known to it when somebody else has imported it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from superformer import catalogue
from superformer.errors import SuperformerError

if TYPE_CHECKING:
    from superformer.space.arch import Arch


def register_model(name: str, arch: Arch) -> None:
    """Make an architecture a model of timm: ``timm.create_model(name)``."""
    if not name.isidentifier():
        raise SuperformerError(f"{name!r} cannot be a timm model's name: use letters, digits and underscores")
    _register(name, lambda: arch)


def register_with_timm() -> None:
    """Make the published architectures models of timm: now if it is imported, else as soon as it is."""
    if sys.modules.get("timm"):
        _register_published()
    else:
        sys.meta_path.insert(0, _AfterTimm())


class _AfterTimm(MetaPathFinder):
    """Leaves the import of timm to the finders that are there, and registers when it is done."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != "timm":
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if not isinstance(finder, _AfterTimm))
        spec = next((found for found in others if found is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _then(spec.loader.exec_module, _register_published)  # type: ignore[assignment, method-assign]
        return spec


def _then(load: Callable[[ModuleType], None], act: Callable[[], None]) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        load(module)
        act()

    return exec_module


def _register_published() -> None:
    from timm.models import is_model

    from superformer.export.timm_entry import register

    for name in catalogue.models():
        if not is_model(name):
            _register(name, _published(name))
    register()


def _published(name: str) -> Callable[[], Arch]:
    def arch() -> Arch:
        from superformer.spaces import arch

        return arch(name)

    return arch


def _register(name: str, of: Callable[[], Arch]) -> None:
    from timm.models import register_model

    from superformer.export.timm_entry import create

    def entry(pretrained: bool = False, pretrained_cfg: Any = None, pretrained_cfg_overlay: Any = None, **kwargs: Any) -> Any:
        if pretrained:
            raise SuperformerError(f"no trained weights of {name} are published for this library; build it with pretrained=False")
        return create(name, of(), **kwargs)

    entry.__name__ = entry.__qualname__ = name
    entry.__module__ = __name__
    entry.__doc__ = f"The architecture {name}."
    setattr(sys.modules[__name__], name, entry)
    register_model(entry)
