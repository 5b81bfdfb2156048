"""How well one ranking of architectures predicts another (ViTAS v2, figure 5 and appendix A.4, eqs. 14 to 16).

Two pairs of rankings:

* `against_macs`, the paper's figure 5: accuracy in the supernet against MACs, which "we assume ... positively
  correlated", for random paths in ranges of MACs of equal width, over all of them and range by range;
* `against_standalone`, what the supernet is for: the same accuracy against that of the network trained by itself.

Eq. 16 (Kendall) has no ties ("the ranks are distinct integers"); accuracies on few pictures have many, so this is
tau-b, which is eq. 16 where there are none.

And several searches: how much of what was found is chance. Of the fronts: the best accuracy within a budget (mean and
spread over the seeds, at many budgets: the empirical attainment), and the hypervolume up to one shared reference. Of
the architectures on them: how many are the same, and how far the others are apart, choice by choice."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from scipy import stats

from superformer.analysis.settings import Settings
from superformer.analysis.subject import Standalone, Subject
from superformer.errors import InfeasibleError, SuperformerError, amount
from superformer.evaluation.evaluator import Score
from superformer.progress import each, quiet
from superformer.recipes.searching import Options
from superformer.runs import Run
from superformer.runs.processes import World
from superformer.search import rounds, with_progress
from superformer.search.problem import alive, front, hypervolume
from superformer.search.scores import Scorer
from superformer.search.task import Task
from superformer.space import Genes, Space
from superformer.space.arch import Arch
from superformer.space.costs import Exact
from superformer.space.sampling import Limits

Floats = NDArray[np.float64]
LEVEL = 0.95
DRAWS = 1000
"""Resamples of a confidence interval."""
OVERSAMPLING = 8
"""Architectures drawn for each that is wanted, so that enough of them differ."""
MAXIMISE = (True, False)
"""Accuracy, not MACs."""
BUDGETS = 20
"""At which the attainment is told."""

COEFFICIENTS = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}


def coefficients(first: ArrayLike, second: ArrayLike) -> dict[str, float | None]:
    """Pearson's and Spearman's (eq. 14, of values and ranks), Kendall's (eq. 16); None where one side never changes."""
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
    """Bootstrap confidence intervals: percentiles over resampled pairs, but for those in which one side is constant."""
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
    """The coefficients of many resamples at once; each row of ``counts`` says how many times each point is there. Ranks
    and pairs are sums over points, weighted by the counts, so that eqs. 14 and 16 of all resamples are a few products
    of matrices."""
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


def correlate(
    name: str, points: Sequence[tuple[float, float]], groups: Sequence[str] = (), seed: int = 0
) -> dict[str, Any]:
    """The coefficients of points with their confidence intervals, and those within each group."""
    pairs, marks = np.asarray(points, dtype=np.float64).reshape(-1, 2), np.asarray(groups)
    if groups and len(groups) != len(pairs):
        raise SuperformerError(f"{len(groups)} groups were given for {len(pairs)} points")
    inside = {group: pairs[marks == group] for group in dict.fromkeys(groups)}
    return {
        "name": name,
        **coefficients(pairs[:, 0], pairs[:, 1]),
        "intervals": intervals(pairs[:, 0], pairs[:, 1], seed),
        "points": pairs.tolist(),
        "groups": [{"name": group, "n": len(own), **coefficients(*own.T)} for group, own in inside.items()],
    }


@dataclass(frozen=True)
class Drawn:
    """A random architecture and the range of MACs it was drawn in."""

    arch: Arch
    macs: int
    group: str


