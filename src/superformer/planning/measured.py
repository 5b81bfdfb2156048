"""The device at hand, measured: its peaks, and how much of them the steps of a recipe reach."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from superformer import machine
from superformer.kernels import accelerated, device_name, faster_in_bfloat16, finished, precision
from superformer.planning.devices import Device
from superformer.planning.trace import Work
from superformer.train.step import Trainer

SIDES, BYTES, STARTED = (768, 4096), 2**26, 2000
"""Of matrices that are multiplied, on a processor and on accelerators; of what is copied; operations to start."""
LEAST_STEPS = 3


def peaks(device: torch.device, seconds: float = 6.0) -> Device:
    """A device of this machine, by what it multiplies, copies and starts in so many seconds."""
    part, other, bfloat16 = seconds / 4, accelerated(device), faster_in_bfloat16(device)
    side = SIDES[other]
    precision(device, "off")  # as steps multiply float32: as TF32, where there is that
    x, y = (torch.randn(side, side, device=device) for _ in range(2))
    single = 2 * side**3 * _often(lambda: x @ y, x, part)
    halved = x.to(torch.bfloat16), y.to(torch.bfloat16)
    half = 2 * side**3 * _often(lambda: halved[0] @ halved[1], x, part) if other or bfloat16 else single
    large = torch.empty(BYTES // 4, device=device)
    bandwidth = 2 * BYTES * _often(large.clone, large, part)
    tiny = torch.zeros(1, device=device)
    starts = STARTED * _often(lambda: [tiny.add_(1) for _ in range(STARTED)], tiny, part)
    memory = torch.accelerator.get_memory_info(device)[1] if other else machine.memory()
    name = device_name(device) or machine.machine()
    return Device(name, float(memory), single, half, bandwidth, bandwidth, bfloat16, 1.0, starts, published=False)


def _often(work: Callable[[], object], like: torch.Tensor, seconds: float) -> float:
    """How often a second; the best of several turns, as a peak is."""
    work()
    finished(like)
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        work()
        finished(like)
        best = max(best, 1 / max(time.perf_counter() - begun, 1e-9))
    return best


def reached(
    device: Device, trainer: Trainer, step: Callable[[int], object], work: list[Work], seconds: float, half: bool
) -> Device:
    """The device with the share of its peaks (of those in ``half`` precision, where steps use it) that real steps
    reach: those of a ``trainer``, whose traced ``work`` is known, for some seconds. Caches may let it be above 1."""
    step(0)
    like = trainer.parameters[0]
    finished(like)
    begun, done = time.perf_counter(), 0
    while done < LEAST_STEPS or time.perf_counter() - begun < seconds:
        step(done)
        done += 1
    finished(like)
    taken = (time.perf_counter() - begun) / done
    return replace(device, reached=device.seconds(work, half) / taken)
