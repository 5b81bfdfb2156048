"""Stages of a space, and the choices they declare.

Choices are written as values (``heads=(3, 6, 12)``), as multiples of another value that are chosen from (`ratio`), or
follow from another value: a fixed multiple (`times`) or a fixed part (`divided`) of it."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from superformer.errors import ArchError, SpaceError, shown
from superformer.space.arch import LARGEST, Value, expect, is_whole, load_json, plain

if TYPE_CHECKING:
    from superformer.space.genes import StageLayout
    from superformer.space.space import Space

Built = TypeVar("Built")
DEEPEST, MOST_VALUES = 512, 256
"""Blocks of the deepest stage, and values of the longest choice: what counting and drawing take is bounded by them."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Choice:
    """One of these values."""

    values: tuple[Value, ...]


@dataclass(frozen=True)
class Ratio:
    """One of these multiples of another value, rounded down: ``ratio(3.5, 4, of="width")``."""

    values: tuple[Value, ...]
    of: str


@dataclass(frozen=True)
class Times:
    """A fixed multiple of another value, nothing to choose: ``times(64, of="heads")``."""

    factor: int
    of: str

    @property
    def values(self) -> tuple[Value, ...]:
        return (self.factor,)


@dataclass(frozen=True)
class Divided:
    """Another value divided by a number, nothing to choose: ``divided(32, of="attn")``."""

    divisor: int
    of: str

    @property
    def values(self) -> tuple[Value, ...]:
        return (self.divisor,)


Spec = Choice | Ratio | Times | Divided


def ratio(*values: float, of: str) -> Ratio:
    return Ratio(tuple(plain(v) for v in values), of)


def times(factor: int, of: str) -> Times:
    return Times(factor, of)


def divided(by: int, of: str) -> Divided:
    return Divided(by, of)


