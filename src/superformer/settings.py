"""How settings and numbers are read: a mistake is answered with the key, what it is, and what is possible."""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from superformer.errors import SuperformerError, nearest, shown

Runtime = Literal["eager", "compiled", "onnx"]
DEVICE, DEVICES = "SUPERFORMER_DEVICE", ("auto", "cpu", "cuda", "mps", "xpu")
"""The variable that names what computes, and what it may name."""
PROCESSES, NUMBERS = "SUPERFORMER_PROCESSES", ("same", "any")
"""The variable that says whether a training may go on with another number of processes."""
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
"""What runs networks: torch as it is, torch.compile, ONNX Runtime."""
INT8 = ("dynamic", "static")
"""How networks are quantised to 8 bits (`superformer.interop.int8`); the first is the default."""


LARGEST = 1e18
"""The largest number of any setting: of no MACs, pictures or steps are there more."""
MOST_PARTS, DEEPEST, LONGEST = 100_000, 50, 2**20
"""Values in a tree of settings, levels of it, and characters of its text: aliases make a short text a huge tree."""


def require_alone(what: str) -> None:
    """Refuse what one process does where torchrun has started several: all would write the same files."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        several = "train, evolve-space, search, retrain, eval and transfer take several"
        raise SuperformerError(f"{what} runs in one process: start it without torchrun ({several})")


def _rising(ends: Any) -> Any:
    if None not in ends and ends[0] > ends[1]:
        raise ValueError("the lower end must not be above the upper end")
    return ends


Positive = Annotated[float, Field(gt=0)]
Channels = Annotated[tuple[Annotated[float, Field(ge=-1000, le=1000)], ...], Field(min_length=1, max_length=64)]
"""A number for each channel of a picture."""
Deviations = Annotated[tuple[Annotated[float, Field(ge=1e-6, le=1000)], ...], Field(min_length=1, max_length=64)]
"""The same, to divide by."""
Range = Annotated[tuple[Positive, Positive], AfterValidator(_rising)]
Limits = Annotated[tuple[Annotated[float, Field(ge=0)] | None, Positive | None], AfterValidator(_rising)]
"""At least, at most; none: no limit."""


class SettingsBase(BaseModel):
    """The base of all settings: a key that does not exist is an error, numbers are finite, truth is no number, and what
    was read does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _truth_is_no_number(cls, given: Any) -> Any:
        for name, value in given.items() if isinstance(given, Mapping) else ():
            if isinstance(value, bool) and name in cls.model_fields and _is_number(cls.model_fields[name].annotation):
                raise ValueError(f"{name} must be a number, not {str(value).lower()}")
        return given

    @model_validator(mode="after")
    def _numbers_are_bounded(self) -> Self:
        for name in type(self).model_fields:
            value = getattr(self, name)
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, int | float) and abs(number) > LARGEST:
                    raise ValueError(f"{name} must be at most {LARGEST:.0e}")
        return self

    @classmethod
    def read(cls, values: Mapping[str, Any], where: str, error: type[SuperformerError] = SuperformerError) -> Self:
        """Settings from plain values; of several mistakes a key that does not exist is told first."""
        check_tree(values, where, error)
        try:
            return cls.model_validate(dict(values))
        except ValidationError as problem:
            found = problem.errors()
            first = next((e for e in found if e["type"] == "extra_forbidden"), found[0])
            at = [str(p) for p in first["loc"]]
            if first["type"] == "extra_forbidden":
                raise error(cls.unknown(at[-1], at[:-1], where)) from problem
            given = "" if first["type"] == "missing" else f", not {shown(first['input'])}"
            told = first["msg"].removeprefix("Value error, ")
            raise error(f"{where}: {'.'.join(at)}{': ' if at else ''}{told}{given}") from problem

    @classmethod
    def unknown(cls, key: str, parents: list[str], where: str) -> str:
        """What to say of a key that does not exist."""
        section: Any = cls
        for parent in parents:
            section = getattr(getattr(section, "model_fields", {}).get(parent), "annotation", None)
        here, key = "".join(f"{p}." for p in parents), key[:60]
        known = [f"{here}{name}" for name in getattr(section, "model_fields", {})]
        return f"{where}: there is no setting {here + key!r}: {nearest(here + key, known)}"


def _is_number(annotation: Any) -> bool:
    """Whether a field takes nothing but numbers (or none)."""
    kinds = set(get_args(annotation) or (annotation,)) - {type(None)}
    return bool(kinds) and kinds <= {int, float}


