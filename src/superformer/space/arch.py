"""Architectures: plain, readable values. One architecture has one canonical form and one key."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from superformer.errors import ArchError, nearest, shown

CHECKS: list[Callable[[Arch], None]] = []
"""What an architecture from outside must pass; spaces, which know the families, add theirs."""

Value = int | float | str

LARGEST_PICTURE = 4096
"""Pixels in a row of the largest input."""
LARGEST = 2**16
"""The largest number that a choice or an option may be: wider than any network, small enough to be counted with."""
LARGEST_TEXT = 2**22
"""Characters of the longest text that is read as an architecture or a space; those of real ones are thousands."""


def plain(value: object) -> Value:
    """A number or a word in its one form: 4.0 is 4, NumPy's numbers are Python's."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ArchError(f"{shown(value)} is not a number or a word")
    if isinstance(value, float) and not math.isfinite(value):
        raise ArchError(f"{value} is not a finite number")
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Values(Mapping[str, Value]):
    """Named values that never change: ``{"heads": 3, "attn": 192, "mlp": 768}``."""

    __slots__ = ("_hash", "_items")

    def __init__(self, items: Mapping[str, object] = {}, /, **more: object):  # never written
        self._items = {k: plain(v) for k, v in sorted({**items, **more}.items())}
        self._hash = hash(tuple(self._items.items()))

    def __getitem__(self, name: str) -> Value:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Values) and self._items == other._items

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{k}: {v}" for k, v in self._items.items()) + "}"

    def int(self, name: str) -> int:
        value = self._items[name]
        assert isinstance(value, int)
        return value


