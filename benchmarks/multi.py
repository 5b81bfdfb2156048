"""W2: ViT-ResNAS-Tiny's supernet, one training step with 16 architectures in the batch, sliced and masked side by side.

    python benchmarks/multi.py [--batch 32] [--archs 16]

Sliced and masked alternate, so that the drift of the machine meets both. Memory is measured in fresh processes.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

from common import Calibrator, peak_mib, pictures, report, seconds, soft_loss, soft_targets, workload

import superformer as sf


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--archs", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--memory", choices=("sliced", "masked"))
    asked = parser.parse_args()
    space = sf.space("vit-resnas-tiny")
    net, archs = sf.supernet(space).train(), (workload("vit_resnas") + space.sample(asked.archs, seed=0))[: asked.archs]
    x, y = pictures(asked.batch), soft_targets(asked.batch)

    def step(mode: str) -> None:
        net.zero_grad()
        soft_loss(net(x, archs, mode=mode), y).backward()

    if asked.memory:
        step(asked.memory)
        step(asked.memory)
        print(peak_mib())
        return
    calibrate = Calibrator()
    times: dict[str, list[float]] = {"sliced": [], "masked": []}
    for mode in times:
        step(mode)
    before = calibrate()
    for _ in range(asked.repeats):
        for mode, taken in times.items():
            taken += seconds(lambda mode=mode: step(mode), 1, 0)
    unit = (before + calibrate()) / 2
    words = [sys.executable, __file__, "--batch", str(asked.batch), "--archs", str(asked.archs), "--memory"]
    memory = {
        mode: int(subprocess.run([*words, mode], capture_output=True, text=True, check=True).stdout) for mode in times
    }
    report(
        f"W2 vit-resnas-tiny, {asked.archs} archs, batch {asked.batch}",
        seconds={m: statistics.median(t) for m, t in times.items()},
        calibrator=unit,
        ratio={m: statistics.median(t) / unit for m, t in times.items()},
        sliced_is_faster_by=statistics.median(b / a for a, b in zip(*times.values(), strict=True)),
        peak_mib=memory,
        released={"ratio (batch 32, masked)": 10.7, "peak_mib": 3567},
        target={"sliced_is_faster_by": 1.9 if asked.batch >= 128 else 1.5},
    )


if __name__ == "__main__":
    main()
