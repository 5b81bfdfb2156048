"""superformer: find the vision transformer that fits your pictures and your budget.

Names are imported when they are first used, so that the command line answers at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from superformer.errors import ArchError, InfeasibleError, SpaceError, SuperformerError
from superformer.lazy import lazy
from superformer.registry import register_model, register_with_timm

if TYPE_CHECKING:
    from superformer import official, sharing
    from superformer.build import model, supernet
    from superformer.cost import cost
    from superformer.draw import draw
    from superformer.elastic.batchnorm import recalibrate
    from superformer.families import register as register_family
    from superformer.recipes import resolve as recipe
    from superformer.run import Run
    from superformer.space import Space, Stage, ratio, times
    from superformer.space.arch import Arch
    from superformer.spaces import models, space, spaces
    from superformer.train.loop import train

__version__ = "0.1.0"

__all__ = [
    "Arch", "ArchError", "InfeasibleError", "Run", "Space", "SpaceError", "Stage", "SuperformerError", "cost", "draw", "model", "models",
    "official", "ratio", "recalibrate", "recipe", "register_family", "register_model", "sharing", "space", "spaces", "supernet", "times",
    "train",
]  # fmt: skip

lazy(__name__, {
    "Arch": "space.arch:Arch", "Space": "space:Space", "Stage": "space:Stage", "cost": "cost:cost", "draw": "draw:draw",
    "model": "build:model", "models": "spaces:models", "official": "official", "ratio": "space:ratio",
    "recalibrate": "elastic.batchnorm:recalibrate", "register_family": "families:register", "sharing": "sharing", "space": "spaces:space",
    "spaces": "spaces:spaces", "supernet": "build:supernet", "times": "space:times", "Run": "run:Run",
    "recipe": "recipes:resolve", "train": "train.loop:train",
})  # fmt: skip
register_with_timm()
