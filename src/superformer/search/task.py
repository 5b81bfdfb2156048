"""A search, made ready: the supernet, its pictures, the problem and the method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from superformer.cost import cost
from superformer.cost.latency_table import LatencyError, LatencyTable
from superformer.cost.memory_table import MemoryTable
from superformer.families.base import Network
from superformer.run import Run
from superformer.search.method import Method, method
from superformer.search.options import Options
from superformer.search.problem import Floats, Objective, Problem
from superformer.search.reach import refuse, table_file
from superformer.search.settings import chosen
from superformer.space import Genes
from superformer.telling import Tell
from superformer.train.world import World
from superformer.trained import load_supernet

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


def ready(run: Run, limits: Limits, which: str | None, options: Options, changes: Mapping[str, Any], tell: Tell) -> Task:
    """Everything but the pictures; unknown words and limits that nobody can meet are refused here."""
    recipe = run.recipe()
    own = chosen(recipe.search, which, changes)
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
        found: dict[str, Floats] = {"macs": counted.macs.astype(np.float64), "params": counted.params.astype(np.float64)}
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
    """The run's table of latencies, measured now if there is none that holds here. The first process measures for all."""
    path = table_file(run.folder, options, batch)
    world = World.join()
    if world.first and (found := _stored(path, options, batch, tell)) is None:
        tell(f"measuring the time that networks take for {batch} picture{'s' * (batch > 1)}, for about {options.table_seconds:g} s")
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
