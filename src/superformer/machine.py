"""The machine that work runs on: its name beside what was measured, and how many processor threads torch uses. torch is
imported when it is needed: commands tell of mistakes before that."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from superformer.errors import SuperformerError, amount

WORKING = (b"train", b"evolve-space", b"search", b"retrain", b"transfer", b"demo", b"fit", b"claims")
"""Commands that keep the cores busy."""
_told: list[str] = []


def machine(accelerator: str | None = None, runtime: str = "eager") -> str:
    """A short name of what times are measured on: the accelerator, the processor and the software that runs on it."""
    import torch

    processor, cores = _processor()
    parts = [f"{processor} ({cores} cores, {os.cpu_count()} threads)", f"torch {torch.__version__}"]
    if accelerator is not None:
        parts.insert(0, accelerator)
    if runtime == "onnx":
        parts.append(f"onnxruntime {import_module('onnxruntime').__version__}")
    return ", ".join(parts)


def busy_notice(threads: int, cores: int, load: float, runs: int = 0) -> str | None:
    """What to tell a user whose work wants more threads than there are free cores: threads that wait for each other
    take several times as long as fewer of them. ``load``: of everything else; ``runs``: of superformer, among that."""
    free = max(cores - round(max(load, runs)), 0)
    if threads <= free:
        return None
    others = f"; {runs} other run{'s' * (runs > 1)} of superformer" if runs else ""
    what = f"{threads} thread{'s' * (threads > 1)} and {free} free of {cores} cores (load {load:.1f}{others})"
    few = max(free, 1)
    if threads == few:
        return f"note: the machine is busy, {what}: this will take longer"
    return f"note: the machine is busy, {what}: train.threads={few} in training, or OMP_NUM_THREADS={few}, is faster"


def tell_if_busy(tell: Callable[[str], None]) -> None:
    """Tell `busy_notice` of this machine, once in a process."""
    import torch

    here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    notice = busy_notice(here * torch.get_num_threads(), _usable_cores(), os.getloadavg()[0], _other_runs())
    if notice is not None and not _told:
        _told.append(notice)
        tell(notice)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _other_runs() -> int:
    """Commands of superformer that work now, in other processes (those that one torchrun started count as one)."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError, StopIteration):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            ours = int(entry.name) == os.getpid() or parent == os.getppid()
            name = next(k for k, word in enumerate(words[:4]) if word.rpartition(b"/")[2] == b"superformer")
            if not ours and any(word in WORKING for word in words[name + 1 : name + 3]):
                found.add(parent if b"--" in words[name + 1 : name + 2] else int(entry.name))
    return len(found)


def _processor() -> tuple[str, int]:
    """The name of the processor and its number of cores."""
    cores = os.cpu_count() or 1
    try:
        entries = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    except OSError:
        return platform.processor() or platform.machine(), cores
    keys = ("model name", "physical id", "core id")
    names, packages, ids = ([value.strip() for name, _, value in entries if name.strip() == key] for key in keys)
    return " ".join((names or [platform.machine()])[0].split()), len(set(zip(packages, ids, strict=False))) or cores


def memory() -> float:
    """Bytes of this machine's own memory; of a system that does not tell, as many as one likes."""
    with suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return math.inf


def require_memory(needed: int, what: str) -> None:
    """Refuse what cannot fit into this machine, before it is asked for."""
    if needed > (there := memory()):
        sizes = f"{amount(needed)}B of memory; this machine has {amount(there)}B"
        raise SuperformerError(f"{what} needs {sizes}: choose a smaller space or architecture")


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """So many threads, and what it was before afterwards. None: as it is."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
