"""W5: evaluating candidates with inherited weights, one by one and as a tree; what a history adds.

One by one, as the released code was measured: count the cost, run 64 pictures (2 batches of 32) through the
sub-network. As a tree (`superformer.evaluation`): the children of ten parents by the mutation of each recipe's own
search, those that begin alike together; set against the same candidates one by one, in turn.

python benchmarks/evaluate.py [released] [tree] [history]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import Calibrator, peak_mib, pictures, report, seconds, workload

import superformer as sf
from superformer.evaluation.evaluator import Evaluator, needs_recalibration
from superformer.recipes import space_of
from superformer.search.evolution import polynomial
from superformer.search.history import Evaluation, History
from superformer.space import Genes, Space
from superformer.space.genes import mutate

RELEASED = {"autoformer-tiny": ("autoformer", 16.9), "vit-resnas-tiny": ("vit_resnas", 15.3)}
PARENTS, CHILDREN, ROUNDS = 10, 64, 3

Mutation = Callable[[Space, Genes, np.random.Generator], Genes]
MUTATIONS: dict[str, Mutation] = {
    "S3's, whole blocks": lambda space, genes, rng: mutate(space, genes, rng, "blocks", 0.3, 0.2, 0.2, 0.4),
    "NSGA-II's, a gene of each": lambda space, genes, rng: polynomial(space, genes, 3.0, None, rng),
    "ViT-ResNAS's, 0.3 of the genes": lambda space, genes, rng: mutate(space, genes, rng, p=0.3),
    "NASViT's, 0.1 of the genes": lambda space, genes, rng: mutate(space, genes, rng, p=0.1),
}
OWN = {"s3": 0, "vitas-v1": 1, "vitas-deit": 1, "vitas-twins": 1, "vit-resnas": 2, "nasvit": 3}
"""Which of them each recipe's search uses."""


def released() -> None:
    x = pictures(32)
    for name, (family, ratio) in RELEASED.items():
        space = sf.space(name)
        net, archs = sf.supernet(space).eval(), workload(family)[:10]

        @torch.no_grad()
        def evaluate(arch: sf.Arch, space: sf.Space = space, net: torch.nn.Module = net) -> None:
            sf.cost(space, [arch])
            for _ in range(2):
                net(x, arch).argmax(-1)

        calibrate = Calibrator(training=False)
        evaluate(archs[0])
        before = calibrate()
        times = [seconds(lambda a=arch: evaluate(a), 1, 0)[0] for arch in archs]
        unit = (before + calibrate()) / 2
        report(
            f"W5 evaluating a candidate of {name}",
            seconds=statistics.median(times),
            calibrator=unit,
            ratio=statistics.median(times) / unit,
            peak_mib=peak_mib(),
            released={"ratio": ratio},
        )


def tree() -> None:
    """Candidates a second as a tree, over the same ones by one; in a laptop recipe's space, with weights as they are
    drawn."""
    for name, own in OWN.items():
        space = space_of(sf.recipe(f"{name}-laptop"))
        net = sf.supernet(space, 10)
        batches = [(pictures(143, space.img_size), torch.zeros(143, dtype=torch.int64))]
        judge = Evaluator(
            net, lambda batches=batches: batches, [pictures(64, space.img_size)] * 8 if needs_recalibration(net) else ()
        )
        rng = np.random.default_rng(0)
        parents = space.sample_genes(PARENTS, rng)
        for k, (mutation, make) in enumerate(MUTATIONS.items()):
            if k not in (own, 3):
                continue
            children: dict[str, sf.Arch] = {}
            while len(children) < CHILDREN:  # different ones, as searches ask for
                children |= {
                    a.path: a for a in space.decode(make(space, parents[rng.integers(PARENTS, size=CHILDREN)], rng))
                }
            archs = list(children.values())[:CHILDREN]
            judge(archs[:2])
            together, apart = [], []
            for _ in range(ROUNDS):
                together.append(_cpu(lambda: judge(archs)))  # noqa: B023
                apart.append(_cpu(lambda: [judge([a]) for a in archs]))  # noqa: B023
            report(
                f"W5 candidates of {name}-laptop as a tree, {mutation} mutation" + (" (its own)" if k == own else ""),
                candidates=len(archs),
                candidates_per_cpu_second=len(archs) / statistics.median(together),
                one_by_one_per_cpu_second=len(archs) / statistics.median(apart),
                ratio=statistics.median(a / t for a, t in zip(apart, together, strict=True)),
                ratios=[a / t for a, t in zip(apart, together, strict=True)],
                load=os.getloadavg()[0],
                target={"ratio": 1.5},
            )


def _cpu(work: Callable[[], object]) -> float:
    """Seconds of processor time, which others on the machine disturb less than the clock; the threads' together."""
    start = time.process_time()
    work()
    return time.process_time() - start


def history() -> None:
    """Milliseconds a candidate that keeping evaluations takes, 50 at a time as a generation is."""
    arch = space_of(sf.recipe("s3-laptop")).largest().to_json()
    with tempfile.TemporaryDirectory() as folder, History(Path(folder) / "history.db", "weights", "pictures") as kept:
        times = []
        for k in range(200):
            rows = [
                Evaluation(f"{k}-{j}", arch, {"accuracy": 0.5, "loss": 1.0, "macs": 1e6, "params": 1e5})
                for j in range(50)
            ]
            start = time.perf_counter()
            kept.get([row.key for row in rows])
            kept.put(rows)
            times.append((time.perf_counter() - start) / len(rows))
    report(
        "history, for each candidate of a batch of 50",
        milliseconds=1e3 * statistics.median(times),
        p90=1e3 * float(np.quantile(times, 0.9)),
        load=os.getloadavg()[0],
        target={"milliseconds": 1},
    )


if __name__ == "__main__":
    for word in sys.argv[1:] or ("released", "tree", "history"):
        {"released": released, "tree": tree, "history": history}[word]()
