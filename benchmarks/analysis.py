"""Analysis: what looking at attention costs beside a forward pass, and confidence intervals of rank correlations.

python benchmarks/analysis.py
"""

from __future__ import annotations

import statistics

import numpy as np
import torch
from common import beside, peak_mib, pictures, report, seconds

import superformer as sf
from superformer.analysis import attention, correlation

NETWORKS = ("s3_tiny", "vit_resnas_tiny")


def main() -> None:
    x = pictures(8)
    for name in NETWORKS:
        net = sf.model(name).eval()

        @torch.no_grad()
        def forward(net: torch.nn.Module = net) -> None:
            net(x)

        forward()
        plain = statistics.median(seconds(forward, 3))
        figures = beside(lambda net=net: attention.attention_distances(net, [x]), repeats=3, training=False)
        report(
            f"analysis, distances of the top 5 and 10 keys in all blocks of {name}, 8 pictures",
            **figures,
            forward_pass=plain,
            times_a_forward_pass=figures["seconds"] / plain,
            peak_mib=peak_mib(),
        )
    rng = np.random.default_rng(0)
    macs = rng.uniform(1, 8, 2000)
    accuracy = macs + rng.normal(size=2000)
    figures = beside(lambda: correlation.intervals(macs, accuracy), repeats=3, training=False)
    report(
        "analysis, 1,000 resamples of three coefficients of 2,000 architectures (ViTAS v2, figure 5)",
        **figures,
        peak_mib=peak_mib(),
    )


if __name__ == "__main__":
    main()
