"""The families of networks. Each is one module, written against elastic layers and read four ways: supernet,
stand-alone network, cost, and the mapping of weights between them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from superformer.errors import SpaceError, SuperformerError, nearest, shown
from superformer.space.arch import LARGEST, LARGEST_PICTURE, Values, is_whole
from superformer.space.stage import Choice, Divided, Ratio, Spec, Times

if TYPE_CHECKING:
    from superformer.families.network import Network
    from superformer.space.costs import Count
    from superformer.space.space import Space

FAMILIES: dict[str, str | type[Network]] = {
    "vit": "Vit", "vit_res": "VitRes", "swin": "Swin", "twins": "Twins", "nasvit": "NasVit", "resnet": "ResNet",
}  # fmt: skip
"""The class of each family, or its name in the module of the family's name, which is imported when it is needed."""

N = TypeVar("N", bound="type[Network]")

MOST_BLOCKS, MOST_STAGES = 1024, 64
"""Blocks and stages of the deepest network."""
COUNTABLE = 2**62
"""Multiply-accumulates that can be counted in 64 bits."""


def register(cls: N) -> N:
    """Make a family from outside known by the name in its schema; also a decorator. A name is given once."""
    name = cls.schema.family
    if FAMILIES.setdefault(name, cls) is not cls:
        raise SpaceError(f"there is a family {name!r} already; give this one another name in its schema")
    return cls


