"""Does searching the search space help (S3, table 5)? From a deliberately bad space, moved twice, on digits; one JSON
line for each way.

* evolved: the space moves (algorithm 1), each supernet begins with what fits of the one before;
* stayed: the same trainings one after another, each beginning with all of the one before, and the space does not move:
  what inherited weights and longer training give by themselves;
* fresh: the last space of the evolution, its supernet trained once from nothing.

python benchmarks/evolve_space.py [FOLDER]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from common import peak_mib, report

import superformer as sf
from superformer.recipes import Recipe
from superformer.search.space_evolution import evolve_space

BAD = {
    "name": "bad",
    "family": "swin",
    "img_size": 16,
    "stages": [
        {
            "depth": [1, 2],
            "choices": {"width": [8, 12]},
            "block": {
                "window": [2, 4],
                "heads": [1, 2],
                "attn": {"times": 4, "of": "heads"},
                "mlp": {"ratio": [0.5, 1], "of": "width"},
            },
        },
        {
            "depth": [1, 2],
            "choices": {"width": [8, 12]},
            "block": {
                "window": [2],
                "heads": [1, 2],
                "attn": {"times": 4, "of": "heads"},
                "mlp": {"ratio": [0.5, 1], "of": "width"},
            },
        },
    ],
}
"""Narrower and with smaller MLPs than any network for these pictures should have."""
EPOCHS, SAMPLES = 8, 40
MOVES = {"depth": 1.0, "width": 8.0, "heads": 1.0, "mlp": 0.5, "window": 2.0}


def recipe(name: str, rounds: int, gamma: dict[str, float], space: object = BAD) -> Recipe:
    base = sf.recipe("s3-laptop", (f"train.epochs={EPOCHS}", "watch.networks=0", f"watch.every={EPOCHS}"))
    evolve = base.evolve.model_copy(update={"rounds": rounds, "samples": SAMPLES, "tau": 2.0, "gamma": gamma})
    return base.model_copy(update={"name": name, "space": space, "img_size": None, "evolve": evolve})


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        last = _run("evolved", recipe("evolved", 2, MOVES), folder / "evolved")
        _run("stayed", recipe("stayed", 2, {}), folder / "stayed")
        _run("fresh", recipe("fresh", 1, {}, last), folder / "fresh", first=True)


def _run(name: str, settings: Recipe, folder: Path, first: bool = False) -> object:
    wall, cpu = time.perf_counter(), time.process_time()
    spaces = evolve_space(settings, "digits", folder)["spaces"][: 1 if first else None]
    report(
        f"space evolution on digits from a bad space, {name}",
        et_error=[s["et_error"] for s in spaces],
        expected=[s["expected"] for s in spaces],
        best=[s["best"] for s in spaces],
        architectures=[float(sf.Space.from_json(json.dumps(s["space"])).size) for s in spaces],
        epochs=EPOCHS * len(spaces),
        seconds=time.perf_counter() - wall,
        cpu_seconds=time.process_time() - cpu,
        load=os.getloadavg()[0],
        peak_mib=peak_mib(),
        target={"seconds": 480},
    )
    return spaces[-1]["space"]


if __name__ == "__main__":
    main()
