"""S3: the initial space of section 4.1 and the released networks."""

from __future__ import annotations

from superformer.space import Space
from superformer.space.arch import Arch

SPACES: tuple[Space, ...] = ()
MODELS: dict[str, Arch] = {}
