"""Latency and throughput, measured here.

Networks are measured in turn, so that the drift of a machine meets all of them alike, with a fixed number of threads,
after a warm-up and with Python's garbage collector at rest. A time is a median with the tenth and the ninetieth
percentile, and the fastest run, which other work on the machine disturbed least. It holds for the machine it was
measured on and is never compared with a time of another one."""

from __future__ import annotations

import gc
import importlib.util
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from superformer.cost.tracing import as_onnx, traced
from superformer.errors import SuperformerError, nearest
from superformer.families.network import Network
from superformer.runs.processes import pinned
from superformer.settings import RUNTIMES

WARM_UP = 2
"""Runs of each network before the first that counts."""
TURN = 4
"""Runs that count each time it is a network's turn, after one that does not: the weights are in the cache again."""
LEAST = 3
"""Turns of each network, however long they take."""

Clock = Callable[[], float]


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

    @property
    def spread(self) -> float:
        """How far the tenth and the ninetieth percentile lie apart, as a part of the median."""
        return (self.p90 - self.p10) / self.median

    @property
    def throughput(self) -> float:
        """Pictures a second."""
        return self.batch / self.median


def machine(device: str | torch.device = "cpu", runtime: str = "eager") -> str:
    """A short name of what times are measured on: the processor and the software that runs on it."""
    processor, cores = _processor()
    parts = [f"{processor} ({cores} cores, {os.cpu_count()} threads)", f"torch {torch.__version__}"]
    if torch.device(device).type == "cuda":
        parts.insert(0, torch.cuda.get_device_name(device))
    if runtime == "onnx":
        parts.append(f"onnxruntime {onnxruntime().__version__}")
    return ", ".join(parts)


def _processor() -> tuple[str, int]:
    """The name of the processor and its number of cores."""
    cores = os.cpu_count() or 1
    try:
        entries = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    except OSError:
        return platform.processor() or platform.machine(), cores
    facts = [(name.strip(), value.strip()) for name, _, value in entries]
    names = [value for name, value in facts if name == "model name"]
    ids = {name: [value for n, value in facts if n == name] for name in ("physical id", "core id")}
    pairs = set(zip(*ids.values(), strict=False))
    return " ".join((names or [platform.machine()])[0].split()), len(pairs) or cores


# --- measuring ---


def measure(
    model: nn.Module,
    img_size: Size | None = None,
    *,
    batch: int = 1,
    threads: int = 1,
    runtime: str = "eager",
    seconds: float = 2.0,
    device: str | torch.device | None = None,
    clock: Clock = time.perf_counter,
) -> Timing:
    """The time that a stand-alone network takes for a batch of pictures (see `measure_in_turn`)."""
    return measure_in_turn(
        [model], img_size, batch=batch, threads=threads, runtime=runtime, seconds=seconds, device=device, clock=clock
    )[0]


def measure_in_turn(
    models: Sequence[nn.Module],
    img_size: Size | None = None,
    *,
    batch: int = 1,
    threads: int = 1,
    runtime: str = "eager",
    seconds: float = 2.0,
    device: str | torch.device | None = None,
    clock: Clock = time.perf_counter,
    progress: Callable[[float], None] | None = None,
) -> list[Timing]:
    """The times of several stand-alone networks, measured in turn for ``seconds`` each on average.

    ``img_size`` None is each network's own input size, ``device`` None is where a network is. ``runtime``: ``"eager"``
    is torch as it is, ``"compiled"`` torch.compile, ``"onnx"`` ONNX Runtime on the CPU. ``progress`` gets the part that
    is done, from 0 to 1."""
    jobs = [Job(model, runtime, (batch,), img_size) for model in models]
    found = measure_jobs(jobs, threads=threads, seconds=seconds, device=device, clock=clock, progress=progress)
    return [timing for some in found if not isinstance(some, Exception) for timing in some]


@dataclass(frozen=True)
class Job:
    """A network to be measured in a runtime, on batches of so many pictures."""

    model: nn.Module
    runtime: str = "eager"
    batches: tuple[int, ...] = (1,)
    img_size: Size | None = None