def drawn_over_macs(subject: Subject, settings: Settings) -> list[Drawn]:
    """Different architectures, an equal number in each of ``settings.groups`` ranges of MACs of equal width (ViTAS v2,
    section 6.4: 2,000 in 8 ranges). A range with too few architectures gives those it has."""
    n, groups = settings.architectures, settings.groups
    if n < groups:
        raise SuperformerError(f"{n} architectures cannot be drawn in {groups} groups: each needs at least one")
    space, rng, out = subject.space, np.random.default_rng([settings.seed, 8]), []
    least, most = Exact.of(space, ("macs",), subject.net.num_classes, None).range["macs"]
    for k, (low, high) in enumerate(itertools.pairwise(np.linspace(least, most, groups + 1))):
        want = n // groups + (k < n % groups)
        ends = (float(low), float(high) if k == groups - 1 else float(np.nextafter(high, 0)))
        try:
            archs = space.sample(OVERSAMPLING * want, rng, macs=ends, num_classes=subject.net.num_classes)
        except InfeasibleError:
            continue
        some = list({arch.key: arch for arch in reversed(archs)}.values())[::-1][:want]  # each once
        out += [Drawn(a, m, f"{amount(low)} to {amount(high)}") for a, m in zip(some, subject.macs(some), strict=True)]
    return out


def against_macs(subject: Subject, settings: Settings, console: Console | None = None) -> dict[str, Any]:
    """Accuracy in the supernet against MACs (figure 5); the points are (MACs, accuracy)."""
    drawn = drawn_over_macs(subject, settings)
    scores = subject.inherited([d.arch for d in drawn], console)
    points = [(float(d.macs), score) for d, score in zip(drawn, scores, strict=True)]
    return correlate("MACs and accuracy in the supernet", points, [d.group for d in drawn], settings.seed)


def against_standalone(
    subject: Subject, settings: Settings, epochs: float, train: Standalone, console: Console | None = None
) -> dict[str, Any]:
    """Accuracy in the supernet against that of the same networks trained by themselves for ``epochs``; a table, too."""
    drawn = drawn_over_macs(subject, settings)
    scores = subject.inherited([d.arch for d in drawn], console)
    alone = [train(subject.run, d.arch, "scratch", epochs) for d in each(drawn, "training by itself", console)]
    points, groups = list(zip(scores, alone, strict=True)), [d.group for d in drawn]
    found = correlate("supernet and stand-alone", points, groups, settings.seed)
    rows = []
    for d, (score, own) in zip(drawn, points, strict=True):
        rows.append({"key": d.arch.key, "macs": d.macs, "group": d.group, "supernet": score, "standalone": own})
    return {**found, "epochs": epochs, "table": rows}


@dataclass(frozen=True)
class Front:
    """What one search found: architectures, their accuracy and their MACs."""

    archs: tuple[Arch, ...]
    accuracy: Floats
    macs: Floats

    @staticmethod
    def of(archs: Sequence[Arch], accuracy: Floats, macs: Floats) -> Front:
        """The best of what was evaluated: none is both less accurate and larger than another."""
        best = front(np.stack([accuracy, macs], 1), MAXIMISE)
        return Front(tuple(archs[k] for k in best), accuracy[best], macs[best])

    def best(self, budget: float) -> float | None:
        """The best accuracy within a budget; None: nothing fits."""
        inside = self.accuracy[self.macs <= budget]
        return float(inside.max()) if len(inside) else None


def fronts(folders: Iterable[str | Path]) -> list[Front]:
    """The fronts of several runs that were searched."""
    found = []
    for folder in folders:
        rows = Run.open(folder).front()["front"]
        accuracy, macs = (np.asarray([row[name] for row in rows], dtype=np.float64) for name in ("accuracy", "macs"))
        found.append(Front.of([Arch.from_json(json.dumps(row["arch"])) for row in rows], accuracy, macs))
    return found


def search_front(subject: Subject, seed: int, settings: Settings, console: Console | None = None) -> Front:
    """The front of one search of a run with a seed, and of nothing else that its history knows. What the history knows
    is not evaluated again, and everything new is kept there; ``front.json`` stays as it is."""
    limits: Limits = {} if settings.macs_max is None else {"macs": (0.0, settings.macs_max)}
    task = Task.of(subject.run, limits, settings.method, Options(seed=seed), settings.search, lambda text: None)
    archs, found = list[Arch](), list[Score]()
    with subject.run.lock(), subject.history() as history:
        scorer = Scorer(subject.evaluator(), history, World.join())
        for scored in with_progress(rounds(task, scorer), quiet(console)):
            archs += scored.archs
            found += scored.scores
    accuracy = np.asarray([score.accuracy for score in found])
    return Front.of(archs, accuracy, np.asarray(subject.macs(archs), dtype=np.float64))