@dataclass(frozen=True)
class StageArch:
    """One stage: its own values, and the values of its blocks, first to last.

    ``at`` says at which positions of the supernet's stage the blocks sit where positions are free (identities in
    between: ViTAS v1, ViT-ResNAS); None is the canonical placement, identities last. It chooses weights, not the
    network, and takes no part in equality."""

    blocks: tuple[Values, ...]
    choices: Values = field(default_factory=Values)
    at: tuple[int, ...] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Arch:
    """One network: family, input size, network-wide values, stages, and the options that make the family's function.
    Two archs are equal, and have the same `key`, exactly when they are the same network."""

    family: str
    resolution: int
    choices: Values
    stages: tuple[StageArch, ...]
    options: Values = field(default_factory=Values)

    @functools.cached_property
    def key(self) -> str:
        digest = hashlib.sha256(json.dumps(self._plain(), sort_keys=True).encode()).hexdigest()
        return f"{self.family}-{digest[:16]}"

    @property
    def path(self) -> str:
        """The key, and where blocks sit if not at canonical places: one path is one set of a supernet's weights."""
        places = "/".join("" if s.at is None else ",".join(map(str, s.at)) for s in self.stages)
        return f"{self.key}@{places}" if places.strip("/") else self.key

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return sum(len(s.blocks) for s in self.stages)

    def placed(self, at: tuple[tuple[int, ...] | None, ...]) -> Arch:
        """The same network with its blocks at other positions of the supernet."""
        stages = tuple(StageArch(s.blocks, s.choices, a) for s, a in zip(self.stages, at, strict=True))
        return Arch(self.family, self.resolution, self.choices, stages, self.options)

    def canonical(self) -> Arch:
        """The same network at the canonical positions."""
        return self.placed((None,) * len(self.stages))

    def _plain(self) -> dict[str, Any]:
        out: dict[str, Any] = {"family": self.family, "resolution": self.resolution, "choices": dict(self.choices)}
        out["stages"] = [{"blocks": [dict(b) for b in s.blocks]} for s in self.stages]
        for entry, s in zip(out["stages"], self.stages, strict=True):
            if s.choices:
                entry["choices"] = dict(s.choices)
        return out | ({"options": dict(self.options)} if self.options else {})

    def to_json(self) -> str:
        """Canonical JSON. A placement that is not the canonical one is kept beside the blocks as ``at``."""
        out = self._plain()
        for entry, s in zip(out["stages"], self.stages, strict=True):
            if s.at is not None:
                entry["at"] = list(s.at)
        return json.dumps(out, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Arch:
        data = load_json(text, "an architecture", ArchError)
        expect(data, "an architecture", {"family", "resolution", "choices", "stages"}, {"options"}, ArchError)
        stages = []
        if not isinstance(data["family"], str):
            raise ArchError(f"an architecture's family must be a word, not {shown(data['family'])}")
        if not isinstance(data["stages"], list) or not data["stages"]:
            raise ArchError("an architecture's stages must be a list with at least one entry")
        for i, entry in enumerate(data["stages"]):
            where = f"stage {i} of the architecture"
            expect(entry, where, {"blocks"}, {"choices", "at"}, ArchError)
            at = entry.get("at")
            if not isinstance(entry["blocks"], list) or not all(isinstance(b, dict) for b in entry["blocks"]):
                example = "{'heads': 3, 'attn': 192, 'mlp': 768}"
                raise ArchError(f"{where}: blocks must be a list of objects such as {example}")
            if at is not None and not (isinstance(at, list) and all(is_whole(p) and p >= 0 for p in at)):
                raise ArchError(f"{where}: at must be a list of positions, not {shown(at)}")
            if at is not None and (len(at) != len(entry["blocks"]) or at != sorted(set(at))):
                raise ArchError(f"{where}: at must be a rising position for each of its {len(entry['blocks'])} blocks")
            blocks, own = tuple(Values(b) for b in entry["blocks"]), _named(entry, "choices", where)
            stages.append(StageArch(blocks, own, None if at is None else tuple(at)))
        if not is_whole(data["resolution"]):
            raise ArchError(f"an architecture's resolution must be a whole number, not {shown(data['resolution'])}")
        choices, options = _named(data, "choices", "an architecture"), _named(data, "options", "an architecture")
        arch = Arch(data["family"], data["resolution"], choices, tuple(stages), options)
        for check in CHECKS:
            check(arch)
        return arch

    def __repr__(self) -> str:
        head = ", ".join(f"{k}={v}" for k, v in self.choices.items())
        depths = "+".join(str(len(s.blocks)) for s in self.stages)
        return f"Arch({self.key}: {head + ', ' if head else ''}{depths} blocks, {self.resolution} px)"


def is_whole(value: object) -> bool:
    """Whether a value is a whole number (truth is none)."""
    return isinstance(value, int) and not isinstance(value, bool)


def _named(data: Mapping[str, Any], key: str, where: str) -> Values:
    given = data.get(key, {})
    if not isinstance(given, dict):
        raise ArchError(f"{where}: {key} must be an object of named values, not {shown(given)}")
    return Values(given)


def load_json(text: str, what: str, error: type[ValueError]) -> dict[str, Any]:
    """A JSON object, or an error that says where the text is wrong. No key stands twice, and numbers are finite."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) < len(pairs):
            names = [name for name, _ in pairs]
            raise error(f"{what} has {shown(next(n for n in names if names.count(n) > 1))} twice")
        return out

    def infinite(word: str) -> None:
        raise error(f"{what} has {word} where a finite number belongs")

    if isinstance(text, str) and len(text) > LARGEST_TEXT:
        raise error(f"{what} is a text of {len(text):,} characters; at most {LARGEST_TEXT:,} are read")
    try:
        data = json.loads(text, object_pairs_hook=once, parse_constant=infinite)
    except error:
        raise
    except RecursionError as e:
        raise error(f"{what} must be plain JSON, and this is nested too deep") from e
    except (ValueError, TypeError) as e:  # among them numbers of thousands of digits
        raise error(f"{what} must be JSON text, and this is not: {e}") from e
    if not isinstance(data, dict):
        raise error(f"{what} must be a JSON object, not {type(data).__name__}")
    return data


def expect(data: object, what: str, needed: set[str], allowed: set[str], error: type[ValueError]) -> None:
    """Exactly the keys that are known."""
    if not isinstance(data, dict):
        raise error(f"{what} must be an object with {', '.join(sorted(needed))}, not {shown(data)}")
    for key in data:
        if key not in needed | allowed:
            raise error(f"{what} has no {shown(key)}: {nearest(key, sorted(needed | allowed))}")
    if missing := sorted(needed - set(data)):
        raise error(f"{what} lacks {', '.join(map(repr, missing))}")
