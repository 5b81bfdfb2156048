"""The recipe of one sub-network by itself: the run's, where nothing is left to draw (no sampling, no smaller networks
to teach, no gradients to join), and for another input size if one is asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from superformer.errors import SuperformerError, nearest
from superformer.recipes import Recipe, from_tree, merged
from superformer.settings import read_key_value
from superformer.space import point
from superformer.space.arch import Arch

Weights = Literal["finetuned", "scratch"]
WEIGHTS: tuple[Weights, ...] = get_args(Weights)
"""How a network begins: with the weights it inherits from the supernet, or with new ones."""


def single_network(recipe: Mapping[str, Any], weights: Weights, arch: Arch | None = None) -> dict[str, Any]:
    """A recipe, as a tree, for one network at its own input size: ``arch``, or one that is not known yet."""
    return {
        **recipe,
        "name": f"{recipe['name']}-{weights}",
        "space": json.loads(point(arch).to_json()) if arch is not None else recipe["space"],
        "narrow": {},
        "img_size": None,
        "sharing": "ordinal",
        "sampling": {"rule": "single"},
        "gradients": {"rule": "sum", "clip": recipe["gradients"]["clip"]},
        "loss": {**recipe["loss"], "distill": "none"},
        "train": {**recipe["train"], "channel_sort": 0},
        "start": {},
    }


def read_changes(recipe: Recipe, changes: Sequence[str], where: str) -> tuple[Weights, int | None, list[str]]:
    """How the network begins, its input size, and the words that change the recipe. A mistake in them is an error."""
    weights, size, rest = recipe.retrain.weights, None, []
    for text in changes:
        key, value = read_key_value(text)
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
    from_tree(single_network(recipe.model_dump(mode="json"), weights), where, rest)
    return weights, size, rest


def retrain_recipe(
    recipe: Recipe, arch: Arch, weights: Weights, changes: Sequence[str], img_size: int, where: str
) -> Recipe:
    """A supernet's recipe for one of its networks, with its changes for the way the network begins, and those for
    pictures larger than the supernet's, of ``img_size``."""
    ways, tree = recipe.retrain, recipe.model_dump(mode="json")
    tree = merged(tree, ways.finetuned if weights == "finetuned" else ways.scratch)
    if weights == "finetuned" and arch.resolution > img_size:
        tree = merged(tree, ways.larger)
    return from_tree(single_network(tree, weights, arch), where, changes)