def family(name: str) -> type[Network]:
    """The class of a family's networks."""
    if not isinstance(name, str) or name not in FAMILIES:
        raise SpaceError(f"unknown family {shown(name)}: {nearest(name, FAMILIES)}")
    found: Any = FAMILIES[name]
    if isinstance(found, str):
        found = getattr(importlib.import_module(f"superformer.families.{name}"), found)
    return found  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Schema:
    """The names of a family's choices, its options with their defaults, and rules that names alone cannot express.

    ``stage`` may say for each stage of a space what it must choose. ``rules`` yields a sentence for everything that is
    wrong with a space. ``entry`` are those choices of a stage that only what leads into it depends on, no block and no
    other stage: drawing within limits need not pair them. ``private``: for each set of parts that can be private, the
    ``weights`` that say so. ``words`` are the choices that are words, not sizes, with those that are possible;
    ``kinds`` what an option may be (of bool, int, float, str) where its default does not tell. ``widths`` are the
    choices that count channels, which uniform scaling (`superformer.cost.scaling`) moves, each in steps of a number or
    of the option of that name; ``rising``: those of a stage that are never smaller than in the stage before;
    ``opens``: the layers of a stage before its blocks that count as blocks of its depth."""

    family: str
    choices: frozenset[str]
    stage: frozenset[str] | Callable[[Space, int], frozenset[str]]
    block: frozenset[str]
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    rules: Callable[[Space], Iterable[str]] = lambda space: ()
    entry: frozenset[str] = frozenset()
    private: Mapping[frozenset[str], Mapping[str, Any]] = field(default_factory=dict)
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kinds: Mapping[str, tuple[type, ...]] = field(default_factory=dict)
    widths: Mapping[str, int | str] = field(default_factory=lambda: {"width": 1, "attn": 1, "mlp": 1})
    rising: frozenset[str] = frozenset()
    opens: int = 0

    def normal_options(self, options: Mapping[str, Any]) -> Values:
        """Options in their one form: those that are not the default."""
        for name, value in options.items():
            if name not in self.options:
                raise SpaceError(f"{self.family} networks have no option {shown(name)}: {nearest(name, self.options)}")
            kinds = self.kinds.get(name, (type(self.options[name]),))
            unset = value in (None, "") and self.options[name] is None
            if not unset and not any(KINDS[kind][1](value) for kind in kinds):
                wanted = " or ".join(KINDS[kind][0] for kind in kinds)
                raise SpaceError(f"the option {name} of {self.family} networks must be {wanted}, not {shown(value)}")
        return Values({k: _plain(v) for k, v in options.items() if _plain(v) != _plain(self.options[k])})

    def option(self, options: Mapping[str, Any], name: str) -> Any:
        return options.get(name, self.options[name])

    def private_weights(self, words: Iterable[str]) -> Mapping[str, Any]:
        """The ``weights`` with which these parts are private and all others shared."""
        given, most = [w for w in words if w != "none"], max(self.private, key=len, default=frozenset[str]())
        if not most:
            raise SpaceError(f"{self.family} networks have no weights that could be private")
        for word in given:
            if word not in most and word != "all":
                possible = f"{', '.join(sorted(most))}, several with commas, none or all"
                raise SpaceError(f"{self.family} networks cannot have {word!r} private; possible: {possible}")
        wanted = most if "all" in given else frozenset(given)
        if wanted not in self.private:
            sets = "; ".join(sorted(",".join(sorted(s)) or "none" for s in self.private))
            raise SpaceError(f"{self.family} networks cannot have just {','.join(given) or 'none'} private: {sets}")
        return self.private[wanted]

    def check_space(self, space: Space) -> None:
        """Refuse a space that its family cannot have: names, kinds, signs and sizes, then the family's own rules."""
        if not isinstance(space.name, str):
            raise SpaceError(f"a space's name must be a word, not {shown(space.name)}")
        if not is_whole(space.img_size) or not 1 <= space.img_size <= LARGEST_PICTURE:
            pixels = f"a whole number of pixels from 1 to {LARGEST_PICTURE:,}"
            raise SpaceError(f"{space.name}: img_size must be {pixels}, not {shown(space.img_size)}")
        self._names(space.name, "network-wide choices", set(space.choices) - {"resolution"}, self.choices, SpaceError)
        if not space.stages:
            raise SpaceError(f"the space {space.name} has no stage")
        for i, stage in enumerate(space.stages):
            needed = self.stage(space, i) if callable(self.stage) else self.stage
            self._names(space.name, f"choices of stage {i}", set(stage.choices), needed, SpaceError)
            for block in stage.blocks:
                self._names(space.name, f"choices of the blocks of stage {i}", set(block), self.block, SpaceError)
        self._check_sizes(space)
        for name, value in space.weights.items():
            if value not in self.weights.get(name, ()):
                known = self.weights.get(name) or tuple(self.weights)
                raise SpaceError(f"{space.name}: weights {name}={value!r} is not known: {nearest(value, known)}")
        for wrong in self.rules(space):
            raise SpaceError(f"{space.name}: {wrong}")

    def _check_sizes(self, space: Space) -> None:
        """Every choice is a size that networks can have, or one of its words; the largest network can be counted."""
        blocks = sum(stage.positions for stage in space.stages)
        if blocks > MOST_BLOCKS or len(space.stages) > MOST_STAGES:
            found = f"{blocks:,} blocks in {len(space.stages):,} stages"
            raise SpaceError(f"{space.name} has {found}; at most {MOST_BLOCKS:,} in {MOST_STAGES} are possible")
        largest = self._check_specs(space, space.choices, "network-wide", 0, 0)
        for i, stage in enumerate(space.stages):
            largest = max(largest, self._check_specs(space, stage.choices, f"stage {i}", i, 0))
            before: Mapping[str, Spec] | None = None
            for p, block in enumerate(stage.blocks):
                if block is not before and block != before:  # most stages have one block many times
                    largest = max(largest, self._check_specs(space, block, f"stage {i}, block {p}", i, p))
                before = block
        patch = space.widths("patch_size")[0] if "patch_size" in space.choices else 2
        tokens = -((-space.widths("resolution")[-1] // patch) ** 2)
        if 8 * tokens * (tokens + largest) * largest * (blocks + len(space.stages)) > COUNTABLE:
            much = f"pictures of {space.widths('resolution')[-1]:,} pixels, sizes of {largest:,} and {blocks:,} blocks"
            raise SpaceError(f"{space.name}: its largest network cannot be counted ({much}): make one of them smaller")

    def _check_specs(self, space: Space, specs: Mapping[str, Spec], where: str, stage: int, position: int) -> int:
        """The largest size among some choices, other than the picture's."""
        sizes, what = [1], f"{space.name}: {where}:"
        for name, spec in specs.items():
            if name in self.words:
                if wrong := [v for v in spec.values if v not in self.words[name]] or not isinstance(spec, Choice):
                    given = shown(wrong[0] if isinstance(wrong, list) else spec)
                    raise SpaceError(f"{what} {name} is {' or '.join(self.words[name])}, not {given}")
                continue
            most = LARGEST_PICTURE if name == "resolution" else LARGEST
            wanted = f"a whole number from 1 to {most:,}"
            if not isinstance(spec, Choice):
                numbers = all(isinstance(v, int | float) and 0 < v <= LARGEST for v in spec.values)
                whole = isinstance(spec, Ratio) or is_whole(spec.values[0])
                if name == "resolution" or not numbers or not whole:
                    raise SpaceError(f"{what} {shown(spec)} does not make {name} {wanted}")
                base = specs.get(spec.of)
                if (base is not None and not isinstance(base, Choice)) or spec.of in self.words:
                    raise SpaceError(f"{what} {name} must be a multiple of a size that is listed, not of {spec.of}")
            elif wrong := [v for v in spec.values if not is_whole(v)]:
                raise SpaceError(f"{what} {name} must be {wanted}, not {shown(wrong[0])}")
            found = space.widths(name, stage, position)
            if wrong := [size for size in found if not 1 <= size <= most]:
                raise SpaceError(f"{what} {name} must be {wanted}, not {shown(wrong[0])}")
            sizes += [] if name in ("resolution", "patch_size") else [found[-1]]
        return max(sizes)

    def _names(self, name: str, what: str, given: set[str], needed: frozenset[str], error: type[ValueError]) -> None:
        for extra in sorted(given - needed, key=str):
            raise error(
                f"{name}: {shown(extra)} is not among the {what} of {self.family}: {nearest(extra, sorted(needed))}"
            )
        if missing := sorted(needed - given):
            raise error(f"{name}: the {what} of {self.family} lack {', '.join(missing)}")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LARGEST


KINDS: dict[type, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda v: isinstance(v, int) and v in (0, 1)),  # Values keep truth as 1 or 0
    int: (f"a whole number from 1 to {LARGEST:,}", lambda v: is_whole(v) and _number(v)),
    float: (f"a number above 0, up to {LARGEST:,}", _number),
    str: ("a word", lambda v: isinstance(v, str)),
}
"""The kinds of options: in words, and whether a value is of it."""


def _plain(value: Any) -> Any:
    """JSON has no tuples, and Values hold numbers and words: truth is 1 or 0, nothing is an empty word."""
    return "" if value is None else int(value) if isinstance(value, bool) else value


# --- rules that several families have in common ---


def free_heads(space: Space) -> Iterator[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
    """Stage, position, attention widths, head counts of blocks in which both are chosen by themselves: the width is no
    declared multiple of the heads, nor are the heads what it divides into."""
    for i, stage in enumerate(space.stages):
        for p, block in enumerate(stage.blocks):
            attn, heads = block["attn"], block["heads"]
            by_heads = isinstance(attn, Times) and attn.of == "heads"
            if not by_heads and not (isinstance(heads, Divided) and heads.of == "attn"):
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
