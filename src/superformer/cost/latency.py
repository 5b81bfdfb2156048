"""Latency and throughput, measured here.

Networks are measured in turn, so that the drift of a machine meets all of them alike, with a fixed number of threads,
after a warm-up and with Python's garbage collector at rest. A time is a median with the tenth and the ninetieth
percentile, and the fastest run, which other work on the machine disturbed least. An accelerator is timed by its own
events. A time holds for the machine it was measured on and is never compared with a time of another one."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np
import torch
from torch import nn

from superformer.cost.runtimes import Run, Size, home, pictures, runners
from superformer.errors import SuperformerError, nearest
from superformer.kernels import device_name, timer
from superformer.machine import machine, torch_threads
from superformer.settings import RUNTIMES

WARM_UP = 2
"""Runs of each network before the first that counts."""
TURN = 4
"""Runs that count each time it is a network's turn, after one that does not: the weights are in the cache again."""
LEAST = 3
"""Turns of each network, however long they take."""

Clock = Callable[[], float]
Timer = Callable[[Run], float]
"""Tells the seconds that a run takes."""
Progress = Callable[[float], None]
"""Gets the part that is done, from 0 to 1."""


@dataclass(frozen=True)
class Timing:
    """Seconds for one batch: the median of ``runs`` runs, the fastest, and how they spread."""

    median: float
    fastest: float
    p10: float
    p90: float
    runs: int
    batch: int
    threads: int
    runtime: str
    machine: str
    device: str = "cpu"

    @property
    def throughput(self) -> float:
        """Pictures a second."""
        return self.batch / self.median


class Turns(TypedDict, total=False):
    """How networks are measured in turn: for ``seconds`` each on average; ``device`` None is where a network is."""

    threads: int
    seconds: float
    device: str | torch.device | None
    clock: Clock


def measure(
    model: nn.Module, img_size: Size | None = None, *, batch: int = 1, runtime: str = "eager", **how: Unpack[Turns]
) -> Timing:
    """The time that a stand-alone network takes for a batch of pictures (see `measure_in_turn`)."""
    return measure_in_turn([model], img_size, batch=batch, runtime=runtime, **how)[0]


def measure_in_turn(
    models: Sequence[nn.Module],
    img_size: Size | None = None,
    *,
    batch: int = 1,
    runtime: str = "eager",
    **how: Unpack[Turns],
) -> list[Timing]:
    """The times of several stand-alone networks. ``img_size`` None is each network's own input size. ``runtime``:
    ``"eager"`` is torch as it is, ``"compiled"`` torch.compile, ``"onnx"`` ONNX Runtime on the CPU."""
    found = measure_jobs([Job(model, runtime, (batch,), img_size) for model in models], **how)
    return [timing for some in found if not isinstance(some, Exception) for timing in some]


@dataclass(frozen=True)
class Job:
    """A network to be measured in a runtime, on batches of so many pictures; ``device``: if not that of all."""

    model: nn.Module
    runtime: str = "eager"
    batches: tuple[int, ...] = (1,)
    img_size: Size | None = None
    device: str | torch.device | None = None


def measure_jobs(
    jobs: Sequence[Job],
    *,
    threads: int = 1,
    seconds: float = 2.0,
    device: str | torch.device | None = None,
    clock: Clock = time.perf_counter,
    progress: Progress | None = None,
    making: Callable[[int], None] | None = None,
    forgiving: bool = False,
) -> list[list[Timing] | Exception]:
    """The times of each job's batches; all of them are measured in turn, ``seconds`` each on average.

    ``making`` gets the number of a job before it is made ready, which may take a minute where networks are compiled.
    ``forgiving``: of a job that cannot run, the error takes the place of its times."""
    for job in jobs:
        if job.runtime not in RUNTIMES:
            raise SuperformerError(f"unknown runtime {job.runtime!r}: {nearest(job.runtime, RUNTIMES)}")
        if not job.batches or min(job.batches) < 1 or threads < 1 or not seconds > 0:
            raise SuperformerError(
                f"batches, threads and seconds must be positive, not {job.batches}, {threads} and {seconds}"
            )
    asked = [device if job.device is None else job.device for job in jobs]
    where = [home(job.model) if d is None else torch.device(d) for job, d in zip(jobs, asked, strict=True)]
    ready: list[list[Run] | Exception] = []
    with ExitStack() as stack:
        stack.enter_context(torch_threads(threads))
        for k, (job, d) in enumerate(zip(jobs, where, strict=True)):
            (making or (lambda k: None))(k)
            try:
                given = [pictures(job.model, job.img_size, batch, d) for batch in job.batches]
                ready.append(stack.enter_context(runners(job.model, given, d, job.runtime, threads)))
            except Exception as error:  # runtimes fail in many ways
                if not forgiving:
                    raise
                ready.append(error)
        if gc.isenabled():
            stack.callback(gc.enable)
        gc.collect()
        gc.disable()
        for k, made in enumerate(ready):
            try:
                for run in [] if isinstance(made, Exception) else made:
                    for _ in range(WARM_UP):
                        run()
            except Exception as error:
                if not forgiving:
                    raise
                ready[k] = error
        runs = [
            (run, timer(d, clock))
            for some, d in zip(ready, where, strict=True)
            if not isinstance(some, Exception)
            for run in some
        ]
        times = iter(_in_turn(runs, seconds * len(runs), clock, progress or (lambda done: None)))

    def timing(job: Job, batch: int, d: torch.device) -> Timing:
        own = next(times)
        median, p10, p90 = (float(q) for q in np.quantile(own, (0.5, 0.1, 0.9)))
        here = threads, job.runtime, machine(device_name(d), job.runtime)
        return Timing(median, min(own), p10, p90, len(own), batch, *here, str(d))

    return [
        made if isinstance(made, Exception) else [timing(job, batch, d) for batch in job.batches]
        for job, made, d in zip(jobs, ready, where, strict=True)
    ]


def times_in_turn(runs: Sequence[Run], seconds: float) -> list[list[float]]:
    """The times of whatever the processor can run, for so many seconds in all, after a warm-up."""
    for run in runs:
        for _ in range(WARM_UP):
            run()
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        timed = timer(torch.device("cpu"), time.perf_counter)
        return _in_turn([(run, timed) for run in runs], seconds, time.perf_counter, lambda done: None)
    finally:
        if enabled:
            gc.enable()


def _in_turn(runs: Sequence[tuple[Run, Timer]], seconds: float, clock: Clock, progress: Progress) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in runs]
    begin, turns = clock(), 0
    while runs and (turns < LEAST or clock() - begin < seconds):
        for k, (run, taken) in enumerate(runs):
            run()
            times[k] += [taken(run) for _ in range(TURN)]
        turns += 1
        progress(min((clock() - begin) / seconds, 1.0))
    return times
