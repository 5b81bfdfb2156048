"""Two checkouts against each other: every workload of these benchmarks, one repetition of the old and one of the new in
turn, each in a process of its own that keeps the workload ready; the drift of the machine meets both alike.

    python benchmarks/pairs.py ../old . [workload ...] [--pairs 7] [--seconds 45]

One JSON line for each workload: median times, the median of the pairs' ratios (new over old), their range, and the
median ratio of processor time, which others on the machine disturb less than the clock (set OMP_NUM_THREADS=1: waiting
threads count, too).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

Work = Callable[[], object]
STEPS = {  # space, batch, pixels, architectures in the batch
    "autoformer": ("autoformer-tiny", 8, 224, 1),
    "vit-resnas": ("vit-resnas-tiny", 8, 224, 1),
    "vit-resnas-16": ("vit-resnas-tiny", 32, 224, 16),
    "nasvit": ("nasvit-released", 8, 224, 1),
    "vitas-v1": ("vitas-v1", 8, 224, 1),
    "s3": ("s3-initial", 8, 224, 1),
    "twins": ("vitas-twins-small", 8, 224, 1),
    "resnet": ("vitas-resnet50", 8, 224, 1),
}
FORMS = ("step", "extracted", "evaluation")
OTHERS = ("nasvit-4", "nasvit-train", "s3-train", "recalibration", "cost", "draws", "masked")
TREES = ("s3", "vitas-v1", "vitas-deit", "vitas-twins", "vit-resnas", "nasvit")
NAMES = [f"{n} {f}" for n in STEPS for f in FORMS] + list(OTHERS) + [f"{n} tree" for n in TREES]


def prepared(name: str) -> Work:
    """The work of a name, with the superformer and the benchmarks of this process."""
    import common
    import numpy as np
    import torch

    import superformer as sf

    def step(net: torch.nn.Module, chosen: list[sf.Arch], x: torch.Tensor, y: torch.Tensor, **options: str) -> None:
        net.zero_grad()
        for arch in chosen:
            common.soft_loss(net(x, arch, **options), y).backward()

    first, _, form = name.partition(" ")
    if form in FORMS:
        space_name, batch, size, many = STEPS[first]
        space, x, y = sf.space(space_name), common.pictures(batch, size), common.soft_targets(batch)
        net, archs = sf.supernet(space), space.sample(max(many, 3), seed=5)
        if form == "evaluation":
            net.eval()
            return torch.no_grad()(lambda: net(x, archs if many > 1 else archs[0]))
        if form == "extracted":
            model = net.extract(archs[0]).train()

            def own() -> None:
                model.zero_grad()
                common.soft_loss(model(x), y).backward()

            return own
        net.train()
        return lambda: step(net, [archs] if many > 1 else archs[:1], x, y)
    if form == "tree":
        import evaluate

        space = evaluate.space_of(sf.recipe(f"{first}-laptop"))
        net = sf.supernet(space, 10)
        batches = [(common.pictures(143, space.img_size), torch.zeros(143, dtype=torch.int64))]
        again = [common.pictures(64, space.img_size)] * 8 if evaluate.needs_recalibration(net) else ()
        judge, rng = evaluate.Evaluator(net, lambda: batches, again), np.random.default_rng(0)
        parents, make = space.sample_genes(10, rng), list(evaluate.MUTATIONS.values())[evaluate.OWN[first]]
        children = {a.path: a for a in space.decode(make(space, parents[rng.integers(10, size=64)], rng))}
        return lambda: judge(list(children.values()))
    if name == "masked":
        space, x, y = sf.space("vit-resnas-tiny"), common.pictures(32), common.soft_targets(32)
        net, archs = sf.supernet(space).train(), space.sample(16, seed=5)
        return lambda: step(net, [archs], x, y, mode="masked")
    if name in ("nasvit-4", "nasvit-train"):
        import nasvit
        import train_step

        if name == "nasvit-train":
            recipe = train_step.resolve("nasvit", train_step.NASVIT)
            trainer, own = train_step.fixed(recipe, nasvit.archs("w3")), train_step.batch(8)
            return lambda: trainer.step(50, own)
        net, x, y, chosen = (
            sf.supernet("nasvit-released").train(),
            common.pictures(8),
            common.soft_targets(8),
            nasvit.archs("w3"),
        )
        return lambda: step(net, chosen, x, y)
    if name == "s3-train":
        import train_step

        recipe = train_step.resolve("s3", ["watch.conflicts=0", "train.amp=off", "train.drop_path=0"])
        space = train_step.space_of(recipe)
        trainer = train_step.fixed(recipe, [space.largest(), space.smallest(), *space.sample(2, seed=0)])
        own = train_step.batch(8)
        return lambda: trainer.step(50, own)
    if name == "recalibration":
        space = sf.space("nasvit-released")
        model, x = sf.supernet(space).extract(space.sample(1, seed=5)[0]), common.pictures(8)
        return lambda: sf.recalibrate(model, [x] * 4)
    space = sf.space("s3-initial")
    genes = space.sample_genes(200_000, 0)
    if name == "cost":
        return lambda: sf.cost(space, genes)
    middle = float(np.median(sf.cost(space, genes[:20_000]).macs))
    return lambda: space.sample_genes(1000, 1, macs=(0.99 * middle, 1.01 * middle))


def serve() -> None:
    """Reads names of works and times them: ``prepare NAME``, then empty lines, each a repetition."""
    import superformer as sf

    if hasattr(sf, "kernels"):
        sf.kernels.keep_freed()
    work: Work | None = None
    for line in sys.stdin:
        if line.strip():
            work = None
            gc.collect()
            work = prepared(line.strip())
            work()
        assert work is not None
        gc.collect()
        gc.disable()
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        print(time.perf_counter() - wall, time.process_time() - cpu, flush=True)
        gc.enable()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("works", nargs="*", help=f"beginnings of names; possible: {', '.join(NAMES)}")
    parser.add_argument("--pairs", type=int, default=7, help="at least so many")
    parser.add_argument("--seconds", type=float, default=45, help="and at least for so long")
    asked = parser.parse_args()
    for name in [n for n in NAMES if not asked.works or any(n.startswith(w) for w in asked.works)]:
        sides = []
        for checkout in (asked.old, asked.new):
            path = os.pathsep.join(str((checkout / room).resolve()) for room in ("src", "benchmarks"))
            words = [sys.executable, "-P", __file__, "--serve"]  # -P: not the benchmarks beside this file
            sides.append(
                subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "PYTHONPATH": path},
                )
            )

        def once(side: subprocess.Popen[str], word: str = "") -> tuple[float, ...]:
            assert side.stdin
            assert side.stdout
            print(word, file=side.stdin, flush=True)
            return tuple(float(figure) for figure in side.stdout.readline().split())

        for side in sides:
            once(side, name)
        pairs: list[tuple[tuple[float, ...], tuple[float, ...]]] = []
        start = time.perf_counter()
        while len(pairs) < asked.pairs or time.perf_counter() - start < asked.seconds:
            order = sides if len(pairs) % 2 == 0 else sides[::-1]  # who goes first changes, too
            taken = {id(side): once(side) for side in order}
            pairs.append((taken[id(sides[0])], taken[id(sides[1])]))
        for side in sides:
            side.communicate()
        report(name, pairs)


def report(name: str, pairs: list[tuple[tuple[float, ...], tuple[float, ...]]]) -> None:
    ratios = sorted(new[0] / old[0] for old, new in pairs)
    figures = {
        "old": statistics.median(old[0] for old, _ in pairs),
        "new": statistics.median(new[0] for _, new in pairs),
        "new_over_old": statistics.median(ratios),
        "lowest": ratios[0],
        "highest": ratios[-1],
        "cpu_new_over_old": statistics.median(new[1] / old[1] for old, new in pairs),
    }
    line = {"benchmark": f"pairs, {name}", "pairs": len(pairs), "load": os.getloadavg()[0]}
    print(json.dumps(line | {k: float(f"{v:.4g}") for k, v in figures.items()}), flush=True)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