def fronts_summary(found: Sequence[Front], space: Space, budgets: Sequence[float] = ()) -> dict[str, Any]:
    """What several fronts have in common. The hypervolume's reference is the worst of all in both objectives."""
    if len(found) < 2 or not all(len(front.archs) for front in found):
        needs = "a spread needs the fronts of two or more searches, each with something on it"
        raise SuperformerError(f"{needs}; {len(found)} were given")
    macs, accuracy = (np.concatenate([getattr(f, name) for f in found]) for name in ("macs", "accuracy"))
    reference = (float(accuracy.min()), float(macs.max()))
    volumes = [hypervolume(np.stack([f.accuracy, f.macs], 1), MAXIMISE, reference) for f in found]
    ends = budgets or np.geomspace(max(float(f.macs.min()) for f in found), macs.max(), BUDGETS).tolist()
    best = [float(f.accuracy.max()) for f in found]
    return {
        "seeds": len(found),
        "reference": {"accuracy": reference[0], "macs": reference[1]},
        "hypervolume": {**_spread(volumes), "each": volumes},
        "best": {**_spread(best), "each": best},
        "attainment": [{"macs": float(end), **_spread([f.best(end) for f in found])} for end in ends],
        "overlap": overlap([f.archs for f in found], space),
    }


def _spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean, sample standard deviation, smallest and largest of those that there are."""
    real = np.asarray([v for v in values if v is not None], dtype=np.float64)
    if not len(real):
        return {"n": 0}
    std = float(real.std(ddof=1)) if len(real) > 1 else 0.0
    ends = {"least": float(real.min()), "most": float(real.max())}
    return {"n": len(real), "mean": float(real.mean()), "std": std, **ends}


def overlap(found: Sequence[Sequence[Arch]], space: Space) -> dict[str, Any]:
    """Of every two lists of architectures: the Jaccard index of their keys, and the distance of each architecture to
    the nearest of the other list, 0 for the same and 1 if every choice is at the other end of its list; by choice, over
    the blocks that both have."""
    rows = [(space.encode(list(archs)), {a.key for a in archs}) for archs in found]
    pairs = list(itertools.combinations(rows, 2))
    jaccard = [len(a & b) / len(a | b) for (_, a), (_, b) in pairs]
    gaps = np.concatenate([_gaps(space, x, y) for (a, _), (b, _) in pairs for x, y in ((a, b), (b, a))])
    names = [name.rpartition(".")[2] for name in space.gene_names]
    by_choice = {}
    for choice in dict.fromkeys(names):
        own = gaps[:, [n for n, name in enumerate(names) if name == choice]]
        if not np.isnan(own).all():
            by_choice[choice] = float(np.nanmean(own))
    distance = float(_mean(gaps).mean()) if gaps.size else 0.0
    return {"jaccard": float(np.mean(jaccard)), "distance": distance, "by_choice": by_choice}


def _gaps(space: Space, rows: Genes, others: Genes) -> Floats:
    """How far each row's genes are from those of the nearest other row, as shares of their ranges; NaN where one has no
    such block."""
    steps = np.maximum(np.asarray(space.bounds, dtype=np.float64) - 1, 1)
    both = alive(space, rows)[:, None] & alive(space, others)
    apart = np.where(both, np.abs(rows[:, None] - others) / steps, np.nan)
    out: Floats = apart[np.arange(len(rows)), _mean(apart).argmin(1)]
    return out


def _mean(gaps: Floats) -> Floats:
    """Over the genes that both have; as far as can be where they have none."""
    count = (~np.isnan(gaps)).sum(-1)
    out: Floats = np.where(count > 0, np.nansum(gaps, -1) / np.maximum(count, 1), 1.0)
    return out
