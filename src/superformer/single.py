"""The recipe of one sub-network by itself: the run's, where nothing is left to draw (no sampling, no smaller networks to teach, no
gradients to join), and for another input size if one is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from superformer.errors import SuperformerError, nearest
from superformer.part import word
from superformer.recipes import Recipe, changed, overlaid
from superformer.run import Run
from superformer.space import point
from superformer.space.arch import Arch, StageArch, Values

Weights = Literal["finetuned", "scratch"]
WEIGHTS: tuple[Weights, ...] = get_args(Weights)
"""How a network begins: with the weights it inherits from the supernet, or with new ones."""


def single(recipe: Mapping[str, Any], weights: Weights, space: object) -> dict[str, Any]:
    """A recipe, as a tree, for one network at its own input size: ``space`` is that of its point (`only`)."""
    return {
        **recipe,
        "name": f"{recipe['name']}-{weights}",
        "space": space,
        "narrow": {},
        "img_size": None,
        "sharing": "ordinal",
        "sampling": {"rule": "single"},
        "gradients": {"rule": "sum", "clip": recipe["gradients"]["clip"]},
        "loss": {**recipe["loss"], "distill": "none"},
        "train": {**recipe["train"], "channel_sort": 0},
        "start": {},
    }


def only(arch: Arch) -> object:
    """The space of one architecture, as recipes have it."""
    return json.loads(point(arch).to_json())


@dataclass(frozen=True)
class Retraining:
    """What is to be retrained: a sub-network, the same for its new input size, how it begins, and its recipe."""

    arch: Arch
    larger: Arch
    weights: Weights
    recipe: Recipe


def retraining(run: Run, which: str, changes: Sequence[str]) -> Retraining:
    """What the words of a retraining ask for; a mistake in them is an error."""
    run.trained()
    arch = run.arch(which)
    weights, size, rest = words(run, changes)
    larger = at_size(arch, size)
    return Retraining(arch, larger, weights, _recipe(run, larger, weights, rest))


def at_size(arch: Arch, size: int | None) -> Arch:
    """An architecture for another input size. Windows grow with the pictures, as S3's for 384 pixels did (7 became 12, 14 became 24)."""
    if size is None or size == arch.resolution:
        return arch

    def scaled(block: Values) -> Values:
        return Values({**block, "window": max(1, round(int(block["window"]) * size / arch.resolution))}) if "window" in block else block

    stages = arch.stages if arch.family != "swin" else tuple(StageArch(tuple(map(scaled, s.blocks)), s.choices, s.at) for s in arch.stages)
    return replace(arch, resolution=size, stages=stages)


def words(run: Run, changes: Sequence[str]) -> tuple[Weights, int | None, list[str]]:
    """The way, the input size, and the words that change the recipe. A mistake in them is an error."""
    weights, size, rest = run.recipe().retrain.weights, None, []
    for text in changes:
        key, value = word(text)
        if key == "weights":
            if value not in WEIGHTS:
                raise SuperformerError(f"weights must be finetuned or scratch: {nearest(str(value), WEIGHTS)}")
            weights = value
        elif key == "img_size":
            if not isinstance(value, int) or value < 1:
                raise SuperformerError(f"img_size must be a number of pixels, not {value!r}")
            size = value
        else:
            rest.append(text)
    tree = run.recipe().model_dump(mode="json")
    changed(single(tree, weights, tree["space"]), rest, f"{run.folder} retrained")
    return weights, size, rest


def _recipe(run: Run, arch: Arch, weights: Weights, changes: Sequence[str]) -> Recipe:
    """The recipe of the supernet, for one network: nothing to sample, no smaller one to teach, no gradients to join."""
    recipe = run.recipe()
    tree = recipe.model_dump(mode="json")
    ways = recipe.retrain
    larger = weights == "finetuned" and arch.resolution > run.facts()["img_size"]
    for part in (ways.finetuned if weights == "finetuned" else ways.scratch, ways.larger if larger else {}):
        tree = overlaid(tree, part)
    return changed(single(tree, weights, only(arch)), changes, f"{run.folder} retrained")
