"""What times are measured on: they hold for the machine and the software they were measured with."""

from __future__ import annotations

import importlib.util
import os
import platform
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from superformer.errors import SuperformerError

if TYPE_CHECKING:
    import torch


def machine(device: str | torch.device = "cpu", runtime: str = "eager") -> str:
    """A short name: the processor and the software that runs on it."""
    import torch  # those who only want to look at a run do not wait for it

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
    ids = [[value for name, value in facts if name == wanted] for wanted in ("physical id", "core id")]
    return " ".join((names or [platform.machine()])[0].split()), len(set(zip(*ids, strict=False))) or cores


def onnxruntime() -> ModuleType:
    """The package, or an error that says how to get it."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise SuperformerError(
            f"measuring with ONNX Runtime needs {', '.join(missing)}, not installed here: "
            "pip install 'superformer[onnx]', or use the runtime eager"
        )
    return importlib.import_module("onnxruntime")
