"""The families of networks. Each is one module, written against elastic layers and read four ways: supernet,
stand-alone network, cost, and the mapping of weights between them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from superformer.errors import SpaceError, SuperformerError, nearest
from superformer.space.arch import Values
from superformer.space.stage import Times

if TYPE_CHECKING:
    from superformer.families.network import Network
    from superformer.space.costs import Count
    from superformer.space.space import Space

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
    found: Any = FAMILIES[name]
    if isinstance(found, str):
        found = getattr(importlib.import_module(f"superformer.families.{name}"), found)
    return found  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Schema:
    """The names of a family's choices, its options with their defaults, and rules that names alone cannot express.

    ``stage`` may say for each stage of a space what it must choose. ``rules`` yields a sentence for everything that is
    wrong with a space. ``entry`` are those choices of a stage that only what leads into it depends on, no block and no
    other stage: drawing within limits need not pair them. ``widths`` are the choices that count channels, which uniform
    scaling (`superformer.cost.scaling`) moves, each in steps of a number or of the option of that name; ``opens``: the
    layers of a stage before its blocks that count as blocks of its depth."""

    family: str
    choices: frozenset[str]
    stage: frozenset[str] | Callable[[Space, int], frozenset[str]]
    block: frozenset[str]
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    rules: Callable[[Space], Iterable[str]] = lambda space: ()
    entry: frozenset[str] = frozenset()
    widths: Mapping[str, int | str] = field(default_factory=lambda: {"width": 1, "attn": 1, "mlp": 1})
    opens: int = 0

    def normal_options(self, options: Mapping[str, Any]) -> Values:
        """Options in their one form: those that are not the default."""
        for name in options:
            if name not in self.options:
                raise SpaceError(f"{self.family} networks have no option {name!r}: {nearest(name, self.options)}")
        return Values({k: _plain(v) for k, v in options.items() if _plain(v) != _plain(self.options[k])})

    def option(self, options: Mapping[str, Any], name: str) -> Any:
        return options.get(name, self.options[name])

    def check_space(self, space: Space) -> None:
        self._names(space.name, "network-wide choices", set(space.choices) - {"resolution"}, self.choices, SpaceError)
        if not space.stages:
            raise SpaceError(f"the space {space.name} has no stage")
        for i, stage in enumerate(space.stages):
            needed = self.stage(space, i) if callable(self.stage) else self.stage
            self._names(space.name, f"choices of stage {i}", set(stage.choices), needed, SpaceError)
            for block in stage.blocks:
                self._names(space.name, f"choices of the blocks of stage {i}", set(block), self.block, SpaceError)
        for name, value in space.weights.items():
            if value not in self.weights.get(name, ()):
                known = self.weights.get(name) or tuple(self.weights)
                raise SpaceError(f"{space.name}: weights {name}={value!r} is not known: {nearest(value, known)}")
        for wrong in self.rules(space):
            raise SpaceError(f"{space.name}: {wrong}")

    def _names(self, name: str, what: str, given: set[str], needed: frozenset[str], error: type[ValueError]) -> None:
        for extra in sorted(given - needed):
            raise error(f"{name}: {extra!r} is not among the {what} of {self.family}: {nearest(extra, sorted(needed))}")
        if missing := sorted(needed - given):
            raise error(f"{name}: the {what} of {self.family} lack {', '.join(missing)}")


def _plain(value: Any) -> Any:
    """JSON has no tuples, and Values hold numbers and words: truth is 1 or 0, nothing is an empty word."""
    return "" if value is None else int(value) if isinstance(value, bool) else value


# --- rules that several families have in common ---


def free_heads(space: Space) -> Iterator[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
    """Stage, position, attention widths, head counts of blocks whose width is not declared as a multiple of heads."""
    for i, stage in enumerate(space.stages):
        for p, block in enumerate(stage.blocks):
            if not (isinstance(block["attn"], Times) and block["attn"].of == "heads"):
                yield i, p, space.widths("attn", i, p), space.widths("heads", i, p)


def undivided_heads(space: Space) -> Iterable[str]:
    """A sentence for every attention width that does not divide into one of its head counts."""
    for i, p, widths, heads in free_heads(space):
        for attn in widths:
            if bad := [h for h in heads if attn % h]:
                yield f"an attention width of {attn} does not divide into {bad[0]} heads (stage {i}, block {p})"


def undivided_pictures(resolutions: Iterable[int], *patches: int) -> Iterable[str]:
    """A sentence for every input size that does not divide into one of the patches."""
    for resolution in resolutions:
        for patch in patches:
            if patch < 1 or resolution % patch:
                yield f"a picture of {resolution} pixels does not divide into patches of {patch}"


def many_resolutions(space: Space) -> Iterable[str]:
    """A sentence if there is more than one input size."""
    if len(space.widths("resolution")) > 1:
        yield "position tables belong to one input size: a space of this family has one resolution"


def in_patches(height: Count, width: Count, patch: Count) -> tuple[Count, Count]:
    """Rows and columns of patches of a picture, which must divide into them."""
    # plain numbers are what torch.compile can follow
    whole = isinstance(height, int) and isinstance(width, int) and isinstance(patch, int)
    if (height % patch or width % patch) if whole else (np.any(height % patch) or np.any(width % patch)):
        picture = f"a picture of {height} x {width} pixels"
        raise SuperformerError(f"{picture} does not divide into patches of {np.max(patch)}; resize it to a multiple")
    return height // patch, width // patch
