"""What all benchmarks share: the calibrator, timing, and one JSON line.

Times drift with the machine; a benchmark therefore measures a calibrator right before and right after its workload and
reports the ratio. The calibrator is the training step (forward, cross-entropy, backward; batch 8) of timm's
deit_tiny_patch16_224, or its forward pass for workloads without a backward one."""

from __future__ import annotations

import gc
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from torch import Tensor

import superformer as sf

WORKLOADS = Path(__file__).parent / "workloads"
sf.kernels.keep_freed()  # as the commands do


def workload(family: str) -> list[sf.Arch]:
    """The architectures on which the released code was measured."""
    return [sf.official.arch(family, a) for a in json.loads((WORKLOADS / f"archs_{family}.json").read_text())]


def pictures(batch: int, size: int = 224) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).standard_normal((batch, 3, size, size), dtype=np.float32))


def soft_targets(batch: int, classes: int = 1000) -> Tensor:
    labels = torch.from_numpy(np.random.default_rng(1).integers(classes, size=batch))
    return F.one_hot(labels, classes) * 0.9 + 0.1 / classes


def soft_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Soft cross-entropy."""
    return -(targets * logits.log_softmax(-1)).sum(-1).mean()


def seconds(work: Callable[[], Any], repeats: int, warmup: int = 1) -> list[float]:
    """Wall times of repeated work, without the garbage collector."""
    for _ in range(warmup):
        work()
    gc.collect()
    gc.disable()
    out = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        out.append(time.perf_counter() - start)
    gc.enable()
    return out


class Calibrator:
    """The step of deit_tiny: ``training`` with a backward pass (C1), else forward only (C3)."""

    def __init__(self, training: bool = True):
        self.net = timm.create_model("deit_tiny_patch16_224").train(training)
        self.x, self.y, self.training = (
            pictures(8),
            torch.from_numpy(np.random.default_rng(1).integers(1000, size=8)),
            training,
        )

    def __call__(self) -> float:
        def step() -> None:
            if not self.training:
                with torch.no_grad():
                    self.net(self.x)
                return
            self.net.zero_grad(set_to_none=True)
            F.cross_entropy(self.net(self.x), self.y).backward()

        median = statistics.median(seconds(step, 5, 2))
        self.net.zero_grad(set_to_none=True)
        return median


def beside(work: Callable[[], Any], repeats: int, warmup: int = 1, training: bool = True) -> dict[str, float]:
    """Median and smallest time of the work, and the median of its ratio to the calibrator measured right before and
    right after."""
    calibrate = Calibrator(training)
    seconds(work, 0, warmup)
    units, times = [calibrate()], []
    for _ in range(repeats):
        times += seconds(work, 1, 0)
        units.append(calibrate())
    ratios = [2 * t / (a + b) for t, a, b in zip(times, units, units[1:], strict=False)]
    return {
        "seconds": statistics.median(times),
        "fastest": min(times),
        "calibrator": statistics.median(units),
        "ratio": statistics.median(ratios),
    }


def peak_mib() -> int:
    """The most memory this process has held (its own: a child's ``ru_maxrss`` starts at its parent's)."""
    status = Path("/proc/self/status")
    if status.exists():
        return (
            int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1]) // 1024
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def report(name: str, **figures: Any) -> None:
    def tidy(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.4g}")
        if isinstance(value, dict):
            return {k: tidy(v) for k, v in value.items()}
        return [tidy(v) for v in value] if isinstance(value, list) else value

    print(
        json.dumps(
            {"benchmark": name, "torch": torch.__version__, "threads": torch.get_num_threads(), **tidy(figures)}
        ),
        flush=True,
    )
