"""W6: costs of whole populations, and sampling within limits.

python benchmarks/population.py
"""

from __future__ import annotations

import functools
import statistics

import numpy as np
from common import beside, peak_mib, report, seconds

import superformer as sf

RELEASED = {
    "vit-resnas-tiny": 27_300,
    "vitas-v1": 3_860,
    "autoformer-tiny": 227,
    "s3-initial": 19_500,
    "vitas-twins-small": None,
    "nasvit-released": 2.7,
    "vitas-resnet50": None,
}
RELEASED_DRAWS = {"vit-resnas-tiny": 0.61, "vitas-v1": 1.13, "autoformer-tiny": 2.27}


def main() -> None:
    for name, released in RELEASED.items():
        space = sf.space(name)
        genes = space.sample_genes(200_000, 0)
        figures = beside(lambda: sf.cost(space, genes), repeats=5, training=False)  # noqa: B023
        report(
            f"W6 cost of 200,000 archs of {name}",
            archs_per_second=len(genes) / figures["seconds"],
            **figures,
            peak_mib=peak_mib(),
            released={"archs_per_second": released},
            target={"archs_per_second": 200_000},
        )
    for name, released_seconds in RELEASED_DRAWS.items():
        space = sf.space(name)
        macs = sf.cost(space, space.sample_genes(20_000, 0)).macs
        setup = seconds(lambda: space.sample_genes(1, 0, macs=(0, float(macs.max()))), 1, 0)[0]  # noqa: B023
        worst = {}
        for q in (5, 25, 50, 75, 95):
            target = float(np.percentile(macs, q))
            draw = functools.partial(space.sample_genes, 1000, 1, macs=(0.99 * target, 1.01 * target))
            worst[q] = statistics.median(seconds(draw, 5))
        middle = float(np.median(macs))
        draw = functools.partial(space.sample_genes, 50, 1, macs=(0.97 * middle, 1.03 * middle))
        fifty = beside(draw, repeats=5, training=False)
        report(
            f"W6 drawing within limits, {name}",
            set_up_seconds=setup,
            seconds_for_1000_within_1_percent=worst,
            seconds_for_50_within_3_percent=fifty["seconds"],
            calibrator=fifty["calibrator"],
            ratio=fifty["ratio"],
            peak_mib=peak_mib(),
            released={"seconds_for_50_within_3_percent": released_seconds},
            target={"seconds_for_1000_within_1_percent": 2},
        )


if __name__ == "__main__":
    main()
