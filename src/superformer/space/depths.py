"""How deep a stage is: the probability of each depth, and which positions run at a drawn one."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from superformer.space.genes import StageLayout
from superformer.space.stage import Stage

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def depth_weights(stage: Stage, over: str) -> Floats:
    """The probability of each depth: every choice uniform, or as many as there are architectures of that depth."""
    if over == "architectures":
        total = sum(map(stage.sequences, stage.depths))
        weights = [stage.sequences(d) / total for d in stage.depths]
    elif stage.free:
        free = len(stage.free)
        fixed = stage.positions - free
        weights = [math.comb(free, d - fixed) * (1 - stage.skip) ** (d - fixed) * stage.skip ** (stage.positions - d) for d in stage.depths]
    else:
        weights = [1.0] * len(stage.depths)
    return np.asarray(weights) / math.fsum(weights)


def place(genes: Ints, rows: Ints, stage: Stage, where: StageLayout, depth: Ints, over: str, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Write the depth of a stage; free positions are drawn uniformly (or canonical ones taken). Returns which positions run."""
    if where.depth is not None:
        genes[rows, where.depth] = np.searchsorted(np.asarray(stage.depths), depth)
    active = np.arange(stage.positions) < depth[:, None]
    if stage.free:
        free = np.asarray(stage.free)
        extra = depth - (stage.positions - len(free))
        keys = rng.random((len(depth), len(free))) if over == "choices" else np.broadcast_to(np.arange(len(free)), (len(depth), len(free)))
        on = keys.argsort(1).argsort(1) < extra[:, None]
        active = np.ones((len(depth), stage.positions), dtype=bool)
        active[:, free] = on
        genes[rows[:, None], np.asarray([where.on[p] for p in free])] = on
    return active
