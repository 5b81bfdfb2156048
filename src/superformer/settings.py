"""How settings and numbers are read: a mistake is answered with the key, what it is, and what is possible."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from superformer.errors import SuperformerError, nearest

Runtime = Literal["eager", "compiled", "onnx"]
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
"""What runs networks: torch as it is, torch.compile, ONNX Runtime."""


class SettingsBase(BaseModel):
    """The base of all settings: a key that does not exist is an error, and what was read does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @classmethod
    def read(cls, values: Mapping[str, Any], where: str, error: type[SuperformerError] = SuperformerError) -> Self:
        """Settings from plain values; of several mistakes a key that does not exist is told first."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as problem:
            found = problem.errors()
            first = next((e for e in found if e["type"] == "extra_forbidden"), found[0])
            at = [str(p) for p in first["loc"]]
            if first["type"] == "extra_forbidden":
                raise error(cls.unknown(at[-1], at[:-1], where)) from problem
            given = "" if first["type"] == "missing" else f", not {first['input']!r}"
            raise error(f"{where}: {'.'.join(at)}: {first['msg']}{given}") from problem

    @classmethod
    def unknown(cls, key: str, parents: list[str], where: str) -> str:
        """What to say of a key that does not exist."""
        section: Any = cls
        for parent in parents:
            section = getattr(getattr(section, "model_fields", {}).get(parent), "annotation", None)
        here = "".join(f"{p}." for p in parents)
        known = [f"{here}{name}" for name in getattr(section, "model_fields", {})]
        return f"{where}: there is no setting {here + key!r}: {nearest(here + key, known)}"


def read_key_value(text: str, error: type[SuperformerError] = SuperformerError) -> tuple[str, Any]:
    """The key and the value of a ``key=value`` word; values are YAML."""
    key, equals, value = text.partition("=")
    if not equals:
        raise error(f"settings are written key=value, such as seed=1; {text!r} was given")
    try:
        return key.strip(), yaml.safe_load(value)
    except yaml.YAMLError as problem:
        raise error(f"{text!r} cannot be read: {' '.join(str(problem).split())}") from problem


# --- numbers with units ---


def read_amount(text: str, what: str) -> float:
    """600M, 1.5G, 5e6, 12."""
    units = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
    return _in_units(text, units, f"{what} must be a number such as 600M, 1.5G or 2e6, not {text!r}")


def read_bytes(text: str, what: str) -> float:
    """20MB, 1.5GiB, 500kB."""
    units = {"": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
    return _in_units(text, units, f"{what} must be an amount of memory such as 20MB or 1.5GiB, not {text!r}")


def read_seconds(text: str, what: str) -> float:
    """20ms, 0.5s, 300us."""
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
    return _in_units(text, units, f"{what} must be a time such as 20ms or 0.5s, not {text!r}")


def _in_units(text: str, units: dict[str, float], complaint: str) -> float:
    found = re.fullmatch(r"\s*((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in units or float(found[1]) <= 0:
        raise SuperformerError(complaint)
    return float(found[1]) * units[found[2]]