def measure_jobs(
    jobs: Sequence[Job],
    *,
    threads: int = 1,
    seconds: float = 2.0,
    device: str | torch.device | None = None,
    clock: Clock = time.perf_counter,
    progress: Callable[[float], None] | None = None,
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
    where = [torch.device(device) if device is not None else home(job.model) for job in jobs]
    found: list[list[Timing] | Exception] = []
    with ExitStack() as stack:
        stack.enter_context(pinned(threads))
        ready: list[list[Run] | Exception] = []
        for k, (job, d) in enumerate(zip(jobs, where, strict=True)):
            (making or (lambda k: None))(k)
            try:
                given = [pictures(job.model, job.img_size, batch, d) for batch in job.batches]
                ready.append(stack.enter_context(runners(job.model, given, d, job.runtime, threads)))
            except Exception as error:  # runtimes fail in many ways
                if not forgiving:
                    raise
                ready.append(error)
        stack.enter_context(_no_collection())
        ready = [_warm(runs, forgiving) for runs in ready]
        runs = [run for some in ready if not isinstance(some, Exception) for run in some]
        times = iter(_in_turn(runs, seconds * len(runs), clock, progress or (lambda done: None)))
    for job, some, d in zip(jobs, ready, where, strict=True):
        found.append(
            some
            if isinstance(some, Exception)
            else [_timing(next(times), b, threads, job.runtime, d) for b in job.batches]
        )
    return found


def _warm(runs: list[Run] | Exception, forgiving: bool) -> list[Run] | Exception:
    try:
        for run in [] if isinstance(runs, Exception) else runs:
            for _ in range(WARM_UP):
                run()
    except Exception as error:
        if not forgiving:
            raise
        return error
    return runs


def _in_turn(runs: Sequence[Run], seconds: float, clock: Clock, progress: Callable[[float], None]) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in runs]
    begin, turns = clock(), 0
    while runs and (turns < LEAST or clock() - begin < seconds):
        for k, run in enumerate(runs):
            run()
            for _ in range(TURN):
                before = clock()
                run()
                times[k].append(clock() - before)
        turns += 1
        progress(min((clock() - begin) / seconds, 1.0))
    return times


def _timing(times: Sequence[float], batch: int, threads: int, runtime: str, device: torch.device) -> Timing:
    median, p10, p90 = (float(q) for q in np.quantile(times, (0.5, 0.1, 0.9)))
    return Timing(median, min(times), p10, p90, len(times), batch, threads, runtime, machine(device, runtime))


@contextmanager
def _no_collection() -> Iterator[None]:
    before = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


# What runs networks: torch as it is, torch.compile, ONNX Runtime. Each gives functions that run a network once on
# given pictures.


Size = int | tuple[int, int]
Run = Callable[[], object]


def home(model: nn.Module) -> torch.device:
    """Where a model is."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def pictures(model: nn.Module, img_size: Size | None, batch: int, device: torch.device) -> Tensor:
    """Noise as a model's pictures; ``img_size`` None is a stand-alone network's own input size."""
    if img_size is None:
        if not isinstance(model, Network) or model.space.size != 1:
            raise SuperformerError("img_size is needed for a model that is not a stand-alone network of superformer")
        img_size = model.space.smallest().resolution
    height, width = img_size if isinstance(img_size, tuple) else (img_size, img_size)
    channels = model.in_chans if isinstance(model, Network) else 3
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(0)).to(device)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In eval mode; every part is in its own mode again afterwards."""
    training = {m: m.training for m in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode


@contextmanager
def runners(
    model: nn.Module, given: Sequence[Tensor], device: torch.device, runtime: str, threads: int
) -> Iterator[list[Run]]:
    """A function for each of the given batches, which returns the model's output for it. The model is as before
    afterwards."""
    before = home(model)
    with evaluating(model):
        model.to(device)
        try:
            if runtime == "onnx":
                yield _onnx(model, given, threads)
            elif runtime == "compiled":
                yield [_torch(_compiled(model, x), x, torch.no_grad) for x in given]
            else:
                yield [_torch(model, x, torch.inference_mode) for x in given]
        finally:
            model.to(before)


def _torch(model: Callable[[Tensor], object], x: Tensor, mode: Callable[[], Any]) -> Run:
    def run() -> object:
        with mode():
            out = model(x)
        if x.device.type != "cpu":
            torch.accelerator.synchronize(x.device)
        return out

    return run


def _compiled(model: nn.Module, x: Tensor) -> Callable[[Tensor], object]:
    """Exported first, so that it has code of its own: many networks of one class would count as one that changes all
    the time."""
    with torch.no_grad():
        run: Callable[[Tensor], object] = torch.compile(traced(model, x).module(), dynamic=False)
        try:
            run(x)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            raise SuperformerError(
                f"torch.compile does not work here (is there a C++ compiler?): use the runtime eager or onnx. {error}"
            ) from error
    return run


def _onnx(model: nn.Module, given: Sequence[Tensor], threads: int) -> list[Run]:
    """One session for all batches (as fast as one for each), as `superformer.interop` writes it."""
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry(
        "session.force_spinning_stop", "1"
    )  # its threads would disturb what is measured next
    largest = max(given, key=len).cpu()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        file = str(Path(folder) / "model.onnx")
        as_onnx(model, largest, any_batch=len(given) > 1).save(file)
        session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    feeds = [{name: x.cpu().numpy()} for x in given]
    return [lambda feed=feed: session.run(None, feed)[0] for feed in feeds]  # type: ignore[misc]


def onnxruntime() -> ModuleType:
    """The package, or an error that says how to get it."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise SuperformerError(
            f"measuring with ONNX Runtime needs {', '.join(missing)}, not installed here: pip install 'superformer[onnx]', or use "
            "the runtime eager"
        )
    return importlib.import_module("onnxruntime")
