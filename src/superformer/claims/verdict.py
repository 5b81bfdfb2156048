"""What runs with several seeds say of a claim, by one rule.

A claim orders its arms, the best first. Of each two neighbours the differences of runs with the same seed (the same
pictures, the same draws) are taken, better minus worse as the claim has it, and the 95 % interval of their mean by
Student's t. The claim *holds* if every interval lies above zero, is *reversed* if one lies below, and is otherwise
*not seen at this scale*. One seed tells nothing: there is no interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from scipy.special import stdtrit

HOLDS, REVERSED, UNSEEN, OPEN = "holds", "reversed", "not seen at this scale", "not run yet"
LEVEL = 0.95
Values = Mapping[str, Mapping[int, float]]
"""Of each arm, by seed."""


@dataclass(frozen=True)
class Difference:
    """Of two arms, ``better`` minus ``worse`` as the claim has it (losses the other way round): the mean over seeds and
    its interval."""

    better: str
    worse: str
    seeds: int
    mean: float
    low: float
    high: float


def interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Of the mean; without end where one value is all there is."""
    if len(values) < 2:
        return -math.inf, math.inf
    mean, spread = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, (1 + level) / 2)) * spread
    return mean - half, mean + half


def differences(values: Values, order: Sequence[str], low_is_better: bool = False) -> list[Difference]:
    """Of neighbours in the order of the claim, the best first; over seeds that both have."""
    out = []
    for better, worse in pairwise(order):
        one, two = values.get(better, {}), values.get(worse, {})
        pairs = [one[s] - two[s] for s in sorted(one.keys() & two.keys())]
        found = [-p if low_is_better else p for p in pairs]
        if found:
            out.append(Difference(better, worse, len(found), statistics.fmean(found), *interval(found)))
    return out


def verdict(found: Sequence[Difference], pairs: int) -> str:
    """By the rule above; ``pairs``: of neighbours that the claim has."""
    if len(found) < pairs or any(d.seeds < 2 for d in found):
        return OPEN
    if any(d.high < 0 for d in found):
        return REVERSED
    return HOLDS if all(d.low > 0 for d in found) else UNSEEN
