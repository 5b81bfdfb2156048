"""What each kernel is worth: a training step and an evaluation with all kernels (auto), with one of them plain, and
with all of them plain, side by side in one process.

    python benchmarks/kernels.py [workload ...] [--repeats 5] [--kernels attention,linear] [--limits]

``worth`` is by how many percent a step takes longer without it: below 3 % in every workload a kernel should go. With
``--limits``: by how many percent it takes longer with half and with twice of each size in `superformer.kernels.limits`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType

import torch
from common import pictures, report

import superformer as sf
from superformer.kernels import limits

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
    parser.add_argument("--limits", action="store_true")
    asked = parser.parse_args()
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
            forms: dict[str, AbstractContextManager[None]]
            taken: dict[str, list[float]] = {}
            for n in range(asked.repeats + 1):
                forms = {"auto": nullcontext(), "all": sf.kernels.using("plain")}
                forms |= {name: sf.kernels.using("plain", name) for name in names}
                if asked.limits:
                    sizes = [name for name in vars(limits) if name.isupper()]
                    forms = {"auto": nullcontext()}
                    forms |= {f"{name} x {by}": changed(name, by) for name in sizes for by in (0.5, 2)}
                for form, context in forms.items():
                    with context:
                        start = time.perf_counter()
                        run()
                        if n:  # the first time warms up
                            taken.setdefault(form, []).append(time.perf_counter() - start)
            usual = statistics.median(taken["auto"])
            worth = {form: 100 * (statistics.median(t) / usual - 1) for form, t in taken.items() if form != "auto"}
            report(f"kernels, {workload}, {what}", seconds=usual, worth={k: round(v, 1) for k, v in worth.items()})


@contextmanager
def changed(name: str, by: float) -> Iterator[None]:
    """A limit of another size, in all modules that know it."""
    before = getattr(limits, name)
    modules = [m for m in vars(sf.kernels).values() if isinstance(m, ModuleType) and hasattr(m, name)]
    for module in modules:
        setattr(module, name, max(1, int(before * by)))
    try:
        yield
    finally:
        for module in modules:
            setattr(module, name, before)


if __name__ == "__main__":
    main()
