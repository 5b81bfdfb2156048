"""The memory that a plan predicts for a training step, beside what the same step takes on this processor: the peak of a
fresh process above what it held before the network was there. One JSON line a recipe. In float32, unless --set
train.amp=bfloat16 says otherwise: for bfloat16 the processor's library keeps memory that no tensor has.

python benchmarks/planned_memory.py [--batch 8] [recipe ...]"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path

RETURNS = {
    "SUPERFORMER_RETURN_MEMORY": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_TOP_PAD_": "0", "MALLOC_ARENA_MAX": "1",
}  # fmt: skip
"""With these the C library returns what is freed, so that a process holds what is alive."""
RECIPES = ("s3", "vitas-v1", "vitas-deit", "vitas-twins", "vit-resnas", "nasvit")
CLASSES, STEPS, PER_EPOCH = 1000, 1000, 100


def resident(name: str) -> int:
    """Bytes of /proc/self/status: VmRSS now, VmHWM the most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def measure(name: str, words: list[str], batch: int) -> None:
    import torch
    from common import report

    from superformer.planning import real_step, traced
    from superformer.recipes import resolve, space_of
    from superformer.runs.processes import World

    def take(own: str, changes: list[str], number: int) -> None:
        recipe = resolve(own, changes)
        trainer, batch = real_step(recipe, space_of(recipe), CLASSES, STEPS, PER_EPOCH, World())
        for p in trainer.parameters:  # in the end every weight has had its turn, and has its moments
            p.grad = torch.zeros_like(p)
            trainer.optimizer.step()
            p.grad = None
        for _ in range(2):
            trainer.step(number, batch)

    many = resolve(name, words).sampling
    if many.rule == "multi":  # a picture for each network
        words = [*words, f"train.batch_size={max(batch, many.networks)}"]
    recipe = resolve(name, words)
    planned = traced(recipe, space_of(recipe), CLASSES, STEPS, PER_EPOCH, elsewhere=False)
    take(
        name.removesuffix("-laptop") + "-laptop", [*words, "train.batch_size=16", "loss.teachers=[]"], 0
    )  # loads the libraries
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the most so far is what there is now
    start = resident("VmRSS")
    take(name, words, planned.number)
    real = resident("VmHWM") - start
    memory = {k: round(v / 1e6, 1) for k, v in planned.memory.items()}
    report("planned-memory", recipe=name, batch=recipe.train.batch_size, predicted=memory["total"], real=real / 1e6,
           ratio=planned.memory["total"] / real, parts=memory)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--set", nargs="*", default=[], help="further words of the recipe")
    parser.add_argument("--here", action="store_true", help="in this process")
    given = parser.parse_args()
    words = [f"train.batch_size={given.batch}", "train.amp=off", *given.set]
    if given.here:
        measure(given.recipes[0], words, given.batch)
        return 0
    shared = [sys.executable, __file__, "--here", "--batch", str(given.batch)]
    own = ["--set", *given.set] if given.set else []
    runs = [subprocess.run([*shared, name, *own], env=os.environ | RETURNS) for name in given.recipes]
    return max(run.returncode for run in runs)


if __name__ == "__main__":
    sys.exit(main())
