"""Limits that no architecture comes near, refused at once: measuring a table of times takes much longer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from superformer.cost import cost
from superformer.cost.latency import measure_in_turn
from superformer.cost.latency_table import LatencyError, LatencyTable
from superformer.cost.memory import peak_memory
from superformer.cost.memory_table import MemoryTable
from superformer.errors import InfeasibleError
from superformer.families.network import Network
from superformer.progress import Tell
from superformer.recipes.search import Options, method_with_changes
from superformer.runs.folder import Run
from superformer.runs.processes import World
from superformer.runs.storage import load_supernet
from superformer.search.methods import Method, method
from superformer.search.problem import EXACT, Floats, Objective, Problem, within
from superformer.space import Genes

APART = 2.0
"""How many times beyond the smallest and the largest network a limit lies that is refused here. Others may be somewhat
cheaper than the smallest; whether limits that are nearer can be met, `superformer.search.problem` finds out."""
FASTER = 30.0
"""No runtime is so many times as fast as torch itself, which can run a network at once: limits that are further off are
refused by that."""
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
    asked = [
        n for n in batches if n in limits and (n == "memory" or not table_file(folder, options, batches[n]).exists())
    ]
    if not asked:
        return
    models = [net.extract(arch).eval() for arch in (net.space.smallest(), net.space.largest())]
    for runtime, apart in {"eager": FASTER, options.runtime: APART}.items():
        for name in asked:
            if name == "memory":
                values = [float(peak_memory(model, img_size)) for model in models]
            else:
                times = measure_in_turn(
                    models, img_size, batch=batches[name], threads=options.threads, runtime=runtime, seconds=SECONDS
                )
                values = [t.median if name == "latency" else batches[name] / t.median for t in times]
            low, high = limits[name]
            if high < min(values) / apart or low > max(values) * apart:
                reached = f"{within({name: (min(values), max(values))})}, by the smallest and the largest network"
                if runtime != options.runtime:
                    reached += f" in torch; runtime={options.runtime} is not {apart:.0f} times as fast"
                raise InfeasibleError(
                    f"no architecture of {net.space.name} has {within({name: limits[name]})}; reached: {reached}"
                )


# A search, made ready: the supernet, its pictures, the problem and the method.


Limits = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Task:
    run: Run
    net: Network
    problem: Problem
    method: Method
    options: Options
    settings: dict[str, Any]
    table: LatencyTable | None
    """Of latencies."""
    throughput: LatencyTable | None
    """Of the time of large batches."""


def ready(
    run: Run, limits: Limits, which: str | None, options: Options, changes: Mapping[str, Any], tell: Tell
) -> Task:
    """Everything but the pictures; unknown words and limits that nobody can meet are refused here."""
    recipe = run.recipe()
    own = method_with_changes(recipe.search, which, changes)
    net = load_supernet(run.supernet_file)
    sought = options.sought(limits)
    if World.join().first:
        refuse(run.folder, net, run.facts()["img_size"], limits, options)
    asked = {*sought, *limits}
    table = _table(run, net, options, options.batch, tell) if "latency" in asked else None
    large = _table(run, net, options, options.throughput_batch, tell) if "throughput" in asked else None
    memory = _memory(run, net, options, tell) if "memory" in asked else None

    def costs(genes: Genes) -> dict[str, Floats]:
        counted = cost(net.space, genes, net.num_classes)
        found: dict[str, Floats] = {
            "macs": counted.macs.astype(np.float64),
            "params": counted.params.astype(np.float64),
        }
        if table is not None:
            found["latency"] = table.latency(net.space, genes)
        if large is not None:
            found["throughput"] = large.batch / large.latency(net.space, genes)
        if memory is not None:
            found["memory"] = memory.memory(genes)
        return found

    problem = Problem(net.space, tuple(map(Objective.of, sought)), costs, dict(limits), options.seed, net.num_classes)
    settings = {
        "method": which or recipe.search.method,
        "settings": own.model_dump(mode="json"),
        "options": options.model_dump(mode="json"),
        "objectives": list(sought),
        "limits": {name: [v if math.isfinite(v) else None for v in ends] for name, ends in limits.items()},
    }
    return Task(run, net, problem, method(problem, own), options, settings, table, large)


def _memory(run: Run, net: Network, options: Options, tell: Tell) -> MemoryTable:
    tell("following networks through a pass to count their memory")
    return MemoryTable.build(net.space, net.num_classes, run.facts()["img_size"], seed=options.seed)


def _table(run: Run, net: Network, options: Options, batch: int, tell: Tell) -> LatencyTable:
    """The run's table of latencies, measured now if there is none that holds here. The first process measures for
    all."""
    path = table_file(run.folder, options, batch)
    world = World.join()
    if world.first and (found := _stored(path, options, batch, tell)) is None:
        tell(
            f"measuring the time that networks take for {batch} picture{'s' * (batch > 1)}, for about {options.table_seconds:g} s"
        )
        found = LatencyTable.build(
            net.space, net.num_classes, run.facts()["img_size"], threads=options.threads, runtime=options.runtime, batch=batch,
            seconds=options.table_seconds, seed=options.seed,
        )  # fmt: skip
        found.save(path)
        tell(
            f"predicted time of networks it did not see: off by {100 * found.fit.median_error:.1f} % (median), "
            f"rank correlation {found.fit.rank:.2f}"
        )
    world.wait()
    return LatencyTable.load(path, threads=options.threads, runtime=options.runtime, batch=batch)


def _stored(path: Path, options: Options, batch: int, tell: Tell) -> LatencyTable | None:
    """A table that was measured before, if it holds here."""
    if not path.exists():
        return None
    try:
        return LatencyTable.load(path, threads=options.threads, runtime=options.runtime, batch=batch)
    except LatencyError as error:
        tell(f"{error}")
        return None
