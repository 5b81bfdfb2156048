"""Does a search find better networks than chance, on the test set? One JSON line for each laptop recipe.

A trained run of each recipe is copied and searched with its own method below the median MACs of its space. The best
network is then set against 50 random ones within the same limit, against 50 that use it up (from 0.9 of it on), and
against the largest network uniformly scaled to it, on the test pictures, which nothing has seen before.

python benchmarks/found.py [--runs FOLDER] [--seeds N] [--latency] [RECIPE ...]

With --latency also: a search below the median latency of random networks, and its best network measured again, as parts
of the limit.

FOLDER has the runs, each named after its recipe; those that are missing are trained there first (minutes each).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import report
from numpy.typing import NDArray

import superformer as sf
from superformer import data
from superformer.cost.latency import measure_in_turn
from superformer.cost.latency_table import LatencyTable
from superformer.evaluation.evaluator import Evaluator
from superformer.runs import Run
from superformer.runs.storage import load_supernet
from superformer.search import search
from superformer.train.loop import train

RECIPES = [f"{name}-laptop" for name in ("s3", "vitas-v1", "vitas-deit", "vitas-twins", "vit-resnas", "nasvit")]
RANDOM = 50
NEAR = 0.9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--seeds", type=int, default=1, help="searches of each run")
    parser.add_argument("--latency", action="store_true")
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    given = parser.parse_args()
    for name in given.recipes:
        folder = Path(given.runs) / name
        if not (folder / "supernet.safetensors").exists():
            train(name, "digits", folder)
        with tempfile.TemporaryDirectory() as scratch:
            shutil.copytree(
                folder,
                Path(scratch) / "run",
                ignore=shutil.ignore_patterns("history.db*", "front.json", "checkpoints", ".lock"),
            )
            report(
                f"search, found against random on the test set: {name}", **_compare(Path(scratch) / "run", given.seeds)
            )
            if given.latency:
                report(f"search, a latency limit measured again: {name}", **_latency(Path(scratch) / "run"))


def _compare(folder: Path, seeds: int) -> dict[str, Any]:
    run = Run.open(folder)
    space, recipe, facts = run.space(), run.recipe(), run.facts()
    net = load_supernet(run.supernet_file)
    limit = float(np.median(sf.cost(space, space.sample_genes(2000, 0), num_classes=net.num_classes).macs))
    seconds, cpu, found = [], [], []
    for seed in range(seeds):
        (folder / "history.db").unlink(missing_ok=True)
        start, used = time.perf_counter(), time.process_time()
        front = search(folder, {"macs": (0, limit)}, changes={"seed": seed})
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
        found.append(next(row for row in front["front"] if row["key"] == front["best"]))
    pictures = data.load(facts["data"], recipe.data, facts["img_size"])
    judge = Evaluator.of(net, recipe, pictures, pictures.test(), facts["img_size"])
    pools = {
        name: space.sample(RANDOM, seed=1, macs=(low * limit, limit), num_classes=net.num_classes)
        for name, low in (("within the limit", 0), ("near the limit", NEAR))
    }
    own = np.asarray(judge.scores([sf.Arch.from_json(json.dumps(row["arch"])) for row in found]))
    by_hand = [sf.Arch.from_json(json.dumps(row["arch"])) for row in [front["baseline"]] if row is not None]
    return {
        "macs_max": limit,
        "search_seconds": seconds,
        "search_cpu_seconds": cpu,
        "load": os.getloadavg()[0],
        "evaluated": front["evaluated"],
        "search_pictures": len(pictures.search),
        "test_pictures": len(pictures.test()),
        "found": [float(100 * a) for a in own[:, 0]],
        "found_loss": [float(v) for v in own[:, 1]],
        "found_macs": [row["macs"] for row in found],
        "found_on_the_search_split": [100 * row["accuracy"] for row in found],
        "by_hand": [100 * a for a in judge(by_hand)],
        "random": {name: _against(own, np.asarray(judge.scores(archs))) for name, archs in pools.items()},
    }


def _against(own: NDArray[np.float64], chance: NDArray[np.float64]) -> dict[str, Any]:
    """Found networks against random ones, by accuracy (the first column)."""
    accuracy = chance[:, 0]
    return {
        "quartiles": [float(100 * q) for q in np.percentile(accuracy, (0, 25, 50, 75, 100))],
        "median_loss": float(np.median(chance[:, 1])),
        "share_below": [float(((accuracy < a) + 0.5 * (accuracy == a)).mean()) for a in own[:, 0]],
        "beats_the_median": [bool(a > np.median(accuracy)) for a in own[:, 0]],
    }


def _latency(folder: Path) -> dict[str, Any]:
    run = Run.open(folder)
    net, size = load_supernet(run.supernet_file), run.facts()["img_size"]
    search(folder, {"latency": (0, 1e3)}, "random", {"evaluations": 1, "threads": 1})  # measures the table
    table = LatencyTable.load(folder / "latency-eager-1-1.json", threads=1)
    limit = 1.1 * float(np.median(table.latency(net.space, net.space.sample_genes(2000, 0))))
    front = search(folder, {"latency": (0, limit)}, changes={"threads": 1})
    row = next(row for row in front["front"] if row["key"] == front["best"])
    model = net.extract(sf.Arch.from_json(json.dumps(row["arch"]))).eval()
    again = [measure_in_turn([model], size, batch=1, threads=1, seconds=2)[0] for _ in range(5)]
    return {
        "limit_ms": 1e3 * limit,
        "measured_by_the_search": row["measured"] / limit,
        "networks_measured": sum("measured" in r for r in front["front"]),
        "measured_again": [t.median / limit for t in again],
        "fastest_again": [t.fastest / limit for t in again],
        "load": os.getloadavg()[0],
        "target": {"measured_again": 1.1},
    }


if __name__ == "__main__":
    main()
