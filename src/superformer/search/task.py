"""What a search is made of: a run's supernet, the problem and its costs, the method.

Limits that no architecture comes near are refused at once, by the smallest and the largest network: measuring a latency
table takes much longer."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superformer.cost.latency import Turns, measure_in_turn
from superformer.cost.latency_table import LatencyError, LatencyTable
from superformer.cost.memory import peak_memory
from superformer.cost.memory_table import MemoryTable
from superformer.cost.runtimes import measuring_device
from superformer.errors import InfeasibleError
from superformer.families.network import Network
from superformer.progress import Tell
from superformer.recipes.searching import Options, method_with_changes
from superformer.runs import Run
from superformer.runs.devices import cost_names, has_own_name, imported_costs, of_device
from superformer.runs.processes import World
from superformer.runs.storage import load_supernet
from superformer.search.methods import Method, method
from superformer.search.problem import Floats, Objective, Problem, exact_costs, predicted_costs
from superformer.space import Genes
from superformer.space.sampling import EXACT, Limits, say_limits

APART, FASTER, SECONDS = 2.0, 30.0, 0.2
"""How many times beyond the smallest and the largest network a limit lies that is refused here (whether nearer ones can
be met, `superformer.space.sampling` finds out); how many times as fast as torch itself no runtime is; for measuring."""


@dataclass(frozen=True)
class Task:
    run: Run
    net: Network
    problem: Problem
    method: Method
    options: Options
    settings: dict[str, Any]
    """What the history and ``front.json`` tell of the search."""
    latency: LatencyTable | None
    throughput: LatencyTable | None
    """Of the time of large batches."""

    @staticmethod
    def of(
        run: Run, limits: Limits, which: str | None, options: Options, changes: Mapping[str, Any], tell: Tell
    ) -> Task:
        """Everything but the pictures; unknown words and limits that nobody can meet are refused here."""
        recipe = run.recipe()
        own = method_with_changes(recipe.search, which, changes)
        net = load_supernet(run.supernet_file)
        sought, world = options.sought(limits, cost_names(run)), World.join()
        own_costs = imported_costs(run, {*sought, *limits})
        predicted = tuple(name for name in ("latency", "throughput") if name in {*sought, *limits})
        elsewhere = of_device(run, options, predicted)
        options = elsewhere or options
        # resolved once: what is measured is measured where candidates run
        device = options.device if elsewhere else measuring_device(options.device, world.device, options.runtime)
        here = options.model_copy(update={"device": device})
        if world.first:
            refuse_unreachable(run, net, limits, here)
        asked = {*sought, *limits}
        latency = latency_table(run, net, here, options.batch, tell) if "latency" in asked else None
        batch = options.throughput_batch
        throughput = latency_table(run, net, here, batch, tell) if "throughput" in asked else None
        memory = None
        if "memory" in asked:
            tell("following networks through a pass to count their memory")
            memory = MemoryTable.build(net.space, net.num_classes, run.input_size(), seed=options.seed)

        def costs(genes: Genes) -> dict[str, Floats]:
            tables = predicted_costs(net.space, genes, latency, throughput, memory, own_costs)
            return exact_costs(net.space, genes, net.num_classes) | tables

        objectives = tuple(map(Objective.of, sought))
        deepest = options.depth == "budget"
        units = {name: table.unit for name, table in own_costs.items()}
        more: dict[str, Any] = {"deepest": deepest, "units": units}
        problem = Problem(net.space, objectives, costs, dict(limits), options.seed, net.num_classes, **more)
        settings = {
            "method": which or recipe.search.method,
            "settings": own.model_dump(mode="json"),
            "options": options.model_dump(mode="json"),
            **({"device": device} if latency or throughput else {}),
            "objectives": list(sought),
            **({"units": units} if units else {}),
            "limits": {name: [v if math.isfinite(v) else None for v in ends] for name, ends in limits.items()},
        }
        return Task(run, net, problem, method(problem, own), options, settings, latency, throughput)


def refuse_unreachable(run: Run, net: Network, limits: Limits, options: Options) -> None:
    """Raise `InfeasibleError` where a limit is out of reach. What a table will tell soon is not measured."""
    exact = {name: ends for name, ends in limits.items() if name in EXACT}
    Problem.of(net.space, ("accuracy",), exact, options.seed, net.num_classes).check()
    batches = {"latency": options.batch, "throughput": options.throughput_batch}
    measured = [name for name in batches if _table_file(run, options, batches[name]).exists()]
    asked = [name for name in (*batches, "memory") if name in limits and name not in measured]
    if not asked:
        return
    models = [net.extract(arch).eval() for arch in (net.space.smallest(), net.space.largest())]
    img_size = run.input_size()
    for runtime, apart in {"eager": FASTER, options.runtime: APART}.items():
        for name in asked:
            if name == "memory":
                values = [float(peak_memory(model, img_size)) for model in models]
            else:
                batch, how = batches[name], Turns(threads=options.threads, seconds=SECONDS, device=options.device)
                times = measure_in_turn(models, img_size, batch=batch, runtime=runtime, **how)
                values = [t.median if name == "latency" else batch / t.median for t in times]
            low, high = limits[name]
            if high < min(values) / apart or low > max(values) * apart:
                reached = f"{say_limits({name: (min(values), max(values))})}, by the smallest and the largest network"
                if runtime != options.runtime:
                    reached += f" in torch; runtime={options.runtime} is not {apart:.0f} times as fast"
                asked_for = f"no architecture of {net.space.name} has {say_limits({name: limits[name]})}"
                raise InfeasibleError(f"{asked_for}; reached: {reached}")


def _table_file(run: Run, options: Options, batch: int) -> Path:
    """Where a run keeps the latency table of a batch."""
    return run.folder / LatencyTable.file_name(options.runtime, options.threads, batch, options.device or "cpu")


def latency_table(run: Run, net: Network, options: Options, batch: int, tell: Tell) -> LatencyTable:
    """The run's latency table, measured now if there is none that holds here. The first process measures for all."""
    path, world = _table_file(run, options, batch), World.join()
    how: dict[str, Any] = {"threads": options.threads, "runtime": options.runtime, "batch": batch}
    how["device"] = options.device
    load = functools.partial(LatencyTable.load, path, **how)
    found: LatencyTable | None = None
    if world.first and path.exists():
        try:
            found = load()
        except LatencyError as error:
            if has_own_name(options.device):
                raise
            tell(f"{error}")
    if found is not None and found.imported:
        tell(f"times of {found.device} ({found.machine}), imported; networks cannot be measured again here")
    if world.first and found is None:
        pictures = f"{batch} picture{'s' * (batch > 1)}"
        on = "" if options.device == "cpu" else f" on {options.device}"
        tell(f"measuring the time that networks take for {pictures}{on}, for about {options.table_seconds:g} s")
        how |= {"seconds": options.table_seconds, "seed": options.seed}
        found = LatencyTable.build(net.space, net.num_classes, run.input_size(), **how)
        found.save(path)
        off = f"off by {100 * found.fit.median_error:.1f} % (median), rank correlation {found.fit.rank:.2f}"
        tell(f"predicted time of networks it did not see: {off}")
    world.wait()
    return load()
