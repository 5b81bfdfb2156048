"""superformer: find the vision transformer that fits your pictures and your budget."""

from __future__ import annotations

from superformer import official, sharing
from superformer.build import model, register_model, supernet
from superformer.cost import cost
from superformer.draw import draw
from superformer.elastic.conv import recalibrate
from superformer.errors import ArchError, InfeasibleError, SpaceError, SuperformerError
from superformer.families import register as register_family
from superformer.space import Space, Stage, ratio, times
from superformer.space.arch import Arch
from superformer.spaces import models, space, spaces

__version__ = "0.1.0"

__all__ = [
    "Arch", "ArchError", "InfeasibleError", "Space", "SpaceError", "Stage", "SuperformerError", "cost", "draw", "model", "models",
    "official", "ratio", "recalibrate", "register_family", "register_model", "sharing", "space", "spaces", "supernet", "times",
]  # fmt: skip
