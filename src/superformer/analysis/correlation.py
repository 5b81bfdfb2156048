"""How well one ranking of architectures predicts another (ViTAS v2, figure 5 and appendix A.4, eqs. 14 to 16).

Two pairs of rankings:

* `against_macs`, the paper's figure 5: accuracy in the supernet against MACs, which "we assume ... positively correlated", for random paths
  in ranges of MACs of equal width, over all of them and range by range;
* `against_standalone`, what the supernet is for: the same accuracy against that of the network trained by itself.

Eq. 16 (Kendall) has no ties ("the ranks are distinct integers"); accuracies on few pictures have many, so this is tau-b, which is eq. 16
where there are none.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from scipy import stats

from superformer.analysis.standalone import Standalone, standalone
from superformer.analysis.subject import Subject
from superformer.errors import InfeasibleError, SuperformerError
from superformer.space.arch import Arch
from superformer.space.exact import Exact
from superformer.telling import each
from superformer.units import amount

Floats = NDArray[np.float64]
LEVEL = 0.95
DRAWS = 1000
"""Resamples of a confidence interval."""
AGAIN = 8
"""Architectures drawn for each that is wanted, so that enough of them differ."""

COEFFICIENTS: dict[str, Callable[[Floats, Floats], Any]] = {
    "pearson": stats.pearsonr,
    "spearman": stats.spearmanr,
    "kendall": stats.kendalltau,
}


def coefficients(first: ArrayLike, second: ArrayLike) -> dict[str, float | None]:
    """Pearson's and Spearman's (eq. 14, of values and of ranks) and Kendall's (eq. 16); None where one side never changes."""
    a, b = (np.asarray(side, dtype=np.float64) for side in (first, second))
    if a.shape != b.shape or a.ndim != 1:
        raise SuperformerError(f"a correlation is of two lists of the same length, not of {a.shape} and {b.shape}")
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return dict.fromkeys(COEFFICIENTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nearly constant input
        found = {name: float(function(a, b)[0]) for name, function in COEFFICIENTS.items()}
    return {name: value if np.isfinite(value) else None for name, value in found.items()}


def intervals(first: ArrayLike, second: ArrayLike, seed: int = 0, draws: int = DRAWS) -> dict[str, list[float] | None]:
    """Bootstrap confidence intervals: percentiles over resampled pairs. Resamples in which one side never changes say nothing."""
    a, b = (np.asarray(side, dtype=np.float64) for side in (first, second))
    if len(a) < 3:
        return dict.fromkeys(COEFFICIENTS)
    counts = np.random.default_rng([seed, 7]).multinomial(len(a), np.full(len(a), 1 / len(a)), size=draws)
    out: dict[str, list[float] | None] = {}
    for name, values in resampled(a, b, counts.astype(np.float64)).items():
        real = values[np.isfinite(values)]
        out[name] = np.percentile(real, (50 * (1 - LEVEL), 50 * (1 + LEVEL))).tolist() if len(real) else None
    return out


def resampled(a: Floats, b: Floats, counts: Floats) -> dict[str, Floats]:
    """The coefficients of many resamples at once; each row of ``counts`` says how many times each point is there. Ranks and pairs are
    sums over points, weighted by the counts, so that eqs. 14 and 16 of all resamples are a few products of matrices."""
    orders = [np.sign(side[:, None] - side) for side in (a, b)]
    ranks = [counts @ (1 + order.T) / 2 for order in orders]

    def mean(values: Floats) -> Floats:
        total: Floats = (counts * values).sum(1) / counts.sum(1)
        return total

    def product(x: Floats, y: Floats) -> Floats:
        return mean((x - mean(x)[:, None]) * (y - mean(y)[:, None]))

    def pairs(matrix: Floats) -> Floats:
        total: Floats = ((counts @ matrix) * counts).sum(1)
        return total

    with np.errstate(invalid="ignore", divide="ignore"):
        found = [product(x, y) / np.sqrt(product(x, x) * product(y, y)) for x, y in ((a, b), ranks)]
        tau = pairs(orders[0] * orders[1]) / np.sqrt(pairs(orders[0] ** 2) * pairs(orders[1] ** 2))
    return dict(zip(COEFFICIENTS, (*found, tau), strict=True))


def correlate(name: str, points: Sequence[tuple[float, float]], groups: Sequence[str] = (), seed: int = 0) -> dict[str, Any]:
    """The coefficients of points with their confidence intervals, and those within each group."""
    pairs = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    first, second = pairs.T
    if groups and len(groups) != len(pairs):
        raise SuperformerError(f"{len(groups)} groups were given for {len(pairs)} points")
    marks = np.asarray(groups)
    inside = [pairs[marks == group] for group in dict.fromkeys(groups)]
    return {
        "name": name,
        **coefficients(first, second),
        "intervals": intervals(first, second, seed),
        "points": pairs.tolist(),
        "groups": [
            {"name": group, "n": len(own), **coefficients(own[:, 0], own[:, 1])}
            for group, own in zip(dict.fromkeys(groups), inside, strict=True)
        ],
    }


# --- of a run ---


@dataclass(frozen=True)
class Drawn:
    """A random architecture and the range of MACs it was drawn in."""

    arch: Arch
    macs: int
    group: str


def spread(subject: Subject, n: int, groups: int, seed: int = 0) -> list[Drawn]:
    """``n`` different architectures, an equal number in each of ``groups`` ranges of MACs of equal width (ViTAS v2, section 6.4: 2,000 in
    8 ranges). A range without any architecture is left out, and one with few gives as many as it has."""
    if groups < 1 or n < groups:
        raise SuperformerError(f"{n} architectures cannot be drawn in {groups} groups: each needs at least one")
    space, rng, out = subject.space, np.random.default_rng([seed, 8]), []
    least, most = Exact.of(space, ("macs",), subject.net.num_classes, None).range["macs"]
    for k, (low, high) in enumerate(itertools.pairwise(np.linspace(least, most, groups + 1))):
        want, ends = n // groups + (k < n % groups), (float(low), float(high) if k == groups - 1 else float(np.nextafter(high, 0)))
        try:
            archs = space.sample(AGAIN * want, rng, macs=ends, num_classes=subject.net.num_classes)
        except InfeasibleError:
            continue
        some = list({arch.key: arch for arch in reversed(archs)}.values())[::-1][:want]
        out += [Drawn(a, m, f"{amount(low)} to {amount(high)}") for a, m in zip(some, subject.macs(some), strict=True)]
    return out


def against_macs(subject: Subject, n: int, groups: int, seed: int = 0, console: Console | None = None) -> dict[str, Any]:
    """Accuracy in the supernet against MACs (figure 5); the points are (MACs, accuracy)."""
    drawn = spread(subject, n, groups, seed)
    scores = subject.inherited([d.arch for d in drawn], console)
    points = [(float(d.macs), score) for d, score in zip(drawn, scores, strict=True)]
    return correlate("MACs and accuracy in the supernet", points, [d.group for d in drawn], seed)


def against_standalone(
    subject: Subject,
    n: int,
    groups: int,
    epochs: float,
    train: Standalone = standalone,
    seed: int = 0,
    console: Console | None = None,
) -> dict[str, Any]:
    """Accuracy in the supernet against that of the same networks trained by themselves for ``epochs``; and their table."""
    drawn = spread(subject, n, groups, seed)
    scores = subject.inherited([d.arch for d in drawn], console)
    alone = [train(subject.run, d.arch, "scratch", epochs) for d in each(drawn, "training by itself", console)]
    found = correlate("supernet and stand-alone", list(zip(scores, alone, strict=True)), [d.group for d in drawn], seed)
    rows = [
        {"key": d.arch.key, "macs": d.macs, "group": d.group, "supernet": score, "standalone": own}
        for d, score, own in zip(drawn, scores, alone, strict=True)
    ]
    return {**found, "epochs": epochs, "table": rows}
