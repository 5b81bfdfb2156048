"""Recipes: named settings of whole runs, one file each; at the papers' scale, and ``-laptop`` for minutes on two cores.

A recipe is a YAML file in the form of `superformer.recipes.settings.Recipe`. Any part is swapped by its key:
``resolve("s3-laptop", ["sharing=cyclic", "gradients.rule=project"])``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import yaml

from superformer import files
from superformer.errors import SuperformerError, nearest, shown
from superformer.recipes import places
from superformer.recipes.settings import Recipe as Recipe
from superformer.recipes.settings import Weights as Weights
from superformer.settings import changed, check_tree, load_yaml, read_key_value
from superformer.space import Space, point
from superformer.space.arch import LARGEST_PICTURE, Arch
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
    tree = parse_yaml(text, name)
    if path.name == "recipe.yaml" and (facts := path.with_name("run.json")).is_file():  # that of a run
        how = f"put back a copy of it, or copy {path} to another folder"
        tree = tree if "format" in files.read_object(facts, how) else of_earlier_version(tree)
        tree = places.found(tree, path.parent)
    return from_tree(tree, name, changes)


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """The tree of settings of a YAML text."""
    tree = load_yaml(text, f"the recipe {where}", RecipeError)
    if not isinstance(tree, dict):
        raise RecipeError(f"the recipe {where} must be a tree of settings, not {shown(tree)}")
    return tree


def of_earlier_version(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that was begun before runs had a format, in today's words: with what held then for settings
    that came later; cyclic sharing had other channels."""
    was = {"optimizer": {"own_no_decay": False}, "loss": {"teacher_size": "student"}, "data": {"calibration": 0}}
    out = merged(was, tree)
    if out["loss"].get("teacher_weight") == 1:  # was the default, where none says the same now
        out["loss"] = {**out["loss"], "teacher_weight": None}
    return {**out, "sharing": "cyclic-groups"} if out.get("sharing") == "cyclic" else out


def from_tree(given: Mapping[str, Any], where: str, changes: Iterable[str] = ()) -> Recipe:
    """The recipe of a tree of settings, with ``key=value`` changes. What the chosen space brings (``sizes``) comes
    before the changes, and is part of the recipe from then on."""
    check_tree(given, where, RecipeError)
    words = [read_key_value(change, RecipeError) for change in changes]
    tree = _changed(given, words)
    sizes = tree.get("sizes") or {}
    if isinstance(sizes, Mapping) and sizes:
        for name, own in sizes.items():
            if name not in (known := files.catalogue("spaces")):
                raise RecipeError(f"{where}: sizes: unknown space {name!r}: {nearest(str(name), known)}")
            if not isinstance(own, Mapping):
                raise RecipeError(f"{where}: sizes.{name} must be a tree of settings, not {shown(own)}")
            sized = merged(given, own) | {"space": name, "sizes": {}}
            Recipe.read(sized, f"{where}: sizes.{name}", RecipeError)  # a mistake is told whichever is chosen
        if isinstance(tree.get("space"), str) and tree["space"] in sizes:
            tree = _changed(merged(given, sizes[tree["space"]]), words)
        tree["sizes"] = {}
    recipe = Recipe.read(tree, where, RecipeError)
    for name, part in recipe.retrain:
        if isinstance(part, dict):  # a mistake there is told now, not when all is trained
            Recipe.read(merged(tree, part), f"{where}: retrain.{name}", RecipeError)
    return recipe


def _changed(given: Mapping[str, Any], words: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A tree of settings with these keys changed; also parts of a space that it has by name."""
    tree = changed(given, (), Recipe, RecipeError)
    for key, value in words:
        if key.startswith("space.") and isinstance(named := tree.get("space"), str):
            tree["space"] = json.loads(_named_space(named).to_json())
        tree = changed(tree, [(key, value)], Recipe, RecipeError)
    return tree


def dump(recipe: Recipe, folder: Path | None = None) -> str:
    """The complete recipe as YAML text, as it lies in the folder of a run."""
    tree = recipe.model_dump(mode="json")
    tree = tree if folder is None else places.kept(tree, folder)
    return str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120))


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
    else:
        space = _named_space(given)
    if recipe.identity is not None:
        space = space.with_identities(recipe.identity)
    if recipe.private is not None:
        space = space.with_private(*recipe.private)
    return space.narrow(**{str(name): value for name, value in recipe.narrow.items()}) if recipe.narrow else space


def _named_space(name: str) -> Space:
    """A published space, or one in a file."""
    if not name.endswith(".json"):
        return published_space(name)
    try:
        return Space.from_json(Path(name).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"the space {name} cannot be read: {error}") from error


def single_network(recipe: Mapping[str, Any], weights: Weights, arch: Arch | None = None) -> dict[str, Any]:
    """A recipe, as a tree, for one network at its own input size: ``arch``, or one that is not known yet. Nothing is
    left to draw: no sampling, no smaller networks to teach, no gradients to join."""
    space = json.loads(point(arch).to_json()) if arch is not None else recipe["space"]
    out = {**recipe, "name": f"{recipe['name']}-{weights}", "space": space, "narrow": {}, "img_size": None, "start": {}}
    out |= {"private": None, "identity": None}
    out |= {"sharing": "ordinal", "sampling": {"rule": "single"}, "train": {**recipe["train"], "channel_sort": 0}}
    out["gradients"] = {"rule": "sum", "clip": recipe["gradients"]["clip"]}
    return out | {"loss": {**recipe["loss"], "distill": "none"}}


@dataclass(frozen=True)
class Retraining:
    """What the words of a retraining say. ``changes``: of the recipe; ``start``: weights that the user names."""

    weights: Weights
    img_size: int | None
    seed: int
    changes: tuple[str, ...]
    start: Mapping[str, Any]

    def first(self) -> tuple[str, ...]:
        """The changes that also hold for the training before that for larger pictures: those of the pictures."""
        return tuple(text for text in self.changes if text.partition(".")[0].strip() == "data")


def read_changes(recipe: Recipe, changes: Sequence[str], where: str) -> Retraining:
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
    read = from_tree(single_network(recipe.model_dump(mode="json"), given["weights"]), where, rest)
    start = {k: v for k, v in read.start.model_dump(exclude_defaults=True).items() if k in ("network", "run", "timm")}
    return Retraining(given["weights"], given["img_size"], read.seed, tuple(rest), start)


def retrain_recipe(
    recipe: Recipe, arch: Arch, asked: Retraining, changes: Sequence[str], macs: float, where: str, larger: bool = False
) -> Recipe:
    """A supernet's recipe for one of its networks: on all of the training pictures, as the papers retrain, with its
    changes for the way the network begins, for networks of so many MACs, and for tuning it with ``larger`` pictures."""
    own = recipe.retrain
    parts = [{"data": {"search": 0}}, getattr(own, asked.weights)]
    parts += [part.change for part in own.by_macs if part.meant(macs)]
    tree = recipe.model_dump(mode="json")
    for part in [*parts, own.larger] if larger else parts:
        tree = merged(tree, part)
    return from_tree(single_network(tree, asked.weights, arch), where, changes)
