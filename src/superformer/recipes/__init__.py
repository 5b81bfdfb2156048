"""Recipes: named settings of whole runs, one file each; at the papers' scale, and ``-laptop`` for minutes on two cores.

A recipe is a YAML file in the form of `superformer.recipes.settings.Recipe`. Any part is swapped by its key:
``resolve("s3-laptop", ["sharing=cyclic", "gradients.rule=project"])``."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import yaml

from superformer.errors import SuperformerError, nearest, shown
from superformer.recipes.settings import Recipe as Recipe
from superformer.recipes.settings import Weights as Weights
from superformer.settings import LARGEST_PICTURE, SettingsBase, check_tree, load_yaml, read_key_value
from superformer.space import Space, point
from superformer.space.arch import Arch
from superformer.spaces import space as published_space

WEIGHTS: tuple[Weights, ...] = get_args(Weights)


class RecipeError(SuperformerError):
    """A recipe that is not there, or not well formed."""


def names() -> list[str]:
    """The published recipes."""
    return sorted(f.name.removesuffix(".yaml") for f in resources.files(__name__).iterdir() if f.name.endswith(".yaml"))


def resolve(recipe: str | Path, changes: Iterable[str] = ()) -> Recipe:
    """A published recipe or a file, with ``key=value`` changes."""
    name, path = str(recipe), Path(recipe)
    if name in names():
        text = (resources.files(__name__) / f"{name}.yaml").read_text()
    elif path.suffix in (".yaml", ".yml") or (len(name) < 4096 and os.path.isfile(name)):
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"the recipe {name} cannot be read: {error}") from error
    else:
        raise RecipeError(f"unknown recipe {shown(name)}, and no file of that name: {nearest(name, names())}")
    return from_tree(parse_yaml(text, name), name, changes)


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """The tree of settings of a YAML text."""
    tree = load_yaml(text, f"the recipe {where}", RecipeError)
    if not isinstance(tree, dict):
        raise RecipeError(f"the recipe {where} must be a tree of settings, not {shown(tree)}")
    return tree


def from_tree(given: Mapping[str, Any], where: str, changes: Iterable[str] = ()) -> Recipe:
    """The recipe of a tree of settings, with ``key=value`` changes."""
    check_tree(given, where, RecipeError)
    tree = copy.deepcopy(dict(given))
    for change in changes:
        key, value = read_key_value(change, RecipeError)
        path = key.split(".")
        section: Any = Recipe
        for depth, name in enumerate(path):
            if not (isinstance(section, type) and issubclass(section, SettingsBase)):
                break  # below here any key may stand
            if name not in section.model_fields:
                raise RecipeError(Recipe.unknown(name, path[:depth], "key=value"))
            section = section.model_fields[name].annotation
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
            if not isinstance(node, dict):
                raise RecipeError(f"{key} cannot be set: {name} is {shown(node)} in this recipe")
        node[path[-1]] = value
    recipe = Recipe.read(tree, where, RecipeError)
    for name, part in recipe.retrain:
        if isinstance(part, dict):  # a mistake there is told now, not when all is trained
            Recipe.read(merged(tree, part), f"{where}: retrain.{name}", RecipeError)
    return recipe


def dump(recipe: Recipe) -> str:
    """The complete recipe as YAML text."""
    return str(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120))


def merged(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of settings with those of another in their places."""
    out = dict(tree)
    for key, value in changes.items():
        old = out.get(key)
        out[key] = merged(old, value) if isinstance(value, Mapping) and isinstance(old, Mapping) else value
    return out


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between two recipes, a line for each key; of different methods only that they are."""
    out = []
    for key in ["method"] if old.get("method") != new.get("method") else {**old, **new}:
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict) and key not in ("space", "narrow"):
            out += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            before, now = (text if len(text) <= 60 else text[:57] + "..." for text in (json.dumps(a), json.dumps(b)))
            out.append(f"{prefix}{key}: {before} before, {now} now")
    return out


def space_of(recipe: Recipe) -> Space:
    """The search space of a recipe."""
    given = recipe.space
    if isinstance(given, dict):
        space = Space.from_json(json.dumps({"name": recipe.name, **given}))
    elif given.endswith(".json"):
        try:
            space = Space.from_json(Path(given).read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"the space {given} cannot be read: {error}") from error
    else:
        space = published_space(given)
    return space.narrow(**{str(name): value for name, value in recipe.narrow.items()}) if recipe.narrow else space


def single_network(recipe: Mapping[str, Any], weights: Weights, arch: Arch | None = None) -> dict[str, Any]:
    """A recipe, as a tree, for one network at its own input size: ``arch``, or one that is not known yet. Nothing is
    left to draw: no sampling, no smaller networks to teach, no gradients to join."""
    space = json.loads(point(arch).to_json()) if arch is not None else recipe["space"]
    out = {**recipe, "name": f"{recipe['name']}-{weights}", "space": space, "narrow": {}, "img_size": None, "start": {}}
    out |= {"sharing": "ordinal", "sampling": {"rule": "single"}, "train": {**recipe["train"], "channel_sort": 0}}
    out["gradients"] = {"rule": "sum", "clip": recipe["gradients"]["clip"]}
    return out | {"loss": {**recipe["loss"], "distill": "none"}}


def read_changes(recipe: Recipe, changes: Sequence[str], where: str) -> tuple[Weights, int | None, list[str]]:
    """How the network begins, its input size, and the words that change the recipe. A mistake in them is an error."""
    given, rest = dict[str, Any](weights=recipe.retrain.weights, img_size=None), []
    for text in changes:
        key, value = read_key_value(text)
        if key == "weights" and value not in WEIGHTS:
            raise SuperformerError(f"weights must be finetuned or scratch: {nearest(str(value), WEIGHTS)}")
        if key == "img_size" and (type(value) is not int or not 1 <= value <= LARGEST_PICTURE):
            pixels = f"a number of pixels from 1 to {LARGEST_PICTURE:,}"
            raise SuperformerError(f"img_size must be {pixels}, not {shown(value)}")
        if key in given:
            given[key] = value
        else:
            rest.append(text)
    from_tree(single_network(recipe.model_dump(mode="json"), given["weights"]), where, rest)
    return given["weights"], given["img_size"], rest


def retrain_recipe(
    recipe: Recipe, arch: Arch, weights: Weights, changes: Sequence[str], img_size: int, where: str
) -> Recipe:
    """A supernet's recipe for one of its networks, with its changes for the way the network begins, and those for
    pictures larger than the supernet's, of ``img_size``."""
    tree = merged(recipe.model_dump(mode="json"), getattr(recipe.retrain, weights))
    if weights == "finetuned" and arch.resolution > img_size:
        tree = merged(tree, recipe.retrain.larger)
    return from_tree(single_network(tree, weights, arch), where, changes)