def tenths(largest: int, parts: int = 1) -> tuple[int, ...]:
    """ViTAS's ten widths: ``i/10`` of the largest, rounded, for i = 1..10."""
    return tuple(round(i / 10 * largest) // parts for i in range(1, 11))


def scaled(base: Any, factor: Any) -> int:
    """A multiple of a value, rounded down."""
    return int(base * factor)


def following(spec: Ratio | Times | Divided, base: Any, value: Any) -> Any:
    """What a value that depends on another one is: a number, or an array of them."""
    found = base // value if isinstance(spec, Divided) else base * value
    return found.astype(np.int64) if isinstance(found, np.ndarray) else int(found)


def spec_of(name: str, given: object) -> Spec:
    """A choice as it may be written: as itself, as its values or as one value."""
    if isinstance(given, Mapping):
        raise SpaceError(f"{name} must be a value, a list of values, a ratio or a multiple, not {shown(given)}")
    values = given if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    if isinstance(values, Sequence | range) and len(values) > MOST_VALUES:
        raise SpaceError(f"{name} has {len(values):,} values to choose from; at most {MOST_VALUES} are possible")
    spec = given if isinstance(given, Choice | Ratio | Times | Divided) else Choice(tuple(plain(v) for v in values))
    if not spec.values:
        raise SpaceError(f"{name} has no value to choose from")
    if len(set(map(plain, spec.values))) != len(spec.values):
        raise SpaceError(f"{name} names a value twice: {', '.join(map(str, spec.values))}")
    return spec


def specs_of(given: Mapping[str, object]) -> dict[str, Spec]:
    if not isinstance(given, Mapping):
        raise SpaceError(f"choices are named, such as {{'heads': [3, 6]}}, not {shown(given)}")
    return {name: spec_of(name, value) for name, value in given.items()}


def _numbers(given: object) -> tuple[int, ...] | None:
    """Whole numbers, ascending, each once; None: this is something else."""
    found = [given] if is_whole(given) else given
    if not isinstance(found, Iterable) or isinstance(found, str | Mapping):
        return None
    found = [int(v) if isinstance(v, np.integer) else v for v in itertools.islice(found, LARGEST)]
    return tuple(sorted(set(found))) if all(map(is_whole, found)) else None


@dataclass(frozen=True)
class Stage:
    """A stage: a line of a paper's table.

    ``block`` holds the choices of every block, or a sequence of them, one for each position. ``depth`` is the number of
    blocks or the numbers it may be. ``skip`` is the probability with which sampling leaves a skippable position out
    (ViT-ResNAS: one half; ViTAS v1: identity is one of five operations). In a ``tied`` stage all blocks are the same
    (ViTAS v1, section 5.3). ``order``: its positions, those that matter most first; a depth runs the first so many of
    them, each at its place (`superformer.train.importance`). Without one, the last blocks go first."""

    block: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    depth: int | Iterable[int]
    choices: Mapping[str, Any] = field(default_factory=dict)
    skippable: Iterable[int] = ()
    skip: float = 0.5
    tied: bool = False
    order: Sequence[int] = ()

    def __post_init__(self) -> None:
        depths = _numbers(self.depth)
        if not depths or depths[0] < 0 or depths[-1] > DEEPEST:
            wanted = f"one or more numbers from 0 to {DEEPEST}"
            raise SpaceError(f"a stage's depth must be {wanted}, not {shown(self.depth)}")
        positions = depths[-1]
        each = self.block
        if not isinstance(each, Mapping | Sequence) or isinstance(each, str):
            raise SpaceError(f"a stage's block must be its choices, or a list of them, not {shown(each)}")
        if not isinstance(self.tied, bool):
            raise SpaceError(f"tied is true or false, not {shown(self.tied)}")
        block = [specs_of(each)] * positions if isinstance(each, Mapping) else [specs_of(b) for b in each]
        if len(block) != positions:
            raise SpaceError(f"a stage of {positions} blocks was given choices for {len(block)}")
        skippable = _numbers(self.skippable)
        if skippable is None:
            raise SpaceError(f"skippable must be a list of positions, not {shown(self.skippable)}")
        if skippable:
            if len(depths) > 1:
                raise SpaceError("a stage has either several depths or skippable positions, not both")
            if not set(skippable) <= set(range(positions)):
                raise SpaceError(f"skippable positions {skippable} are not all within 0..{positions - 1}")
            if any(b != block[0] for b in block):
                raise SpaceError("with skippable positions all blocks of a stage must have the same choices")
            if isinstance(self.skip, bool) or not isinstance(self.skip, int | float) or not 0 < self.skip < 1:
                raise SpaceError(f"skip must be a probability between 0 and 1, not {shown(self.skip)}")
            depths = tuple(range(positions - len(skippable), positions + 1))
        if self.tied and (skippable or any(b != block[0] for b in block)):
            raise SpaceError("tied blocks must have the same choices, and none can be skipped by itself")
        object.__setattr__(self, "block", tuple(block))
        object.__setattr__(self, "depth", depths)
        object.__setattr__(self, "choices", specs_of(self.choices))
        object.__setattr__(self, "skippable", skippable)
        object.__setattr__(self, "order", self._order(positions))

    def _order(self, positions: int) -> tuple[int, ...]:
        """The positions by importance; nothing if that is as they come."""
        numbers, plain_order = _numbers(self.order), tuple(range(positions))
        if numbers is None or (numbers and (numbers != plain_order or len(tuple(self.order)) != positions)):
            raise SpaceError(f"order must name each position from 0 to {positions - 1} once, not {shown(self.order)}")
        if numbers and self.skippable:
            raise SpaceError("a stage has either an order of its blocks or skippable positions, not both")
        found = tuple(int(p) for p in self.order)
        return () if found == plain_order else found

    @property
    def ranked(self) -> tuple[int, ...]:
        """All positions, those that the smallest depth keeps first."""
        return tuple(self.order) or tuple(range(self.positions))

    @property
    def blocks(self) -> tuple[dict[str, Spec], ...]:
        assert isinstance(self.block, tuple)
        return self.block

    @property
    def depths(self) -> tuple[int, ...]:
        assert isinstance(self.depth, tuple)
        return self.depth

    @property
    def free(self) -> tuple[int, ...]:
        """The skippable positions."""
        assert isinstance(self.skippable, tuple)
        return self.skippable

    @property
    def positions(self) -> int:
        return len(self.blocks)

    def with_identities(self, where: str) -> Stage:
        """The stage with its identities at the end (``"shifted"``), or anywhere after those that always run."""
        if len(self.depths) == 1 or (where == "free") == bool(self.free):
            return self
        if where == "shifted":
            return replace(self, depth=self.depths, skippable=(), skip=0.5)
        least, most = self.depths[0], self.depths[-1]
        if self.depths != tuple(range(least, most + 1)):
            raise SpaceError(f"identities can be free where all depths between {least} and {most} are there")
        return replace(self, depth=most, skippable=self.ranked[least:], order=())

    def options(self, position: int) -> int:
        """The number of different blocks at a position."""
        return math.prod(len(spec.values) for spec in self.blocks[position].values())

    def sequences(self, depth: int) -> int:
        """The number of different sequences of ``depth`` blocks."""
        if self.tied:
            return self.options(0) if depth else 1
        return math.prod(self.options(p) for p in self.ranked[:depth])

    def placement(self, depth: int) -> tuple[int, ...]:
        """The canonical positions of ``depth`` blocks: those that always run, then skippable ones from the front."""
        if not self.free:
            return tuple(sorted(self.ranked[:depth]))
        kept = self.free[: depth - (self.positions - len(self.free))]
        return tuple(p for p in range(self.positions) if p not in self.free or p in kept)


# --- how deep a stage is ---


def depth_weights(stage: Stage, over: str) -> Floats:
    """The probability of each depth: every choice uniform, or as many as there are architectures of that depth."""
    if over == "architectures":
        total = sum(map(stage.sequences, stage.depths))
        weights = [stage.sequences(d) / total for d in stage.depths]
    elif stage.free:
        free, skip = len(stage.free), stage.skip
        kept = [d - (stage.positions - free) for d in stage.depths]
        weights = [math.comb(free, k) * (1 - skip) ** k * skip ** (free - k) for k in kept]
    else:
        weights = [1.0] * len(stage.depths)
    return np.asarray(weights) / math.fsum(weights)


def running(stage: Stage, depth: Ints) -> NDArray[np.bool_]:
    """Which positions run at each of these depths, where none can be skipped by itself."""
    found: NDArray[np.bool_] = np.argsort(stage.ranked) < depth[:, None]
    return found


def place(
    genes: Ints, rows: Ints, stage: Stage, where: StageLayout, depth: Ints, over: str, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Write the depth of a stage; free positions are drawn uniformly, or canonical. Returns which positions run."""
    if where.depth is not None:
        genes[rows, where.depth] = np.searchsorted(np.asarray(stage.depths), depth)
    active = running(stage, depth)
    if stage.free:
        free = np.asarray(stage.free)
        shape = len(depth), len(free)
        keys = rng.random(shape) if over == "choices" else np.broadcast_to(np.arange(len(free)), shape)
        on = keys.argsort(1).argsort(1) < (depth - (stage.positions - len(free)))[:, None]
        active = np.ones((len(depth), stage.positions), dtype=bool)
        active[:, free] = on
        genes[rows[:, None], np.asarray([where.on[p] for p in free])] = on
    return active


# --- as JSON text ---


def written(space: Space) -> str:
    """A space as JSON text; equal spaces have the same text."""
    stages = []
    for s in space.stages:
        same = all(b == s.blocks[0] for b in s.blocks) and s.positions > 0
        entry: dict[str, Any] = {"block": _specs_json(s.blocks[0]) if same else [_specs_json(b) for b in s.blocks]}
        entry["depth"] = s.positions if s.free else list(s.depths)
        if s.choices:
            entry["choices"] = _specs_json(s.choices)
        if s.free:
            entry |= {"skippable": list(s.free), "skip": s.skip}
        if s.tied:
            entry["tied"] = True
        if s.order:
            entry["order"] = list(s.order)
        stages.append(entry)
    out: dict[str, Any] = {"name": space.name, "family": space.family, "img_size": space.img_size}
    out |= {"choices": _specs_json(space.choices), "stages": stages}
    return json.dumps(out | {"options": dict(space.options), "weights": dict(space.weights)})


def _specs_json(given: Mapping[str, Spec]) -> dict[str, Any]:
    """Choices as JSON: a list of values, ``{ratio, of}``, ``{times, of}`` or ``{divided, of}``."""
    out: dict[str, Any] = {}
    for name, spec in given.items():
        if isinstance(spec, Choice):
            out[name] = list(spec.values)
        elif isinstance(spec, Ratio):
            out[name] = {"ratio": list(spec.values), "of": spec.of}
        elif isinstance(spec, Times):
            out[name] = {"times": spec.factor, "of": spec.of}
        else:
            out[name] = {"divided": spec.divisor, "of": spec.of}
    return out


def read_space(text: str, kind: type[Space]) -> Space:
    """The space that a JSON text describes; the error says what is wrong with it."""
    data = load_json(text, "a space", SpaceError)
    expect(data, "a space", {"name", "family", "stages"}, {"img_size", "choices", "options", "weights"}, SpaceError)
    if not isinstance(data["stages"], list):
        raise SpaceError("a space's stages must be a list")
    for key in ("options", "weights"):
        if not isinstance(data.get(key, {}), dict):
            raise SpaceError(f"a space's {key} must be an object of named values, not {shown(data[key])}")
    stages = []
    for i, entry in enumerate(data["stages"]):
        where = f"stage {i} of the space"
        expect(entry, where, {"block", "depth"}, {"choices", "skippable", "skip", "tied", "order"}, SpaceError)
        given = entry["block"]
        block = [_read_specs(b, where) for b in given] if isinstance(given, list) else _read_specs(given, where)
        choices = _read_specs(entry.get("choices", {}), where)
        stages.append(_build(where, Stage, **{**entry, "block": block, "choices": choices}))
    choices = _read_specs(data.get("choices", {}), "choices")
    return _build("a space", kind, **{**data, "stages": tuple(stages), "choices": choices})


def _build(where: str, kind: Callable[..., Built], values: Iterable[Any] = (), **fields: Any) -> Built:
    """What the fields describe; a value of the wrong kind is an error that says where."""
    try:
        return kind(*values, **fields)
    except ArchError as error:
        raise SpaceError(f"{where} has a value of the wrong kind: {error}") from error


def _read_specs(given: Any, where: str) -> dict[str, Any]:
    """Choices from JSON (the opposite of `_specs_json`)."""
    if not isinstance(given, dict):
        raise SpaceError(f"{where} must be an object of choices, not {shown(given)}")
    out: dict[str, Any] = {}
    for name, value in given.items():
        if not isinstance(value, dict):
            out[name] = value
        elif set(value) == {"ratio", "of"} and isinstance(value["ratio"], list):
            out[name] = _build(f"{where}: {name}", ratio, value["ratio"], of=value["of"])
        elif set(value) == {"times", "of"}:
            out[name] = times(value["times"], of=value["of"])
        elif set(value) == {"divided", "of"}:
            out[name] = divided(value["divided"], of=value["of"])
        else:
            forms = "a list of values, {ratio, of}, {times, of} or {divided, of}"
            raise SpaceError(f"{where}: {name} must be {forms}, not {shown(value)}")
    return out
