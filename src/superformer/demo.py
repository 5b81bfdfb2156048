"""Everything on the embedded digits, from an evolved space to a report: what ``superformer demo`` does."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from superformer import files
from superformer.analysis.bench import bench
from superformer.cost import cost
from superformer.cost.latency import measure_in_turn
from superformer.cost.runtimes import measuring_device
from superformer.cost.scaling import origins, scaled
from superformer.draw.evolution import draw
from superformer.errors import InfeasibleError
from superformer.interop.export import export
from superformer.progress import chapter, teller
from superformer.recipes import resolve
from superformer.report import write
from superformer.runs import Run, stored
from superformer.runs.processes import device_here
from superformer.runs.storage import load_supernet
from superformer.search import search
from superformer.search.space_evolution import evolve_space
from superformer.space import Space
from superformer.space.arch import Arch
from superformer.train.retrain import network_to_export, retrain


@dataclass(frozen=True)
class Pace:
    """What the demo takes its time for: epochs of each supernet and of each network by itself (from scratch and tuned),
    networks drawn of a sub-space, rounds of search, seconds of measuring latencies, networks of each kind that are
    compared."""

    epochs: float = 8
    scratch: float = 8
    finetuned: float = 6
    samples: int = 6
    generations: int = 6
    table_seconds: float = 6.0
    networks: int = 3


def run(folder: str | Path, console: Console, pace: Pace = Pace()) -> Path:  # noqa: B008  # frozen
    """The whole way in a run folder; returns the report. Killed, the same call goes on."""
    begun, folder, tell = time.monotonic(), Path(folder), teller(console)
    with chapter(console, "1. Train a supernet, and evolve its space (S3)"):
        changes = ("evolve.rounds=1", f"evolve.samples={pace.samples}", f"train.epochs={pace.epochs}", "watch.every=5")
        evolve_space(resolve("demo-laptop", changes), "digits", folder, console=console, draw=draw)
    with chapter(console, "2. Search it, within limits on MACs and on latency measured here (NSGA-II)"):
        limits = _limits(Run.open(folder))
        tell(f"limits: {limits['macs'][1] / 1e6:.2f} M MACs, {1e3 * limits['latency'][1]:.2f} ms")
        settings = {"generations": pace.generations, "table_seconds": pace.table_seconds}
        found = search(folder, limits, None, settings, console)
    with chapter(console, "3. Train by themselves what was found, and hand-made and random networks of the same MACs"):
        _compare(folder, found, pace, console)
    with chapter(console, "4. Export the network, and measure it"):
        tell(str(export(network_to_export(folder), folder / "export" / "onnx", "onnx", console)))
        bench(str(folder), ("eager", "onnx"), which=("model", "largest"), batches=(1, 32), seconds=0.3, console=console)
    with chapter(console, "5. The report"):
        page = write(folder, console)
    tell(f"\nAll of it took {time.monotonic() - begun:.0f} s. Open {page} in a browser.")
    return page


def _limits(run: Run) -> dict[str, tuple[float, float]]:
    """The median MACs of the space, and the latency in the middle between its smallest and its largest network."""
    path = run.folder / "limits.json"
    if not path.exists():  # kept: measured again, a run that goes on would search within other limits
        space, net = run.space(), load_supernet(run.supernet_file)
        macs = float(np.median(cost(space, space.sample_genes(500, seed=0), num_classes=net.num_classes).macs))
        ends = [net.extract(arch).eval() for arch in (space.smallest(), space.largest())]
        device = measuring_device(None, device_here(), "eager")
        timings = measure_in_turn(ends, run.input_size(), seconds=1.0, device=device)
        latency = float(np.mean([timing.median for timing in timings]))
        files.write_object(path, {"macs": [0, macs], "latency": [0, latency]})
    return {name: (float(low), float(high)) for name, (low, high) in stored.read(path).items()}


def _compare(folder: Path, found: dict[str, Any], pace: Pace, console: Console) -> None:
    """Some networks of each kind, all trained from scratch alike; the best that was found also from the weights it
    inherits, last: it is the one that is handed over."""
    run, tell, home = Run.open(folder), teller(console), folder / "retrained"
    macs = next(row["macs"] for row in found["front"] if row["key"] == found["best"])
    space, classes = run.space(), len(run.facts()["classes"])
    home.mkdir(exist_ok=True)
    ways = list[tuple[str, str, str, float]]()
    for kind, drawn in (("hand-made", handmade(space, macs, classes)), ("random", _random(space, macs, classes))):
        for k, arch in enumerate(drawn[: pace.networks]):
            files.write(path := home / f"{kind}-{k + 1}.json", arch.to_json())
            ways.append((kind, str(path), "scratch", pace.scratch))
    inside = [row["key"] for row in found["front"] if row["key"] != found["best"] and row["macs"] <= 1.02 * macs]
    ways += [("found", key, "scratch", pace.scratch) for key in ["best", *inside[: pace.networks - 1]]]
    rows = []
    for kind, which, weights, epochs in [*ways, ("found, tuned", "best", "finetuned", pace.finetuned)]:
        tell(f"{kind}: {epochs:g} epochs, {'new' if weights == 'scratch' else 'inherited'} weights")
        changes = (f"weights={weights}", f"train.epochs={epochs}", "watch.every=20")
        row = retrain(folder, which, *changes, console=console).rows[-1]
        rows.append({**row, "name": kind, "kind": kind, "latency": None, "note": f"{epochs:g} epochs, {weights}"})
        tell(f"  {100 * row['accuracy']:.2f} % of the test pictures, {row['macs'] / 1e6:.2f} M MACs")
    for kind in dict.fromkeys(row["kind"] for row in rows):
        some = [row["accuracy"] for row in rows if row["kind"] == kind]
        error = math.sqrt(float(np.mean(some)) * (1 - float(np.mean(some))) / (len(some) * rows[0]["pictures"]))
        told = f"{100 * float(np.mean(some)):.2f} % (mean of {len(some)}, standard error {100 * error:.1f})"
        tell(f"{kind}: {told}")
    files.write_object(folder / "comparison.json", {"rows": rows})


def handmade(space: Space, macs: float, num_classes: int) -> list[Arch]:
    """What one would draw by hand for so many MACs: the largest, the middle and the smallest network, scaled."""
    out = list[Arch]()
    for arch in origins(space):
        with suppress(InfeasibleError):
            out.append(scaled(arch, macs=macs, space=space, num_classes=num_classes))
    return list(dict.fromkeys(out)) or [space.smallest()]


def _random(space: Space, macs: float, num_classes: int) -> list[Arch]:
    for low in (0.97, 0.9, 0.5):
        with suppress(InfeasibleError):
            return space.sample(8, seed=1, macs=(low * macs, macs), num_classes=num_classes)
    return [space.smallest()]
