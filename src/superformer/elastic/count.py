"""Costs of layers, as numbers or as whole arrays of numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Count = Any
"""A Python int, or an int64 array with an entry for each architecture of a population."""


class Cost(NamedTuple):
    """Multiply-accumulates for one picture, and parameters."""

    macs: Count
    params: Count

    def __add__(self, other: object) -> Cost:
        assert isinstance(other, tuple)
        return Cost(self.macs + other[0], self.params + other[1])

    def times(self, active: Count) -> Cost:
        """So many times the cost: where ``active`` is zero, nothing."""
        return Cost(self.macs * active, self.params * active)


NOTHING = Cost(0, 0)


def broadcast(cost: Cost, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both counts as arrays of ``n`` entries."""
    macs, params = (np.broadcast_to(np.asarray(c, dtype=np.int64), (n,)) for c in cost)
    return macs, params
