"""What each kernel is worth: a training step and an evaluation with all kernels (auto), with one of them plain, and
with all of them plain, side by side in one process.

    python benchmarks/kernels.py [workload ...] [--repeats 5] [--kernels attention,linear] [--limits IN_CACHE,APART]

``worth`` is by how many percent a step takes longer without it (the median over rounds; each time is set against those
with all kernels right before and right after): below 3 % in every workload a kernel should go. Only the kernels that a
workload uses are tried. With ``--limits`` (all, or names): by how many percent it takes longer with half and with
twice of each size in `superformer.kernels.limits`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import torch
from common import pictures, report

import superformer as sf
from superformer.kernels import limits

WORKLOADS: dict[str, tuple[str, int, int, int]] = {  # space, pictures, pixels, architectures in the batch
    "nasvit": ("nasvit", 8, 192, 1),
    "s3": ("s3-initial", 4, 224, 1),
    "twins": ("vitas-twins-small", 8, 224, 1),
    "autoformer": ("autoformer-tiny", 8, 224, 1),
    "vit-resnas": ("vit-resnas-tiny", 32, 224, 16),
    "resnet": ("vitas-resnet50", 8, 224, 1),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kernels", default="")
    parser.add_argument("--limits", default="")
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
            own = [name for name in names if name in used_by(run)]
            forms: dict[str, Callable[[], AbstractContextManager[None]]] = {"all": lambda: sf.kernels.using("plain")}
            forms |= {name: partial(sf.kernels.using, "plain", name) for name in own}
            if asked.limits:
                own = asked.limits.split(",")
                sizes = [n for n in vars(limits) if n.isupper() and (n in own or asked.limits == "all")]
                forms = {f"{name} x {by}": partial(changed, name, by) for name in sizes for by in (0.5, 2)}
            usual, worth = [timed(run)], dict[str, list[float]]()
            for _ in range(asked.repeats):
                for form, context in forms.items():
                    with context():
                        taken = timed(run)
                    usual.append(timed(run))
                    worth.setdefault(form, []).append(2 * taken / (usual[-2] + usual[-1]) - 1)
            found = {form: round(100 * statistics.median(t), 1) for form, t in worth.items()}
            report(f"kernels, {workload}, {what}", seconds=statistics.median(usual), worth=found)


def timed(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def used_by(run: Callable[[], None]) -> set[str]:
    """The kernels whose fast form this runs."""
    seen, before = set[str](), {name: kernel.fast for name, kernel in sf.kernels.KERNELS.items()}

    def noting(name: str) -> Callable[..., Any]:
        def noted(*args: Any, **words: Any) -> Any:
            seen.add(name)
            return before[name](*args, **words)

        return noted

    for name, kernel in sf.kernels.KERNELS.items():
        kernel.fast = noting(name)
    try:
        run()
    finally:
        for name, kernel in sf.kernels.KERNELS.items():
            kernel.fast = before[name]
    return seen


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
