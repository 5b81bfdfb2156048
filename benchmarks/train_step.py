"""Whole training steps, as `superformer train` makes them.

python benchmarks/train_step.py [nasvit] [sandwich] [projection] [pictures]

* nasvit: W3, NASViT's step: four networks, adaptive alpha-divergence, clipping, projection, AdamW (batch 8);
* sandwich: a step of S3's sandwich against the steps of its four networks by themselves, extracted;
* projection: a step with projection against the same step with summed gradients;
* pictures: the share of time that training waits for pictures, on the embedded digits.
"""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import closing

import torch
from common import beside, peak_mib, pictures, report, soft_loss, soft_targets
from nasvit import archs

import superformer as sf
from superformer import data
from superformer.data import Batch
from superformer.recipes import Recipe, resolve, space_of
from superformer.runs.processes import World
from superformer.train.preparation import build_trainer
from superformer.train.sampling import Turn
from superformer.train.step import Trainer

CLASSES = [str(n) for n in range(1000)]
NASVIT = [
    "space=nasvit-released",
    "loss.teachers=[]",
    "gradients.cap=2",
    "gradients.clip_subnets=1",
    "watch.conflicts=0",
    "train.ema=null",
]


def batch(n: int, size: int = 224) -> Batch:
    return Batch(pictures(n, size), soft_targets(n).float(), torch.zeros(n, dtype=torch.long))


def fixed(recipe: Recipe, chosen: list[sf.Arch]) -> Trainer:
    """A trainer whose every step trains the same networks, the first of which is the largest."""
    trainer = build_trainer(recipe, space_of(recipe), CLASSES, 100, 10, World())
    turns = [Turn((chosen[0],), role="largest"), *(Turn((a,)) for a in chosen[1:])]
    trainer.sampler.turns = lambda step: turns  # type: ignore[method-assign]
    return trainer


def nasvit() -> None:
    trainer, own = fixed(resolve("nasvit", NASVIT), archs("w3")), batch(8)
    for n in range(2):
        trainer.step(n, own)
    memory = peak_mib()
    figures = beside(lambda: trainer.step(50, own), repeats=5)
    report(
        "W3 nasvit-released, a whole training step",
        **figures,
        peak_mib=memory,
        released={"ratio": 19.8, "peak_mib": 5763},
        target={"ratio": 10, "peak_mib": 2881},
    )


def sandwich() -> None:
    """One step of the supernet for all four; a step of its own for each of the extracted networks. Both with AdamW."""
    recipe = resolve("s3", ["watch.conflicts=0", "train.amp=off", "train.drop_path=0"])
    space = space_of(recipe)
    chosen = [space.largest(), space.smallest(), *space.sample(2, seed=0)]
    trainer, own = fixed(recipe, chosen), batch(8)
    models = [trainer.net.extract(a) for a in chosen]
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-4, fused=True) for m in models]

    def apart() -> None:
        for model, optimizer in zip(models, optimizers, strict=True):
            model.zero_grad()
            soft_loss(model(own.x), own.target).backward()
            optimizer.step()

    ratio, together, alone = in_turn(lambda: trainer.step(50, own), apart)
    report(
        "sandwich step of s3-initial against its four extracted networks",
        ratio=ratio,
        seconds=together,
        apart=alone,
        target={"ratio": 1.1},
    )


def projection() -> None:
    steps = {}
    for rule in ("project", "sum"):
        steps[rule] = fixed(resolve("nasvit", [*NASVIT, f"gradients.rule={rule}"]), archs("w3"))
    own = batch(8)
    ratio, with_it, without = in_turn(lambda: steps["project"].step(50, own), lambda: steps["sum"].step(50, own))
    report("projection of gradients, W3", overhead=ratio - 1, seconds=with_it, summed=without, target={"overhead": 0.1})


def in_turn(first, second, repeats: int = 5) -> tuple[float, float, float]:  # type: ignore[no-untyped-def]
    """The median ratio of two works done in turn, and their median times."""
    times: list[tuple[float, float]] = []
    for n in range(repeats + 1):
        row = []
        for work in (first, second):
            start = time.perf_counter()
            work()
            row.append(time.perf_counter() - start)
        if n:
            times.append((row[0], row[1]))
    return (
        statistics.median(a / b for a, b in times),
        statistics.median(a for a, _ in times),
        statistics.median(b for _, b in times),
    )


def waiting() -> None:
    for name in ("s3-laptop", "vitas-twins-laptop"):
        recipe = resolve(name)
        space = space_of(recipe)
        found = data.load("digits", recipe.data, space.img_size)
        trainer = build_trainer(recipe, space, found.classes, 100, 20, World())
        batches = data.train_batches(
            found.train, recipe.data, recipe.mix, space.img_size, seed=0, epoch=0, batch_size=64
        )
        start = time.perf_counter()
        with closing(batches):
            for n, own in enumerate(batches):
                trainer.step(n, own)
        taken = time.perf_counter() - start
        report(f"waiting for pictures, {name} on digits", idle=batches.waited / taken, seconds=taken)


WORKS = {"nasvit": nasvit, "sandwich": sandwich, "projection": projection, "pictures": waiting}

if __name__ == "__main__":
    for word in sys.argv[1:] or WORKS:
        WORKS[word]()
