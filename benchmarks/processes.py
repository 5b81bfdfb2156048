"""Pictures a second that training steps take on one and on two processes of one thread each; one JSON line a recipe.

python benchmarks/processes.py [RECIPE ...] [key=value ...]

Two processes take turns at it, so that the machine's drift is in no ratio: one alone (the other waits); both at the
same time without knowing of each other, which is the most that the machine itself gives; both together, with the batch
of one process each, and with half of it each. All take the same steps, of the same sub-networks, with pictures that
are ready. ``waiting``: shares of a step of both together in which a process waits for gradients and for other messages
(batch norms' statistics, the loss)."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from common import report

from superformer import data
from superformer.recipes import resolve, space_of
from superformer.runs.processes import Travelling, World
from superformer.train.preparation import build_trainer

RECIPES = ("nasvit-laptop", "vitas-twins-laptop")
ROUNDS, SECONDS = 5, 5.0
STEPS = 1000
"""Of the training that the steps are taken from, evenly."""


def main() -> None:
    words = sys.argv[1:]
    recipes = [word for word in words if "=" not in word] or list(RECIPES)
    changes = [word for word in words if "=" in word]
    for name in recipes:
        start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__, "--part", name]
        subprocess.run([sys.executable, *start, *changes], env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)


class Waiting:
    """Seconds spent in what waits for the other process."""

    def __init__(self) -> None:
        self.gradients = self.others = 0.0
        arrive, add_up = Travelling.arrive, World.add_up

        def arrived(own: Travelling) -> None:
            start = time.perf_counter()
            arrive(own)
            self.gradients += time.perf_counter() - start

        def added(own: World, x: torch.Tensor) -> None:
            start = time.perf_counter()
            add_up(own, x)
            self.others += time.perf_counter() - start

        Travelling.arrive, World.add_up = arrived, added  # type: ignore[method-assign]


def steps_of(name: str, changes: list[str], world: World, share: float) -> tuple[Callable[[int], object], int]:
    """A training step by its number, and the pictures of it in this process; ``share``: of the recipe's batch, here."""
    recipe = resolve(name, changes)
    batch = round(recipe.train.batch_size * share) * world.size
    recipe = resolve(name, [*changes, f"train.batch_size={batch}"])
    pictures = data.load("digits", recipe.data, recipe.img_size or space_of(recipe).img_size)
    trainer = build_trainer(recipe, space_of(recipe), pictures.classes, STEPS, STEPS, world)
    given = data.train_batches(
        pictures.train, recipe.data, recipe.mix, trainer.img_size, seed=0, epoch=0, batch_size=batch,
        rank=world.rank, world=world.size,
        patch_grid=trainer.net.patch_grid(trainer.img_size) if recipe.mix.patches != "off" else None,
    )  # fmt: skip
    with given:
        one = next(given)
    return lambda n: trainer.step(n, one), batch // world.size


def part(name: str, changes: list[str]) -> None:
    """What each of the two processes does."""
    torch.set_num_threads(1)
    world, load, waiting = World.join(), os.getloadavg()[0], Waiting()
    alone, together, halves = (steps_of(name, changes, w, s) for w, s in ((World(), 1), (world, 1), (world, 0.5)))
    speeds: dict[str, list[float]] = {"alone": [], "apart": [], "together": [], "halves": []}
    shares: dict[str, list[float]] = {"gradients": [], "others": []}

    def run(ways: tuple[Callable[[int], object], int], count: int, here: bool = True) -> tuple[float, float]:
        """Pictures a second of this process, and the seconds it took."""
        world.wait()
        begin = time.perf_counter()
        for k in range(count if here else 0):
            ways[0](STEPS * (2 * k + 1) // (2 * count))
        seconds = time.perf_counter() - begin
        world.wait()
        return ways[1] * count / seconds if here else 0.0, seconds

    for ways in (alone, together, halves):
        run(ways, 4)
    _, seconds = run(alone, 8)
    count = max(8, round(world.first_says(8 * SECONDS / seconds)))
    for _ in range(ROUNDS):
        for way, steps in zip(speeds, (alone, alone, together, halves), strict=True):
            waiting.gradients = waiting.others = 0.0
            speed, seconds = run(steps, count, world.first or way != "alone")
            if way == "together":
                shares["gradients"].append(waiting.gradients / seconds)
                shares["others"].append(waiting.others / seconds)
            total = torch.tensor([speed], dtype=torch.float64)
            dist.all_reduce(total)
            speeds[way].append(float(total))
    if world.first:
        ratios = {way: [b / a for a, b in zip(speeds["alone"], speeds[way], strict=True)] for way in speeds}
        report(
            f"training {name} on two processes",
            pictures_per_second={way: statistics.median(found) for way, found in speeds.items()},
            ratio={way: statistics.median(found) for way, found in ratios.items()},
            ratios=ratios["together"],
            waiting={what: statistics.median(found) for what, found in shares.items()},
            steps=count,
            batch=alone[1],
            load=[load, os.getloadavg()[0]],
            target={"ratio of together": 1.7},
        )
    world.leave()


if __name__ == "__main__":
    if "--part" in sys.argv:
        at = sys.argv.index("--part")
        part(sys.argv[at + 1], sys.argv[at + 2 :])
    else:
        main()
