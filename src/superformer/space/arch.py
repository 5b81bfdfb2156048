"""Architectures: plain, readable values. One architecture has one canonical form and one key."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from superformer.errors import ArchError, nearest

CHECKS: list[Callable[[Arch], None]] = []
"""What an architecture from outside must pass; spaces, which know the families, add theirs."""

Value = int | float | str


def plain(value: object) -> Value:
    """A number or a word in its one form: 4.0 is 4, NumPy's numbers are Python's."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ArchError(f"{value!r} is not a number or a word")
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
        if not isinstance(data["stages"], list) or not data["stages"]:
            raise ArchError("an architecture's stages must be a list with at least one entry")
        for i, entry in enumerate(data["stages"]):
            where = f"stage {i} of the architecture"
            expect(entry, where, {"blocks"}, {"choices", "at"}, ArchError)
            at = entry.get("at")
            if not isinstance(entry["blocks"], list) or not all(isinstance(b, dict) for b in entry["blocks"]):
                example = "{'heads': 3, 'attn': 192, 'mlp': 768}"
                raise ArchError(f"{where}: blocks must be a list of objects such as {example}")
            if at is not None and not (isinstance(at, list) and all(isinstance(p, int) for p in at)):
                raise ArchError(f"{where}: at must be a list of positions, not {at!r}")
            blocks = tuple(Values(b) for b in entry["blocks"])
            stages.append(StageArch(blocks, Values(entry.get("choices", {})), None if at is None else tuple(at)))
        if not isinstance(data["resolution"], int) or not isinstance(data["choices"], dict):
            raise ArchError("an architecture's resolution must be a whole number and its choices an object")
        choices, options = Values(data["choices"]), Values(data.get("options", {}))
        arch = Arch(str(data["family"]), data["resolution"], choices, tuple(stages), options)
        for check in CHECKS:
            check(arch)
        return arch

    def __repr__(self) -> str:
        head = ", ".join(f"{k}={v}" for k, v in self.choices.items())
        depths = "+".join(str(len(s.blocks)) for s in self.stages)
        return f"Arch({self.key}: {head + ', ' if head else ''}{depths} blocks, {self.resolution} px)"


def load_json(text: str, what: str, error: type[ValueError]) -> dict[str, Any]:
    """A JSON object, or an error that says where the text is wrong."""
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, TypeError, UnicodeDecodeError) as e:
        raise error(f"{what} must be JSON text, and this is not: {e}") from e
    if not isinstance(data, dict):
        raise error(f"{what} must be a JSON object, not {type(data).__name__}")
    return data


def expect(data: object, what: str, needed: set[str], allowed: set[str], error: type[ValueError]) -> None:
    """Exactly the keys that are known."""
    if not isinstance(data, dict):
        raise error(f"{what} must be an object with {', '.join(sorted(needed))}, not {data!r}")
    for key in data:
        if key not in needed | allowed:
            raise error(f"{what} has no {key!r}: {nearest(key, sorted(needed | allowed))}")
    if missing := sorted(needed - set(data)):
        raise error(f"{what} lacks {', '.join(map(repr, missing))}")
