"""Search methods: hypervolume over evaluations on a space whose every architecture has a known score, and predicted
candidates ranked.

python benchmarks/search_methods.py
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from common import beside, peak_mib, report, seconds

import superformer as sf
from superformer.search import Method, Problem, method
from superformer.search.predictor import Forest
from superformer.search.problem import best, hypervolume

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from helpers.known_space import Known

AT = (50, 100, 200, 400, 800, 1200, 1600, 2000)
SEEDS = range(5)
SEARCHES = {
    "evolution, s3": ("evolution", {"rounds": 40}),
    "evolution, vit-resnas": ("evolution", {"preset": "vit-resnas", "rounds": 11}),
    "nsga2": ("nsga2", {}),
    "predictor": ("predictor", {"front": 976}),
    "random": ("random", {"evaluations": 2000}),
}


def volumes(known: Known, search: Method) -> list[float]:
    """The share of the whole space's hypervolume after so many evaluations."""
    reference = (float(known.scores[:, 0].min()), float(known.macs.max()))
    whole = hypervolume(known.scores, known.maximise, reference)
    found = np.zeros((0, 2))
    while len(found) < AT[-1] and len(genes := search.ask()):
        scores = known.scores[known.at(genes)]
        search.tell(genes, scores)
        found = np.concatenate([found, scores])
    return [hypervolume(found[:n], known.maximise, reference) / whole for n in AT]


def main() -> None:
    known = Known()
    for name, (which, changes) in SEARCHES.items():
        start = time.perf_counter()
        shares = np.asarray(
            [volumes(known, method(known.problem(("accuracy", "macs"), seed=seed), which, **changes)) for seed in SEEDS]
        )
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
    figures = beside(lambda: best(forest.scores(many), problem.maximise, len(many)), repeats=3, training=False)
    report(
        "search, 10,000 predicted candidates of nasvit ranked",
        **figures,
        seconds_to_train_the_forest=min(training),
        peak_mib=peak_mib(),
        target={"seconds": 5},
    )


if __name__ == "__main__":
    main()
