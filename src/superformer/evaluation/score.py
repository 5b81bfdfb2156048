"""What is known of a network after some pictures, and when it is not worth any more of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Score(NamedTuple):
    """Of a network on some pictures: the share that it gets right, and its mean cross-entropy (not a number: unknown)."""

    accuracy: float
    loss: float


STOPPED = Score(math.nan, math.nan)
LAP = 32
"""Pictures of a race between two looks at who is left."""


@dataclass(frozen=True)
class Race:
    """The accuracy that each network must be able to reach; one that cannot is stopped.

    Without a ``margin`` the bound is exact: what it would be with all of the remaining pictures right. With one, a network is taken to get
    no more of the rest right than of the pictures so far, and so many standard errors besides.
    """

    needed: Sequence[float]
    margin: float | None = None

    def of(self, some: Sequence[int]) -> Race:
        return Race([self.needed[k] for k in some], self.margin)

    def lost(self, right: Tensor, seen: int, pictures: int) -> set[int]:
        """Those that cannot win any more, after ``seen`` of all pictures."""
        share = torch.ones_like(right)
        if self.margin is not None and seen:
            so_far = right / seen
            share = (so_far + self.margin * ((so_far * (1 - so_far) + 1 / seen) / seen).sqrt()).clamp(max=1)
        bound = (right + (pictures - seen) * share) / pictures
        return set(torch.nonzero(bound < torch.tensor(self.needed, dtype=bound.dtype)).flatten().tolist())
