"""The base of all settings, and how they are read: a mistake is answered with the key, what it is, and what is possible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from superformer.errors import SuperformerError, nearest


class Part(BaseModel):
    """A part of a recipe: a key that does not exist is an error, and what was read does not change."""

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
        part: Any = cls
        for parent in parents:
            field = getattr(part, "model_fields", {}).get(parent)
            part = field.annotation if field is not None else None
        here = "".join(f"{p}." for p in parents)
        known = [f"{here}{name}" for name in getattr(part, "model_fields", {})]
        return f"{where}: there is no setting {here + key!r}: {nearest(here + key, known)}"


def word(text: str, error: type[SuperformerError] = SuperformerError) -> tuple[str, Any]:
    """The key and the value of a ``key=value`` word; values are YAML."""
    key, equals, value = text.partition("=")
    if not equals:
        raise error(f"settings are written key=value, such as seed=1; {text!r} was given")
    try:
        return key.strip(), yaml.safe_load(value)
    except yaml.YAMLError as problem:
        raise error(f"{text!r} cannot be read: {' '.join(str(problem).split())}") from problem
