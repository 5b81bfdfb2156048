"""Recipes: named settings of whole runs, one file each; at the papers' scale, and ``-laptop`` for minutes on two cores.

A recipe is a YAML file in the form of `superformer.recipes.settings.Recipe`. Any part is swapped by its key:
``resolve("s3-laptop", ["sharing=cyclic", "gradients.rule=project"])``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from superformer.errors import SuperformerError, nearest
from superformer.recipes.settings import Recipe
from superformer.settings import Part, word
from superformer.space import Space
from superformer.spaces import space as published_space


class RecipeError(SuperformerError):
    """A recipe that is not there, or not well formed."""


def names() -> list[str]:
    """The published recipes."""
    return sorted(f.name.removesuffix(".yaml") for f in resources.files(__name__).iterdir() if f.name.endswith(".yaml"))


def resolve(recipe: str | Path, changes: Iterable[str] = ()) -> Recipe:
    """A published recipe or a file, with ``key=value`` changes."""
    return changed(_read(recipe), changes, str(recipe))


def overlaid(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of settings with those of another in their places."""
    out = dict(tree)
    for key, value in changes.items():
        old = out.get(key)
        out[key] = overlaid(old, value) if isinstance(value, Mapping) and isinstance(old, Mapping) else value
    return out


def changed(tree: dict[str, Any], changes: Iterable[str], where: str) -> Recipe:
    """The recipe of a tree of settings, with ``key=value`` changes."""
    for change in changes:
        _change(tree, change)
    return check(tree, where)


def _read(recipe: str | Path) -> dict[str, Any]:
    name = str(recipe)
    if name in names():
        return parse((resources.files(__name__) / f"{name}.yaml").read_text(), name)
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        try:
            return parse(path.read_text(), name)
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"the recipe {name} cannot be read: {error}") from error
    raise RecipeError(f"unknown recipe {name!r}, and no file of that name: {nearest(name, names())}")


def parse(text: str, where: str) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"the recipe {where} is not well-formed YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise RecipeError(f"the recipe {where} must be a tree of settings, not {tree!r}")
    return tree


def check(tree: Mapping[str, Any], where: str) -> Recipe:
    """The recipe of a tree of settings."""
    return Recipe.read(tree, where, RecipeError)


def _change(tree: dict[str, Any], change: str) -> None:
    key, value = word(change, RecipeError)
    *parents, last = key.split(".")
    part: Any = Recipe
    for depth, name in enumerate([*parents, last]):
        free = not (isinstance(part, type) and issubclass(part, Part))
        if not free and name not in part.model_fields:
            raise RecipeError(Recipe.unknown(name, parents[:depth], "key=value"))
        part = None if free else part.model_fields[name].annotation
    node = tree
    for name in parents:
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            raise RecipeError(f"{key} cannot be set: {name} is {node!r} in this recipe")
    node[last] = value


def dump(recipe: Recipe) -> str:
    """The complete recipe as YAML text."""
    text: str = yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
    return text


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between two recipes, a line for each key; of different methods only that they are."""
    out = []
    other = old.get("method") != new.get("method")
    for key in ["method"] if other else {**old, **new}:
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict) and key not in ("space", "narrow"):
            out += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            out.append(f"{prefix}{key}: {_short(a)} before, {_short(b)} now")
    return out


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def space_of(recipe: Recipe) -> Space:
    """The search space of a recipe."""
    given = recipe.space
    if isinstance(given, dict):
        space = Space.from_json(json.dumps({"name": recipe.name, **given}))
    elif given.endswith(".json"):
        try:
            space = Space.from_json(Path(given).read_text())
        except OSError as error:
            raise RecipeError(f"the space {given} cannot be read: {error}") from error
    else:
        space = published_space(given)
    return space.narrow(**recipe.narrow) if recipe.narrow else space


__all__ = [
    "Recipe", "RecipeError", "changed", "check", "differences", "dump", "names", "overlaid", "parse", "resolve", "space_of",
]  # fmt: skip
