"""W5: evaluating candidates with inherited weights: count the cost, run 64 pictures (2 batches of 32) through the sub-network.

python benchmarks/evaluate.py
"""

from __future__ import annotations

import statistics

import torch
from common import Calibrator, peak_mib, pictures, report, seconds, workload

import superformer as sf

RELEASED = {"autoformer-tiny": ("autoformer", 16.9), "vit-resnas-tiny": ("vit_resnas", 15.3)}


def main() -> None:
    x = pictures(32)
    for name, (family, released) in RELEASED.items():
        space = sf.space(name)
        net, archs = sf.supernet(space).eval(), workload(family)[:10]

        @torch.no_grad()
        def evaluate(arch: sf.Arch, space: sf.Space = space, net: torch.nn.Module = net) -> None:
            sf.cost(space, [arch])
            for _ in range(2):
                net(x, arch).argmax(-1)

        calibrate = Calibrator(training=False)
        evaluate(archs[0])
        before = calibrate()
        times = [seconds(lambda a=arch: evaluate(a), 1, 0)[0] for arch in archs]
        unit = (before + calibrate()) / 2
        report(
            f"W5 evaluating a candidate of {name}",
            seconds=statistics.median(times),
            calibrator=unit,
            ratio=statistics.median(times) / unit,
            peak_mib=peak_mib(),
            released={"ratio": released},
        )


if __name__ == "__main__":
    main()
