"""W1: AutoFormer-T's supernet, a training step (batch 8) of each of 12 architectures.

python benchmarks/autoformer.py
"""

from __future__ import annotations

from common import beside, peak_mib, pictures, report, soft_loss, soft_targets, workload

import superformer as sf


def main() -> None:
    net = sf.supernet("autoformer-tiny").train()
    archs = workload("autoformer")
    x, y = pictures(8), soft_targets(8)

    def work() -> None:
        for arch in archs:
            net.zero_grad()
            soft_loss(net(x, arch), y).backward()

    work()
    memory = peak_mib()
    figures = beside(work, repeats=3)
    report(
        "W1 autoformer-tiny, 12 archs",
        **figures,
        peak_mib=memory,
        released={"ratio": 35.2, "peak_mib": 2585},
        target={"ratio": 20},
    )


if __name__ == "__main__":
    main()
