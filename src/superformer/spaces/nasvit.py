"""NASViT."""

from __future__ import annotations

from superformer.space import Space
from superformer.space.arch import Arch

SPACES: tuple[Space, ...] = ()
MODELS: dict[str, Arch] = {}
