"""The price of the supernet: a training step of one sub-network through it, against its extracted network (batch 8,
alternating).

python benchmarks/step.py
"""

from __future__ import annotations

import statistics
import sys

import torch
from common import Calibrator, peak_mib, pictures, report, seconds, soft_loss, soft_targets

import superformer as sf

NAMES = (
    "vit-resnas-tiny",
    "autoformer-tiny",
    "vitas-v1",
    "s3-initial",
    "vitas-twins-small",
    "nasvit-released",
    "vitas-resnet50",
)


def main() -> None:
    x, y = pictures(8), soft_targets(8)
    for name in sys.argv[1:] or NAMES:
        space = sf.space(name)
        net = sf.supernet(space).train()
        median = statistics.median(sf.cost(space, space.sample_genes(500)).macs)
        ratios, own = [], []
        calibrate = Calibrator()
        unit = calibrate()
        for arch in space.sample(4, seed=0, macs=(0.9 * median, 1.1 * median)):
            model = net.extract(arch).train()

            def through(arch: sf.Arch = arch, net: torch.nn.Module = net) -> None:
                net.zero_grad()
                soft_loss(net(x, arch), y).backward()

            def alone(model: object = model) -> None:
                model.zero_grad()
                soft_loss(model(x), y).backward()

            through(), alone()
            pairs = [(seconds(through, 1, 0)[0], seconds(alone, 1, 0)[0]) for _ in range(12)]
            ratios.append(statistics.median(a / b for a, b in pairs))
            own.append(statistics.median(b for _, b in pairs))
        unit = (unit + calibrate()) / 2
        report(
            f"step through the supernet, {name}",
            supernet_over_extracted=statistics.median(ratios),
            each=ratios,
            extracted_seconds=statistics.median(own),
            calibrator=unit,
            ratio=statistics.median(own) / unit,
            peak_mib=peak_mib(),
            target={"supernet_over_extracted": 1.05},
        )


if __name__ == "__main__":
    main()
