"""W3 and W5 of NASViT: forward and backward of the four networks of a training step (batch 8), and evaluating a
candidate.

python benchmarks/nasvit.py
"""

from __future__ import annotations

import json
import statistics

import torch
from common import WORKLOADS, Calibrator, beside, peak_mib, pictures, report, seconds, soft_loss, soft_targets

import superformer as sf


def archs(name: str) -> list[sf.Arch]:
    return [sf.official.arch("nasvit", a) for a in json.loads((WORKLOADS / f"archs_nasvit_{name}.json").read_text())]


def training() -> None:
    """Largest, smallest and two random networks, the same pictures, gradients summed: without optimiser and
    projection."""
    net, x, y = sf.supernet("nasvit-released").train(), pictures(8), soft_targets(8)
    chosen = archs("w3")

    def work() -> None:
        net.zero_grad()
        for arch in chosen:
            soft_loss(net(x, arch), y).backward()

    work(), work()
    memory = peak_mib()
    figures = beside(work, repeats=5)
    report(
        "W3 nasvit-released, largest, smallest, 2 random",
        **figures,
        peak_mib=memory,
        released={"ratio": 18.9, "peak_mib": 5763},
        target={"ratio": 9, "peak_mib": 2881},
    )


def evaluating() -> None:
    """Extract, recalibrate on 8 batches of 8, run 64 pictures, count the cost."""
    space = sf.space("nasvit-released")
    net, few, many = sf.supernet(space).eval(), pictures(8), pictures(32)

    def evaluate(arch: sf.Arch) -> None:
        model = sf.recalibrate(net.extract(arch), [few] * 8)
        with torch.no_grad():
            for _ in range(2):
                model(many).argmax(-1)
        sf.cost(space, [arch])

    calibrate = Calibrator(training=False)
    chosen = archs("w5")
    evaluate(chosen[1])
    units, times = [calibrate()], []
    for arch in chosen:
        times += seconds(lambda a=arch: evaluate(a), 1, 0)
        units.append(calibrate())
    ratio = statistics.median(2 * t / (a + b) for t, a, b in zip(times, units, units[1:], strict=False))
    report(
        "W5 evaluating a candidate of nasvit-released",
        seconds=statistics.median(times),
        calibrator=statistics.median(units),
        ratio=ratio,
        peak_mib=peak_mib(),
        released={"ratio": 93},
        target={"ratio": 31},
    )


if __name__ == "__main__":
    training()
    evaluating()
