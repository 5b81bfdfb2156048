"""Random numbers without state: every draw comes from a generator made from the run's seed, what it is for, and where in the run it is.

So a run can go on at any step, and neither worker processes nor ranks change what is drawn.
"""

from __future__ import annotations

import zlib

import numpy as np


def generator(seed: int, purpose: str, *where: int) -> np.random.Generator:
    """The generator of one purpose at one place, such as ``generator(seed, "order", epoch)``."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, where)))


def number(seed: int, purpose: str, *where: int) -> int:
    """A seed of 32 bits for generators that are not numpy's."""
    return int(_sequence(seed, purpose, where).generate_state(1)[0])


def _sequence(seed: int, purpose: str, where: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed % 2**64, zlib.crc32(purpose.encode()), *where])
