"""What runs with several seeds say of a claim, by one rule.

A claim compares pairs of arms. Of each pair the differences of runs with the same seed (the same pictures, the same
draws) are taken, better minus worse as the claim has it, and the 95 % interval of their mean by Student's t. The claim
*holds* if every interval lies above zero, is *reversed* if one lies below, and is otherwise *not seen at this scale*. A
claim that one arm is as good as another has a margin: zero is then minus the margin. Fewer than three seeds give no
verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

HOLDS, REVERSED, UNSEEN, OPEN = "holds", "reversed", "not seen at this scale", "not run yet"
LEVEL, LEAST = 0.95, 3
"""Of intervals; seeds of a verdict."""
NUMBERS = ("no seed", "one seed", "two seeds")
Values = Mapping[str, Mapping[int, float]]
"""Of each arm, by seed."""


@dataclass(frozen=True)
class Difference:
    """Of two arms, ``better`` minus ``worse`` as the claim has it (losses the other way round): seed by seed, the mean,
    its interval, and what they say (`said`)."""

    better: str
    worse: str
    seeds: int
    mean: float
    low: float
    high: float
    each: tuple[float, ...] = ()

    def said(self, margin: float = 0.0) -> str:
        if self.seeds < LEAST:
            return _open(self.seeds)
        if self.high < -margin:
            return REVERSED
        return HOLDS if self.low > -margin else UNSEEN


def _open(seeds: int) -> str:
    return f"{NUMBERS[seeds]}: no verdict yet"


def interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Of the mean; without end where one value is all there is."""
    if len(values) < 2:
        return -math.inf, math.inf
    mean, spread = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, (1 + level) / 2)) * spread
    return mean - half, mean + half


def differences(values: Values, pairs: Sequence[tuple[str, str]], low_is_better: bool = False) -> list[Difference]:
    """Of pairs of arms, the better first as the claim has it; over seeds that both have."""
    out = []
    for better, worse in pairs:
        one, two = values.get(better, {}), values.get(worse, {})
        each = [one[s] - two[s] for s in sorted(one.keys() & two.keys())]
        found = [-p if low_is_better else p for p in each]
        if found:
            mean = statistics.fmean(found)
            out.append(Difference(better, worse, len(found), mean, *interval(found), tuple(found)))
    return out


def verdict(found: Sequence[Difference], pairs: int, margin: float = 0.0) -> str:
    """By the rule above; ``pairs``: that the claim has."""
    if not found:
        return OPEN
    fewest = min(d.seeds for d in found) if len(found) == pairs else 0
    if fewest < LEAST:
        return _open(fewest) if fewest else "not all arms run yet"
    said = [d.said(margin) for d in found]
    return REVERSED if REVERSED in said else HOLDS if said == [HOLDS] * pairs else UNSEEN
