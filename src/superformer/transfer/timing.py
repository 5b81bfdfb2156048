"""How fast a model of another task is here: finding things in one picture (the backbone's part of it apart), and a step
of training, with the share of a run's time that was spent waiting for pictures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from superformer import files
from superformer.cost.runtimes import evaluating
from superformer.errors import SuperformerError
from superformer.kernels import device_name, timer
from superformer.machine import machine, torch_threads
from superformer.runs import stored
from superformer.runs.processes import World
from superformer.transfer.evaluation import some
from superformer.transfer.examples import load
from superformer.transfer.folder import TransferRun
from superformer.transfer.model import load_model
from superformer.transfer.training import Trainer, batch_of, on_device, sent

LEAST = 3
"""Times that everything is measured."""


def bench(folder: str | Path, threads: int = 1, seconds: float = 2.0) -> dict[str, Any]:
    """A row each for inference, the backbone alone and a training step; also in ``bench.json``. They are measured in
    turn, so that they can be compared on a busy machine, too."""
    run = TransferRun.open(folder)
    settings, facts, device = run.settings(), run.facts(), World.join().device
    data = load(settings.task, facts["data"], settings.data)
    if not len(data.test):
        raise SuperformerError(f"{folder} has no test pictures to be timed with")
    model = load_model(run, data).to(device)
    first = on_device(batch_of([some(data.test, 1).example(0)]), device)
    size = min(settings.train.batch_size, len(data.train))
    examples = [data.train.example(k, (settings.seed, 0, k)) for k in range(size)]
    batch = sent(batch_of(examples), device)  # as a run's are: copied before the step begins
    trainer, base, picture = Trainer(model, settings, 100, 100), model.backbone, first.pictures[0][None]

    @torch.inference_mode()
    def inference() -> None:
        with evaluating(model):
            model.predict(first.pictures, first.targets)  # type: ignore[operator]

    @torch.inference_mode()
    def backbone() -> None:
        with evaluating(model):
            base(picture)  # type: ignore[operator]

    works: Sequence[tuple[str, int, Callable[[], object]]] = (
        ("inference", 1, inference),
        ("backbone", 1, backbone),
        ("training step", size, lambda: trainer.step(0, batch)),
    )
    with torch_threads(threads):
        times = _in_turn([work for _, _, work in works], seconds, device)
    waited = [m["waited"] for m in stored.read_lines(run.folder / stored.METRICS) if m["kind"] == "step"]
    here = {"runtime": "eager", "device": str(device)}
    rows = [
        {"name": name, **here, "batch": n, "median": float(np.median(t)), "p90": float(np.quantile(t, 0.9))}
        for (name, n, _), t in zip(works, times, strict=True)
    ]
    found = {
        "machine": machine(device_name(device)),
        "threads": threads,
        "rows": rows,
        "size": list(picture.shape[-2:]),
    }
    found["waited"] = float(np.mean(waited)) if waited else None
    files.write_object(run.folder / "bench.json", found)
    return found


def _in_turn(works: Sequence[Callable[[], object]], seconds: float, device: torch.device) -> list[list[float]]:
    """Seconds of each on the device, again and again for a time; the first round makes things ready and is not
    counted."""
    for work in works:
        work()
    out: list[list[float]] = [[] for _ in works]
    taken = timer(device, time.perf_counter)
    end = time.perf_counter() + seconds * len(works)
    while time.perf_counter() < end or len(out[-1]) < LEAST:
        for own, work in zip(out, works, strict=True):
            own.append(taken(work))
    return out
