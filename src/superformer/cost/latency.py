"""Latency and throughput, measured here.

Networks are measured in turn, so that the drift of a machine meets all of them alike, with a fixed number of threads, after a warm-up and
with Python's garbage collector at rest. A time is a median with the tenth and the ninetieth percentile, and the fastest run, which other
work on the machine disturbed least. It holds for the machine it was measured on and is never compared with a time of another one.
"""

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

import numpy as np
import torch
from torch import Tensor, nn

from superformer.errors import SuperformerError, nearest
from superformer.export.trace import as_onnx, traced
from superformer.families.base import Network

RUNTIMES = ("eager", "compiled", "onnx")
WARM_UP = 2
"""Runs of each network before the first that counts."""
TURN = 4
"""Runs that count each time it is a network's turn, after one that does not: the weights are in the cache again."""
LEAST = 3
"""Turns of each network, however long they take."""

Clock = Callable[[], float]
Size = int | tuple[int, int]


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
        parts.append(f"onnxruntime {_onnxruntime().__version__}")
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
    return measure_in_turn([model], img_size, batch=batch, threads=threads, runtime=runtime, seconds=seconds, device=device, clock=clock)[0]


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

    ``img_size`` None is each network's own input size, ``device`` None is where a network is. ``runtime``: ``"eager"`` is torch as it is,
    ``"compiled"`` torch.compile, ``"onnx"`` ONNX Runtime on the CPU. ``progress`` gets the part that is done, from 0 to 1.
    """
    if runtime not in RUNTIMES:
        raise SuperformerError(f"unknown runtime {runtime!r}: {nearest(runtime, RUNTIMES)}")
    if batch < 1 or threads < 1 or not seconds > 0:
        raise SuperformerError(f"batch, threads and seconds must be positive, not {batch}, {threads} and {seconds}")
    where = [torch.device(device) if device is not None else _device(m) for m in models]
    with ExitStack() as stack:
        stack.enter_context(_pinned(threads))
        runs = [
            stack.enter_context(_runner(m, pictures(m, img_size, batch, d), d, runtime, threads))
            for m, d in zip(models, where, strict=True)
        ]
        times = _in_turn(runs, seconds * len(runs), clock, progress or (lambda done: None))
    out = []
    for t, d in zip(times, where, strict=True):
        median, p10, p90 = (float(q) for q in np.quantile(t, (0.5, 0.1, 0.9)))
        out.append(Timing(median, min(t), p10, p90, len(t), batch, threads, runtime, machine(d, runtime)))
    return out


def _in_turn(runs: Sequence[Callable[[], object]], seconds: float, clock: Clock, progress: Callable[[float], None]) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in runs]
    with _no_collection():
        for run in runs:
            for _ in range(WARM_UP):
                run()
        begin, turns = clock(), 0
        while turns < LEAST or clock() - begin < seconds:
            for k, run in enumerate(runs):
                run()
                for _ in range(TURN):
                    before = clock()
                    run()
                    times[k].append(clock() - before)
            turns += 1
            progress(min((clock() - begin) / seconds, 1.0))
    return times


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def pictures(model: nn.Module, img_size: Size | None, batch: int, device: torch.device) -> Tensor:
    if img_size is None:
        if not isinstance(model, Network) or model.space.size != 1:
            raise SuperformerError("img_size is needed for a model that is not a stand-alone network of superformer")
        img_size = model.space.smallest().resolution
    height, width = img_size if isinstance(img_size, tuple) else (img_size, img_size)
    channels = model.in_chans if isinstance(model, Network) else 3
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(0)).to(device)


@contextmanager
def _pinned(threads: int) -> Iterator[None]:
    """So many threads, and what it was before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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


@contextmanager
def _runner(model: nn.Module, x: Tensor, device: torch.device, runtime: str, threads: int) -> Iterator[Callable[[], object]]:
    """A function that runs the model once; the model is as before afterwards."""
    home = _device(model)
    with evaluating(model), torch.inference_mode(runtime == "eager"), torch.no_grad():
        model.to(device)
        try:
            if runtime == "onnx":
                yield _onnx(model, x, threads)
            else:
                yield _torch(_compiled(model, x) if runtime == "compiled" else model, x, device)
        finally:
            model.to(home)


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


def _torch(model: Callable[[Tensor], object], x: Tensor, device: torch.device) -> Callable[[], object]:
    if device.type == "cpu":
        return lambda: model(x)

    def run() -> object:
        out = model(x)
        torch.accelerator.synchronize(device)
        return out

    return run


def _compiled(model: nn.Module, x: Tensor) -> Callable[[Tensor], object]:
    """Exported first, so that it has code of its own: many networks of one class would count as one that changes all the time."""
    run: Callable[[Tensor], object] = torch.compile(traced(model, x).module(), dynamic=False)
    try:
        run(x)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        raise SuperformerError(f"torch.compile does not work here (is there a C++ compiler?): use runtime='eager'. {error}") from error
    return run


def _onnx(model: nn.Module, x: Tensor, threads: int) -> Callable[[], object]:
    ort = _onnxruntime()
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model.onnx")
        as_onnx(model, x.cpu()).save(file)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x.cpu().numpy()}
    return lambda: session.run(None, feed)


def _onnxruntime() -> ModuleType:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise SuperformerError(
            f"measuring with ONNX Runtime needs {', '.join(missing)}, not installed here: pip install 'superformer[onnx]', or use "
            "runtime='eager'"
        )
    return importlib.import_module("onnxruntime")
