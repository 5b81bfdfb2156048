"""The machine that work runs on: its name beside what was measured, and how many processor threads torch uses. torch is
imported when it is needed: commands tell of mistakes before that."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from superformer.errors import SuperformerError, amount


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


def require_memory(needed: int, what: str) -> None:
    """Refuse what cannot fit into this machine, before it is asked for."""
    there = math.inf
    with suppress(AttributeError, OSError, ValueError):  # a system that does not tell
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
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
