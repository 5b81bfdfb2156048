"""A search, made ready: the supernet, its pictures, the problem and the method."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from superformer.cost import cost
from superformer.cost.latency_table import LatencyError, LatencyTable
from superformer.families.base import Network
from superformer.run import Run
from superformer.search.method import Method, method
from superformer.search.options import Options
from superformer.search.problem import Floats, Objective, Problem
from superformer.search.settings import resolve
from superformer.space import Genes
from superformer.trained import load_supernet

Limits = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Task:
    run: Run
    net: Network
    problem: Problem
    method: Method
    settings: dict[str, Any]
    table: LatencyTable | None
    weights: str
    """The fingerprint of the supernet."""


def ready(run: Run, limits: Limits, which: str | None, options: Options, changes: Mapping[str, Any], tell: Callable[[str], None]) -> Task:
    """Everything but the pictures; unknown words and limits that nobody can meet are refused here."""
    recipe, facts = run.recipe(), run.facts()
    own = recipe.search.model_dump() if which in (None, recipe.search.method) else {}
    chosen = resolve(which or recipe.search.method, {**own, **changes})
    net = load_supernet(run.supernet_file)
    sought = options.sought(limits)
    table = _table(run, net, options, facts["img_size"], tell) if "latency" in {*sought, *limits} else None

    def costs(genes: Genes) -> dict[str, Floats]:
        counted = cost(net.space, genes, net.num_classes)
        found: dict[str, Floats] = {"macs": counted.macs.astype(np.float64), "params": counted.params.astype(np.float64)}
        return found if table is None else {**found, "latency": table.latency(net.space, genes)}

    problem = Problem(net.space, tuple(map(Objective.of, sought)), costs, dict(limits), options.seed, net.num_classes)
    settings = {
        "method": which or recipe.search.method,
        "settings": chosen.model_dump(mode="json"),
        "options": options.model_dump(mode="json"),
        "objectives": list(sought),
        "limits": {name: [v if math.isfinite(v) else None for v in ends] for name, ends in limits.items()},
    }
    return Task(run, net, problem, method(problem, chosen), settings, table, fingerprint(run))


def fingerprint(run: Run) -> str:
    """Of a supernet's file."""
    with open(run.supernet_file, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _table(run: Run, net: Network, options: Options, img_size: int, tell: Callable[[str], None]) -> LatencyTable:
    """The run's table of latencies, measured now if there is none that holds here."""
    path = run.folder / f"latency-{options.runtime}-{options.threads}-{options.batch}.json"
    if path.exists():
        try:
            return LatencyTable.load(path, threads=options.threads, runtime=options.runtime, batch=options.batch)
        except LatencyError as error:
            tell(f"{error}")
    tell(f"measuring the latency of networks for about {options.table_seconds:g} s")
    table = LatencyTable.build(
        net.space, net.num_classes, img_size, threads=options.threads, runtime=options.runtime, batch=options.batch,
        seconds=options.table_seconds, seed=options.seed,
    )  # fmt: skip
    table.save(path)
    tell(
        f"predicted latency of networks it did not see: off by {100 * table.fit.median_error:.1f} % (median), "
        f"rank correlation {table.fit.rank:.2f}"
    )
    return table
