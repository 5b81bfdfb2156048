"""Several searches, or several runs: how much of what was found is chance.

Of the fronts: the best accuracy within a budget (mean and spread over the seeds, at as many budgets as wanted: the empirical attainment),
and the hypervolume up to one shared reference. Of the architectures on them: how many are the same, and how far the others are apart,
choice by choice.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from superformer.analysis.subject import Subject
from superformer.errors import SuperformerError
from superformer.evaluation.score import Score
from superformer.run import Run
from superformer.search import pareto
from superformer.search.options import Options
from superformer.search.problem import Floats, alive
from superformer.search.rounds import rounds, shown
from superformer.search.task import Limits, ready
from superformer.space import Genes, Space
from superformer.space.arch import Arch
from superformer.telling import quiet
from superformer.train.world import World

MAXIMISE = (True, False)
BUDGETS = 20
"""At which the attainment is told."""


@dataclass(frozen=True)
class Front:
    """What one search found: architectures, their accuracy and their MACs."""

    archs: tuple[Arch, ...]
    accuracy: Floats
    macs: Floats

    @staticmethod
    def of(archs: Sequence[Arch], accuracy: Floats, macs: Floats) -> Front:
        """The best of what was evaluated: none is both less accurate and larger than another."""
        best = pareto.front(np.stack([accuracy, macs], 1), MAXIMISE)
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
        found.append(Front.of([_arch(row["arch"]) for row in rows], accuracy, macs))
    return found


def _arch(plain: Mapping[str, Any]) -> Arch:
    return Arch.from_json(json.dumps(plain))


def searched(
    subject: Subject,
    seed: int,
    limits: Limits | None = None,
    which: str | None = None,
    changes: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> Front:
    """The front of one search of a run with a seed, and of nothing else that its history knows. What the history knows is not evaluated
    again, and everything new is kept there; ``front.json`` stays as it is."""
    task = ready(subject.run, dict(limits or {}), which, Options(seed=seed), dict(changes or {}), lambda text: None)
    archs: list[Arch] = []
    found: list[Score] = []
    with subject.run.lock(), subject.history() as history:
        for told in shown(rounds(task, subject.judge(), history, World.join()), quiet(console)):
            archs += told.archs
            found += told.scores
    return Front.of(archs, np.asarray([score.accuracy for score in found]), np.asarray(subject.macs(archs), dtype=np.float64))


def summary(found: Sequence[Front], space: Space, budgets: Sequence[float] = ()) -> dict[str, Any]:
    """What several fronts have in common. The reference of the hypervolume is the worst of all fronts in both objectives."""
    if len(found) < 2 or not all(len(front.archs) for front in found):
        raise SuperformerError(f"a spread needs the fronts of two or more searches, each with something on it; {len(found)} were given")
    macs, accuracy = (np.concatenate([getattr(f, name) for f in found]) for name in ("macs", "accuracy"))
    reference = (float(accuracy.min()), float(macs.max()))
    volumes = [pareto.hypervolume(np.stack([f.accuracy, f.macs], 1), MAXIMISE, reference) for f in found]
    ends = budgets or np.geomspace(max(float(f.macs.min()) for f in found), macs.max(), BUDGETS).tolist()
    return {
        "seeds": len(found),
        "reference": {"accuracy": reference[0], "macs": reference[1]},
        "hypervolume": {**_spread(volumes), "each": volumes},
        "best": {**_spread([float(f.accuracy.max()) for f in found]), "each": [float(f.accuracy.max()) for f in found]},
        "attainment": [{"macs": float(end), **_spread([f.best(end) for f in found])} for end in ends],
        "overlap": overlap([f.archs for f in found], space),
    }


def _spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean, sample standard deviation, smallest and largest of those that there are."""
    real = np.asarray([v for v in values if v is not None], dtype=np.float64)
    if not len(real):
        return {"n": 0}
    std = float(real.std(ddof=1)) if len(real) > 1 else 0.0
    return {"n": len(real), "mean": float(real.mean()), "std": std, "least": float(real.min()), "most": float(real.max())}


# --- the architectures ---


def overlap(found: Sequence[Sequence[Arch]], space: Space) -> dict[str, Any]:
    """Of every two lists of architectures: the Jaccard index of their keys, and the distance of each architecture to the nearest of the
    other list, 0 for the same and 1 if every choice is at the other end of its list; by choice, over the blocks that both have."""
    rows = [(space.encode(list(archs)), {a.key for a in archs}) for archs in found]
    pairs = list(itertools.combinations(rows, 2))
    jaccard = [len(a & b) / len(a | b) for (_, a), (_, b) in pairs]
    gaps = np.concatenate([_gaps(space, x, y) for (a, _), (b, _) in pairs for x, y in ((a, b), (b, a))])
    names = [name.rpartition(".")[2] for name in space.gene_names]
    choices = {
        choice: float(np.nanmean(own))
        for choice in dict.fromkeys(names)
        if not np.isnan(own := gaps[:, [n for n, name in enumerate(names) if name == choice]]).all()
    }
    return {"jaccard": float(np.mean(jaccard)), "distance": float(_mean(gaps).mean()) if gaps.size else 0.0, "by_choice": choices}


def _gaps(space: Space, rows: Genes, others: Genes) -> NDArray[np.float64]:
    """How far each row's genes are from those of the nearest other row, as shares of their ranges; not a number where one has no such
    block."""
    steps = np.maximum(np.asarray(space.bounds, dtype=np.float64) - 1, 1)
    both = alive(space, rows)[:, None] & alive(space, others)
    apart = np.where(both, np.abs(rows[:, None] - others) / steps, np.nan)
    nearest = _mean(apart).argmin(1)
    out: NDArray[np.float64] = apart[np.arange(len(rows)), nearest]
    return out


def _mean(gaps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the genes that both have; as far as can be where they have none."""
    count = (~np.isnan(gaps)).sum(-1)
    out: NDArray[np.float64] = np.where(count > 0, np.nansum(gaps, -1) / np.maximum(count, 1), 1.0)
    return out
