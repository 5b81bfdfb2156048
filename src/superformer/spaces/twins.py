"""ViTAS v2's Twins spaces (table 1)."""

from __future__ import annotations

from superformer.space import Space
from superformer.space.arch import Arch

SPACES: tuple[Space, ...] = ()
MODELS: dict[str, Arch] = {}
