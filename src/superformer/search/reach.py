"""Limits that no architecture comes near, refused at once: measuring a table of times takes much longer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from superformer.cost.latency import measure_in_turn
from superformer.cost.memory import peak_memory
from superformer.errors import InfeasibleError
from superformer.families.base import Network
from superformer.search.options import Options
from superformer.search.problem import EXACT, Problem, within

APART = 2.0
"""How many times beyond the smallest and the largest network a limit lies that is refused here. Others may be somewhat cheaper than the
smallest; whether limits that are nearer can be met, `superformer.search.problem` finds out."""
FASTER = 30.0
"""No runtime is so many times as fast as torch itself, which can run a network at once: limits that are further off are refused by that."""
SECONDS = 0.2
"""To measure each of the two."""

Ends = tuple[float, float]


def table_file(folder: Path, options: Options, batch: int) -> Path:
    """Where a run keeps the table of the times of a batch."""
    return folder / f"latency-{options.runtime}-{options.threads}-{batch}.json"


def refuse(folder: Path, net: Network, img_size: int, limits: Mapping[str, Ends], options: Options) -> None:
    """Raise `InfeasibleError` where a limit is out of reach. What a table will tell soon is not measured."""
    exact = {name: ends for name, ends in limits.items() if name in EXACT}
    Problem.of(net.space, ("accuracy",), exact, options.seed, net.num_classes).check()
    batches = {"latency": options.batch, "throughput": options.throughput_batch, "memory": 1}
    asked = [n for n in batches if n in limits and (n == "memory" or not table_file(folder, options, batches[n]).exists())]
    if not asked:
        return
    models = [net.extract(arch).eval() for arch in (net.space.smallest(), net.space.largest())]
    for runtime, apart in {"eager": FASTER, options.runtime: APART}.items():
        for name in asked:
            if name == "memory":
                values = [float(peak_memory(model, img_size)) for model in models]
            else:
                times = measure_in_turn(models, img_size, batch=batches[name], threads=options.threads, runtime=runtime, seconds=SECONDS)
                values = [t.median if name == "latency" else batches[name] / t.median for t in times]
            low, high = limits[name]
            if high < min(values) / apart or low > max(values) * apart:
                reached = f"{within({name: (min(values), max(values))})}, by the smallest and the largest network"
                if runtime != options.runtime:
                    reached += f" in torch; runtime={options.runtime} is not {apart:.0f} times as fast"
                raise InfeasibleError(f"no architecture of {net.space.name} has {within({name: limits[name]})}; reached: {reached}")
