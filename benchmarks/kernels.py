"""What each kernel is worth: a training step and an evaluation with all kernels (auto), with one of them plain, and with
all of them plain, side by side in one process.

    python benchmarks/kernels.py [workload ...] [--repeats 5] [--kernels attention,linear]

``worth`` is by how many percent a step takes longer without it: below 3 % in every workload a kernel should go.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from common import pictures, report

import superformer as sf

WORKLOADS: dict[str, tuple[str, int, int, int]] = {  # space, pictures, pixels, architectures in the batch
    "nasvit": ("nasvit", 16, 192, 1),
    "s3": ("s3-initial", 8, 224, 1),
    "twins": ("vitas-twins-small", 8, 224, 1),
    "autoformer": ("autoformer-tiny", 16, 224, 1),
    "vit-resnas": ("vit-resnas-tiny", 32, 224, 16),
    "resnet": ("vitas-resnet50", 8, 224, 1),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kernels", default="")
    asked = parser.parse_args()
    sf.kernels.keep_freed()
    names = [n for n in asked.kernels.split(",") if n] or list(sf.kernels.KERNELS)
    for workload in asked.workloads:
        space_name, batch, size, many = WORKLOADS[workload]
        space = sf.space(space_name)
        net, x, archs = sf.supernet(space, 100).train(), pictures(batch, size), space.sample(many, seed=0)

        def step(net=net, x=x, archs=archs) -> None:
            net.train().zero_grad()
            net(x, archs if len(archs) > 1 else archs[0]).square().sum().backward()

        @torch.no_grad()
        def evaluate(net=net, x=x, archs=archs) -> None:
            net.eval()(x, archs if len(archs) > 1 else archs[0])

        for what, run in (("step", step), ("evaluation", evaluate)):
            forms: dict[str, tuple[str, ...] | None] = {"auto": None, "all": ()} | {n: (n,) for n in names}
            taken: dict[str, list[float]] = {form: [] for form in forms}
            for n in range(asked.repeats + 1):
                for form, plain in forms.items():
                    seconds = timed(run, plain)
                    if n:  # the first time warms up
                        taken[form].append(seconds)
            usual = statistics.median(taken["auto"])
            worth = {form: 100 * (statistics.median(t) / usual - 1) for form, t in taken.items() if form != "auto"}
            report(f"kernels, {workload}, {what}", seconds=usual, worth={k: round(v, 1) for k, v in worth.items()})


def timed(run: Callable[[], None], plain: tuple[str, ...] | None) -> float:
    """Seconds of one call: as it is (None), with these kernels plain, or (none named) with all of them plain."""
    if plain is None:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    with sf.kernels.using("plain", *plain):
        return timed(run, None)


if __name__ == "__main__":
    main()
