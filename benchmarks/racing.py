"""Does judging on few pictures first find the same winner, and with how many pictures? One JSON line for each run.

Some hundred candidates of a trained supernet (random ones, and mutants of the best of these) are judged once on every
picture of the search split. Then, many times, some of them and another order of equal pictures are drawn, and the races
of a search (`superformer.search.judging`) are run on what is known. ``same``: how often the winner is as accurate as
that of judging all on everything; ``parents``: which share of the ten best goes to the end where ten are sought;
``pictures``: the share that was looked at, the panel's included.

python benchmarks/racing.py [--candidates 400] [--drawn 300] [--repeats 200] [--sure 1.75] [--keep DIR] RUN [RUN ...]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from common import report
from numpy.typing import NDArray

from superformer.evaluation.evaluator import Score, TrainedRun
from superformer.recipes.searching import Options
from superformer.runs import Run
from superformer.runs.processes import World
from superformer.search.judging import PANEL, FewFirst, contested_first, ends
from superformer.space.genes import mutate

Right = NDArray[np.bool_]
PARENTS, TOP = 10, 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--candidates", type=int, default=400)
    parser.add_argument("--drawn", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--sure", type=float, default=Options().sure)
    parser.add_argument("--keep", help="a folder for what was judged, and to take it from")
    parser.add_argument("runs", nargs="+")
    given = parser.parse_args()
    for folder in given.runs:
        kept = Path(given.keep or ".") / f"right-{Path(folder).name}.npz"
        if given.keep is None or not kept.exists():
            right = judged(TrainedRun.of(Run.open(folder)), given.candidates)
            if given.keep is not None:
                np.savez_compressed(kept, right=right)
        else:
            right = np.load(kept)["right"]
        rng, found = np.random.default_rng(0), {1: list[tuple[float, float]](), PARENTS: list[tuple[float, float]]()}
        for seed in range(given.repeats):
            panel, *_ = np.split(rng.permutation(len(right) // 2), [PANEL])
            others = np.setdiff1d(np.arange(len(right)), panel)
            some = right[rng.choice(others, min(given.drawn, len(others)), replace=False)]
            for sought, results in found.items():
                results.append(raced(some, right[panel], sought, given.sure, seed))
        (same, used), (parents, more) = (np.mean(found[k], 0).tolist() for k in (1, PARENTS))
        report(
            f"few pictures first: {Path(folder).name}",
            pictures_of_split=right.shape[1],
            candidates=min(given.drawn, len(right) - PANEL),
            repeats=given.repeats,
            accuracy=[float(v) for v in np.quantile(right.mean(1), [0, 0.5, 1])],
            same=same,
            pictures=used,
            parents=parents,
            pictures_for_parents=more,
            target={"same": 0.95, "pictures": 0.2},
        )


def judged(trained: TrainedRun, candidates: int) -> Right:
    """Whether candidates are right about each picture of the search split; the random half comes first."""
    space, rng, judge = trained.space, np.random.default_rng(0), trained.evaluator()

    def right(genes: NDArray[np.int64]) -> Right:
        rows = [judge.right(space.decode(genes[k : k + 64])).numpy() > 0 for k in range(0, len(genes), 64)]
        return np.concatenate(rows)

    random = rng.permutation(np.unique(space.sample_genes(candidates, rng), axis=0))[: candidates // 2]
    first = right(random)
    best = random[np.argsort(-first.mean(1), kind="stable")[:TOP]]
    mutants = mutate(space, best[rng.integers(len(best), size=2 * candidates)], rng, "parameters", 0.3, 0.2, 0.2, 0.4)
    new = np.unique([row for row in mutants.tolist() if row not in random.tolist()], axis=0)
    return np.concatenate([first, right(rng.permutation(new)[: candidates - len(random)])])


@dataclass
class Recorded:
    """Scores by what was recorded of a part of the pictures, which it counts."""

    right: Right
    looked: int = 0

    @property
    def evaluator(self) -> Any:
        return SimpleNamespace(sides=("left",))

    def scores(self, archs: list[int]) -> tuple[list[Score], int]:
        self.looked += len(archs) * self.right.shape[1]
        return [Score(float(self.right[k].mean()), 0.0) for k in archs], len(archs)


def raced(right: Right, panel: Right, sought: int, sure: float, seed: int) -> tuple[float, float]:
    """The share of the best that go to the end (of one: of any as accurate), and that of the pictures."""
    pictures = right.shape[1]
    limits, order = ends(pictures), contested_first(panel.mean(0), seed)
    parts = [Recorded(right[:, order[a:b]]) for a, b in zip([0, *limits], limits, strict=False)]
    races = FewFirst(SimpleNamespace(world=World(), history=None), parts, limits, sure)  # type: ignore[arg-type]
    everyone: Any = list(range(len(right)))
    asking = races.scores(everyone, [], 0, lambda guess: np.full(len(guess), np.sort(guess)[-sought]), False)
    while True:
        try:
            next(asking)
        except StopIteration as end:
            found = np.array([score.accuracy for score in end.value])
            break
    best = np.argsort(-right.mean(1), kind="stable")[:sought]
    kept = float(np.nanmax(found) == right.mean(1).max()) if sought == 1 else float(np.isfinite(found[best]).mean())
    looked = sum(part.looked for part in parts) + len(panel) * pictures
    return kept, looked / (len(right) * pictures)


if __name__ == "__main__":
    main()
