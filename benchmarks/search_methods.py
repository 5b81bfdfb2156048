"""Search methods: hypervolume over evaluations on a space whose every architecture has a known score, and predicted candidates ranked.

python benchmarks/search_methods.py
"""

from __future__ import annotations

import time

import numpy as np
from common import beside, peak_mib, report, seconds

import superformer as sf
from superformer.search import Method, Objective, Problem, method, pareto
from superformer.search.predictor import Forest
from superformer.search.problem import Floats, alive
from superformer.search.simple import every
from superformer.space import Genes, Space, Stage, times

SPACE = Space(
    "known",
    "vit",
    (Stage({"heads": (1, 2, 4), "attn": times(4, of="heads"), "mlp": (8, 16, 24)}, depth=(2, 3, 4)),),
    {"patch_size": 8, "width": (8, 12, 16)},
    img_size=32,
)
MAXIMISE = (True, False)
AT = (50, 100, 200, 400, 800, 1200, 1600, 2000)
SEEDS = range(5)
SEARCHES = {
    "evolution, s3": ("evolution", {"rounds": 40}),
    "evolution, vit-resnas": ("evolution", {"preset": "vit-resnas", "rounds": 11}),
    "nsga2": ("nsga2", {}),
    "predictor": ("predictor", {"front": 976}),
    "random": ("random", {"evaluations": 2000}),
}


class Known:
    """Every gene has its worth, neighbouring genes suit each other or not, and larger networks are better."""

    def __init__(self) -> None:
        self.rows = every(SPACE)
        rng, n, live = np.random.default_rng(0), self.rows.shape[1], alive(SPACE, self.rows)
        own, pairs = rng.normal(size=(n, 3)), rng.normal(size=(n, 3, 3))
        self.macs = sf.cost(SPACE, self.rows, 10).macs.astype(np.float64)
        worth = (own[np.arange(n), self.rows] * live).sum(1) + 6 * np.log(self.macs / self.macs.min())
        suits = [pairs[g, self.rows[:, g], self.rows[:, g + 1]] * (live[:, g] & live[:, g + 1]) for g in range(n - 1)]
        self.scores = np.stack([70 + worth + np.sum(suits, 0), self.macs], 1)
        self.places = {row.tobytes(): k for k, row in enumerate(self.rows)}

    def of(self, genes: Genes) -> Floats:
        return self.scores[[self.places[row.tobytes()] for row in np.ascontiguousarray(genes)]]

    def problem(self, seed: int) -> Problem:
        return Problem(SPACE, tuple(map(Objective.of, ("accuracy", "macs"))), lambda genes: {"macs": self.of(genes)[:, 1]}, {}, seed, 10)


def volumes(known: Known, search: Method) -> list[float]:
    """The share of the whole space's hypervolume after so many evaluations."""
    reference = (float(known.scores[:, 0].min()), float(known.macs.max()))
    whole = pareto.hypervolume(known.scores, MAXIMISE, reference)
    found = np.zeros((0, 2))
    while len(found) < AT[-1] and len(genes := search.ask()):
        search.tell(genes, known.of(genes))
        found = np.concatenate([found, known.of(genes)])
    return [pareto.hypervolume(found[:n], MAXIMISE, reference) / whole for n in AT]


def main() -> None:
    known = Known()
    for name, (which, changes) in SEARCHES.items():
        start = time.perf_counter()
        shares = np.asarray([volumes(known, method(known.problem(seed), which, **changes)) for seed in SEEDS])
        report(
            f"search, {name}: share of the hypervolume of {len(known.rows):,} architectures",
            evaluations=list(AT),
            median=[float(v) for v in np.median(shares, 0)],
            least=[float(v) for v in shares.min(0)],
            seconds_for_a_search=(time.perf_counter() - start) / len(SEEDS),
            peak_mib=peak_mib(),
        )
    space = sf.space("nasvit")
    problem = Problem.of(space, ("accuracy", "macs"))
    genes = problem.draw(512, np.random.default_rng(0))
    measured = np.column_stack([np.log(problem.costs(genes)["macs"]), problem.costs(genes)["macs"]])
    training = seconds(lambda: Forest(problem, genes, measured), 3)
    forest, many = Forest(problem, genes, measured), problem.draw(10_000, np.random.default_rng(1))
    figures = beside(lambda: pareto.best(forest.scores(many), problem.maximise, len(many)), repeats=3, training=False)
    report(
        "search, 10,000 predicted candidates of nasvit ranked",
        **figures,
        seconds_to_train_the_forest=min(training),
        peak_mib=peak_mib(),
        target={"seconds": 5},
    )


if __name__ == "__main__":
    main()
