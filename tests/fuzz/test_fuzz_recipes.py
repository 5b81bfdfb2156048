"""Recipes from anywhere, as trees and as texts: refused with a line to read, or complete."""

from __future__ import annotations

import random
from importlib import resources

import yaml
from helpers.fuzzing import garbled, mutated, tried

from superformer import recipes

TEXTS = [(resources.files(recipes) / f"{name}.yaml").read_text() for name in recipes.names()]
TREES = [yaml.safe_load(text) for text in TEXTS]
WHOLE = [recipes.resolve(name).model_dump(mode="json") for name in recipes.names()]


def use(recipe: recipes.Recipe) -> str:
    assert recipes.from_tree(recipes.parse_yaml(recipes.dump(recipe), "dumped"), "dumped") == recipe
    recipes.space_of(recipe)
    return "used"


def tree_case(seed: int) -> str:
    tree = mutated(random.Random(seed).choice((TREES, WHOLE))[seed % len(TREES)], seed)
    return use(recipes.from_tree(tree, "a recipe")) if isinstance(tree, dict) else "no tree"


def text_case(seed: int) -> str:
    return use(recipes.from_tree(recipes.parse_yaml(garbled(TEXTS[seed % len(TEXTS)], seed), "a text"), "a text"))


def test_mutated_trees_are_refused_or_complete():
    counts, bad = tried(tree_case, 200)
    assert bad == []
    assert counts["used"] > 0


def test_garbled_texts_are_refused_or_complete():
    counts, bad = tried(text_case, 100)
    assert bad == []
    assert counts["used"] > 0
