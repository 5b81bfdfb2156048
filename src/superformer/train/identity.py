"""The search for the probability of identities (ViTAS v1, section 4.3, *constrained sampling for budget alignment*).

Where every position of a stage may be an identity, the average cost of what is sampled depends on how often it is. The paper sets the
probability ``p`` such that ``B = E[B(alpha)]`` for a budget ``B``: the supernet is then trained at about the size that is searched for. As
released: start at 0.5; while the mean of 1000 samples lies above the window add 0.01, while it lies below subtract 0.01.

The released counter takes the classifier once for each patch and leaves the class token out; here the samples' true MACs are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from superformer.cost.population import cost
from superformer.errors import InfeasibleError, SuperformerError
from superformer.space import Space

SAMPLES, START, STEPS = 1000, 50, 100
"""Samples for each mean; the first probability and all of them, in hundredths."""


def search(mean: Callable[[float], float], low: float, high: float) -> float:
    """The probability at which ``mean``, which falls as it grows, lies between ``low`` and ``high``.

    The released loop runs for ever when a step of 0.01 jumps over the window; this one says so.
    """
    at, seen = START, dict[int, float]()
    while True:
        value = seen[at] = mean(at / STEPS)
        if low <= value <= high:
            return at / STEPS
        here, at = at, at + (1 if value > high else -1)
        wanted = (
            f"no probability of identities gives expected MACs from {low:,.0f} to {high:,.0f}: at {here / STEPS:g} they are {value:,.0f}"
        )
        if at in seen:
            raise InfeasibleError(f"{wanted}, at {at / STEPS:g} {seen[at]:,.0f}; widen the window")
        if not 0 < at < STEPS:
            raise InfeasibleError(f"{wanted}, and there is nothing beyond; {'raise' if value > high else 'lower'} the window")


def with_identities(space: Space, probability: float) -> Space:
    """The space whose skippable positions are identities with this probability."""
    return replace(space, stages=tuple(replace(s, depth=s.positions, skip=probability) if s.free else s for s in space.stages))


def aligned(
    space: Space, limits: tuple[float | None, float | None], seed: list[int], num_classes: int = 1000, img_size: int | None = None
) -> Space:
    """The space with the probability of identities that brings the expected MACs within limits.

    Every probability is tried with the same random numbers, drawn from ``seed``.
    """
    if not any(s.free for s in space.stages):
        raise SuperformerError(
            f"sampling: identity needs free identities, and {space.name} has none (its stages have lists of depths); "
            "give the limits as macs instead, and every random network is drawn within them"
        )
    low, high = (-np.inf if limits[0] is None else limits[0]), (np.inf if limits[1] is None else limits[1])
    if low > high:
        raise InfeasibleError(f"identity={limits!r} leaves nothing: the lower end must not be above the upper end")

    def mean(probability: float) -> float:
        genes = with_identities(space, probability).sample_genes(SAMPLES, np.random.default_rng(seed))
        return float(cost(space, genes, num_classes, img_size).macs.mean())

    return with_identities(space, search(mean, float(low), float(high)))
