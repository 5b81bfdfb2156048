"""Stand-alone networks against timm's: the same architecture and weights, in turn, forward pass and training step.

python benchmarks/timm_networks.py [NAME ...]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import timm
import torch
from common import Calibrator, peak_mib, pictures, report, seconds, soft_loss, soft_targets

from superformer.interop.timm_weights import from_timm

NAMES = ("swin_s3_tiny_224", "twins_svt_small", "deit_tiny_patch16_224", "resnet50")


def main() -> None:
    x, y = pictures(8), soft_targets(8)
    for name in sys.argv[1:] or NAMES:
        theirs = timm.create_model(name)
        ours = from_timm(theirs)
        if name == "resnet50":  # timm's fastest layout on a CPU; ours is always that
            theirs = theirs.to(memory_format=torch.channels_last)
        given = {id(theirs): x.contiguous(memory_format=torch.channels_last) if name == "resnet50" else x, id(ours): x}

        @torch.no_grad()
        def forward(net: torch.nn.Module, given: dict[int, torch.Tensor] = given) -> None:
            net.eval()(given[id(net)])

        def step(net: torch.nn.Module, given: dict[int, torch.Tensor] = given) -> None:
            net.train().zero_grad()
            soft_loss(net(given[id(net)]), y).backward()

        def compare(
            work: Callable[[torch.nn.Module], None],
            repeats: int,
            ours: torch.nn.Module = ours,
            theirs: torch.nn.Module = theirs,
        ) -> float:
            work(ours), work(theirs)
            pairs = [
                (seconds(lambda: work(ours), 1, 0)[0], seconds(lambda: work(theirs), 1, 0)[0]) for _ in range(repeats)
            ]
            return statistics.median(a / b for a, b in pairs)

        unit = Calibrator()()
        figures = {"forward_over_timm": compare(forward, 15), "step_over_timm": compare(step, 9)}
        report(
            f"stand-alone {name} against timm",
            **figures,
            calibrator=unit,
            peak_mib=peak_mib(),
            target={"forward_over_timm": 1, "step_over_timm": 1},
        )


if __name__ == "__main__":
    main()
