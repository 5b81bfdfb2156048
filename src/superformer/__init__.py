"""superformer: find the vision transformer that fits your pictures and your budget."""

from __future__ import annotations

import sys
from pathlib import Path

from superformer.errors import VERSION

__version__ = VERSION

COMMAND = Path(sys.argv[0]).stem in ("superformer", "-m") if sys.argv else False
"""Whether this is the command line (or ``python -m superformer``): a command imports what it needs, when it needs it,
and so answers at once where it needs neither torch nor timm."""

if not COMMAND:
    from superformer import kernels, sharing
    from superformer.cost import cost
    from superformer.cost.scaling import scaled
    from superformer.draw import draw
    from superformer.elastic.conv import recalibrate
    from superformer.errors import ArchError, InfeasibleError, SpaceError, SuperformerError
    from superformer.fitting import Aim, fit, space_around
    from superformer.interop import official
    from superformer.interop.timm import register_model
    from superformer.interop.timm_weights import from_timm, to_timm
    from superformer.recipes import resolve as recipe
    from superformer.runs import Run
    from superformer.space import Arch, Space, Stage, divided, ratio, times
    from superformer.space.schema import register as register_family
    from superformer.spaces import model, models, space, spaces, supernet
    from superformer.train.loop import train
    from superformer.train.retrain import retrain
    from superformer.transfer import transfer

__all__ = [
    "Aim", "Arch", "ArchError", "InfeasibleError", "Run", "Space", "SpaceError", "Stage", "SuperformerError", "cost",
    "divided", "draw", "fit", "from_timm", "kernels", "model", "models", "official", "ratio", "recalibrate", "recipe",
    "register_family", "register_model", "retrain", "scaled", "sharing", "space", "space_around", "spaces", "supernet",
    "times", "to_timm", "train", "transfer",
]  # fmt: skip
