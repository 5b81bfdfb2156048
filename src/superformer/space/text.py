"""Spaces as JSON text, to keep them and to declare them outside of Python."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from superformer.errors import ArchError, SpaceError
from superformer.space.arch import expect, load_json
from superformer.space.stage import Choice, Ratio, Spec, Stage, ratio, times

if TYPE_CHECKING:
    from superformer.space.space import Space


def to_json(space: Space) -> str:
    """A space as JSON text; equal spaces have the same text."""
    stages = []
    for s in space.stages:
        same = all(b == s.blocks[0] for b in s.blocks) and s.positions > 0
        entry: dict[str, Any] = {"block": _written(s.blocks[0]) if same else [_written(b) for b in s.blocks]}
        entry["depth"] = s.positions if s.free else list(s.depths)
        if s.choices:
            entry["choices"] = _written(s.choices)
        if s.free:
            entry |= {"skippable": list(s.free), "skip": s.skip}
        if s.tied:
            entry["tied"] = True
        stages.append(entry)
    out = {
        "name": space.name,
        "family": space.family,
        "img_size": space.img_size,
        "choices": _written(space.choices),
        "stages": stages,
    }
    out |= {"options": dict(space.options), "weights": dict(space.weights)}
    return json.dumps(out)


def _written(given: Mapping[str, Spec]) -> dict[str, Any]:
    """Choices as JSON: a list of values, ``{ratio, of}`` or ``{times, of}``."""
    out: dict[str, Any] = {}
    for name, spec in given.items():
        if isinstance(spec, Choice):
            out[name] = list(spec.values)
        elif isinstance(spec, Ratio):
            out[name] = {"ratio": list(spec.values), "of": spec.of}
        else:
            out[name] = {"times": spec.factor, "of": spec.of}
    return out


def fields(text: str) -> dict[str, Any]:
    """The fields of the space that a JSON text describes; the error says what is wrong with it."""
    data = load_json(text, "a space", SpaceError)
    expect(data, "a space", {"name", "family", "stages"}, {"img_size", "choices", "options", "weights"}, SpaceError)
    if not isinstance(data["stages"], list):
        raise SpaceError("a space's stages must be a list")
    stages = []
    for i, entry in enumerate(data["stages"]):
        where = f"stage {i} of the space"
        expect(entry, where, {"block", "depth"}, {"choices", "skippable", "skip", "tied"}, SpaceError)
        block = (
            [_read(b, where) for b in entry["block"]]
            if isinstance(entry["block"], list)
            else _read(entry["block"], where)
        )
        stages.append(made(where, Stage, {**entry, "block": block, "choices": _read(entry.get("choices", {}), where)}))
    return {**data, "stages": tuple(stages), "choices": _read(data.get("choices", {}), "choices")}


def made(where: str, kind: Any, fields: dict[str, Any]) -> Any:
    """What the fields describe; a value of the wrong kind is an error that says where."""
    try:
        return kind(**fields)
    except (TypeError, AttributeError, ArchError) as error:
        raise SpaceError(f"{where} has a value of the wrong kind: {error}") from error


def _read(given: Any, where: str) -> dict[str, Any]:
    """Choices from JSON (the opposite of `_written`)."""
    if not isinstance(given, dict):
        raise SpaceError(f"{where} must be an object of choices, not {given!r}")
    out: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, dict) and set(value) == {"ratio", "of"} and isinstance(value["ratio"], list):
            out[name] = ratio(*value["ratio"], of=value["of"])
        elif isinstance(value, dict) and set(value) == {"times", "of"}:
            out[name] = times(value["times"], of=value["of"])
        elif isinstance(value, dict):
            raise SpaceError(f"{where}: {name} must be a list of values, {{ratio, of}} or {{times, of}}, not {value!r}")
        else:
            out[name] = value
    return out