def check_tree(tree: Any, where: str, error: type[SuperformerError] = SuperformerError) -> None:
    """Refuse a tree that is too large or too deep (or holds itself), and values that no setting has."""
    waiting, seen = [(tree, 0)], 0
    while waiting:
        node, depth = waiting.pop()
        seen += 1
        if seen > MOST_PARTS or depth > DEEPEST:
            raise error(f"{where}: settings have at most {MOST_PARTS:,} values in {DEEPEST} levels; these have more")
        if isinstance(node, Mapping):
            if wrong := [key for key in node if isinstance(key, bool) or not isinstance(key, str | int)]:
                raise error(f"{where}: {shown(wrong[0])} is no name of a setting: put quotes around it")
            waiting += [(value, depth + 1) for value in node.values()]
        elif isinstance(node, list | tuple):
            waiting += [(value, depth + 1) for value in node]
        elif isinstance(node, float) and not math.isfinite(node):
            raise error(f"{where}: {node} is not a finite number")
        elif not (node is None or isinstance(node, str | int | float | BaseModel)):
            what = f"{shown(node)}, a {type(node).__name__}, is no value of a setting"
            raise error(f"{where}: {what}: put quotes around it if it is meant as a word")


class _Loader(yaml.SafeLoader):
    """YAML in which no key stands twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        out = super().construct_mapping(node, deep)
        if len(out) < len([key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]) and len(out) < len(
            node.value
        ):
            raise yaml.constructor.ConstructorError(None, None, "a key stands here twice", node.start_mark)
        return out


def load_yaml(text: str, where: str, error: type[SuperformerError] = SuperformerError) -> Any:
    """Plain values from YAML text."""
    if len(text) > LONGEST:
        raise error(f"{where} is a text of {len(text):,} characters; at most {LONGEST:,} are read")
    try:
        tree = yaml.load(text, _Loader)
    except RecursionError as problem:
        raise error(f"{where} cannot be read: it is nested too deep") from problem
    except Exception as problem:  # yaml's constructors raise anything: of 2024-13-45 a ValueError, of !!int x, ...
        raise error(
            f"{where} cannot be read, it is not well-formed YAML: {' '.join(str(problem).split())[:300]}"
        ) from problem
    check_tree(tree, where, error)
    return tree


def read_key_value(text: str, error: type[SuperformerError] = SuperformerError) -> tuple[str, Any]:
    """The key and the value of a ``key=value`` word; values are YAML."""
    key, equals, value = text.partition("=")
    if not equals:
        raise error(f"settings are written key=value, such as seed=1; {shown(text)} was given")
    return key.strip(), load_yaml(value, shown(text), error)


def changed(
    given: Mapping[str, Any], words: Iterable[tuple[str, Any]], form: type[SettingsBase],
    error: type[SuperformerError] = SuperformerError,
) -> dict[str, Any]:  # fmt: skip
    """A tree of settings of a form with these keys changed."""
    tree = copy.deepcopy(dict(given))
    for key, value in words:
        path = key.split(".")
        section: Any = form
        for depth, name in enumerate(path):
            if not (isinstance(section, type) and issubclass(section, SettingsBase)):
                break  # below here any key may stand
            if name not in section.model_fields:
                raise error(form.unknown(name, path[:depth], "key=value"))
            section = section.model_fields[name].annotation
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
            if not isinstance(node, dict):
                raise error(f"{key} cannot be set: {name} is {shown(node)} in this recipe")
        node[path[-1]] = value
    return tree


# --- numbers with units ---


def read_amount(text: str, what: str) -> float:
    """600M, 1.5G, 5e6, 12."""
    units = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
    return _in_units(text, units, f"{what} must be a number such as 600M, 1.5G or 2e6, not {shown(text)}")


def read_bytes(text: str, what: str) -> float:
    """20MB, 1.5GiB, 500kB."""
    units = {"": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
    return _in_units(text, units, f"{what} must be an amount of memory such as 20MB or 1.5GiB, not {shown(text)}")


def read_seconds(text: str, what: str) -> float:
    """20ms, 0.5s, 300us."""
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
    return _in_units(text, units, f"{what} must be a time such as 20ms or 0.5s, not {shown(text)}")


def _in_units(text: str, units: dict[str, float], complaint: str) -> float:
    found = re.fullmatch(r"\s*((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    value = math.nan if found is None or found[2] not in units else float(found[1]) * units[found[2]]
    if not 0 < value <= LARGEST:
        raise SuperformerError(complaint)
    return value
