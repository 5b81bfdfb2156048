"""A small space, and samplers of it."""

from __future__ import annotations

from dataclasses import replace

import superformer as sf
from superformer.recipes import Recipe
from superformer.train.sampling import Sampler

SMALL = sf.Space(
    "small",
    "vit",
    (sf.Stage({"heads": (1, 2), "attn": sf.times(8, of="heads"), "mlp": (16, 32, 48)}, depth=(1, 2)),),
    {"patch_size": 16, "width": (16, 24)},
    32,
)
"""2 widths x (6 + 36) = 84 architectures."""
SKIPPED = replace(SMALL, name="skipped", stages=(replace(SMALL.stages[0], depth=2, skippable=(0, 1), skip=0.5),))


def sampler(space: sf.Space, sharing: str = "ordinal", seed: int = 0, steps: int = 1000, **given: object) -> Sampler:
    return Sampler(space, recipe_with(sharing, seed, **given), num_classes=10, total_steps=steps)


def recipe_with(sharing: str = "ordinal", seed: int = 0, **given: object) -> Recipe:
    return Recipe.read(
        {"name": "small", "space": {}, "train": {"epochs": 1}, "sharing": sharing, "seed": seed, "sampling": given},
        "tests",
    )
