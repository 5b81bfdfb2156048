"""The published search spaces and architectures, and networks of them."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from superformer.errors import SuperformerError, nearest, shown, unknown
from superformer.space import Arch, Space, point
from superformer.space.arch import LARGEST, LARGEST_PICTURE, is_whole
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


WHOLE = {"num_classes": (0, 2**24), "seed": (0, 2**63 - 1), "in_chans": (1, LARGEST)}
"""The smallest and the largest of settings that are whole numbers."""


def _check_settings(space: Space, settings: Mapping[str, Any], rates: Mapping[str, Any]) -> None:
    """Refuse what the networks of a family do not read, and values of another kind than they need."""
    found, known = family(space.family), {"seed", *rates}
    for init in (cls.__dict__["__init__"] for cls in found.__mro__[:-1] if "__init__" in cls.__dict__):
        known |= {p.name for p in inspect.signature(init).parameters.values() if not p.kind.name.startswith("VAR")}
    known -= {"self", "space", "sharing"}
    for name, value in settings.items():
        if name not in known:
            hint = "; it is an option of the space" if name in found.schema.options else ""
            raise SuperformerError(
                f"{space.family} networks have no setting {name!r}{hint}: {nearest(name, sorted(known))}"
            )
        low, high = WHOLE.get(name, (None, None))
        if low is not None and high is not None and (not is_whole(value) or not low <= value <= high):
            raise SuperformerError(f"{name} must be a whole number from {low} to {high:,}, not {shown(value)}")
        if name == "patch_head" and not isinstance(value, bool):
            raise SuperformerError(f"patch_head is True or False, not {shown(value)}")
    for name, rate in rates.items():
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise SuperformerError(f"{name} must be a number from 0 to below 1, not {shown(rate)}")


def supernet(
    space: Space | str, num_classes: int = 1000, sharing: Sharing | str = "ordinal", seed: int = 0,
    drop_path: float = 0.0, dropout: float = 0.0, **settings: Any,
) -> Network:  # fmt: skip
    """The supernet of a space: ``net(x, arch)``. ``sharing``: ``"ordinal"``, ``"bilateral"`` or ``"cyclic"``.
    ``dropout``: before the classifier. ``settings`` of the family: ``in_chans``, for vit_res ``patch_head``."""
    own: Space = _find("space", space) if isinstance(space, str) else space
    if not isinstance(own, Space):
        raise SuperformerError(f"a Space or the name of a published one is needed, not {shown(space)}")
    rates = {"drop_path": drop_path, "dropout": dropout}
    _check_settings(own, {"num_classes": num_classes, "seed": seed, **settings}, rates)
    net = family(own.family).create(own, num_classes, sharing, seed, **settings).set_drop_path(drop_path)
    net.drop_rate = dropout
    return net


def model(
    name: str | Arch, num_classes: int = 1000, seed: int = 0, drop_path: float = 0.0, img_size: int | None = None,
    **settings: Any,
) -> Network:  # fmt: skip
    """A stand-alone network, of a published architecture or of any other, with initial weights. For another
    ``img_size`` its architecture changes as it does when a network is retrained (windows of Swin grow with the
    pictures)."""
    own = arch(name) if isinstance(name, str) else name
    if not isinstance(own, Arch):
        raise SuperformerError(f"an Arch or the name of a published one is needed, not {shown(name)}")
    if img_size is not None and (not is_whole(img_size) or not 1 <= img_size <= LARGEST_PICTURE):
        raise SuperformerError(
            f"img_size must be a number of pixels from 1 to {LARGEST_PICTURE}, not {shown(img_size)}"
        )
    if img_size is not None:
        own = family(own.family).rescaled(own, img_size)
    return supernet(point(own), num_classes, seed=seed, drop_path=drop_path, **settings)
