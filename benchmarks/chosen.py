"""By what should the best of a search be chosen, where the search split is small? One JSON line for each run.

Random networks of one budget (0.9 to 1 of the median MACs) are judged picture by picture. Many times, some pictures of
the search split are drawn, the networks compared on them and on their moved copies, and one is chosen, as a search
does; how it does on the test pictures tells how good the way of choosing is. Best with runs on data that no figure of
the documentation is measured on, and with many test pictures.

python benchmarks/chosen.py [--networks 80] [--pictures 287] RUN [RUN ...]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from common import report
from numpy.typing import NDArray

import superformer as sf
from superformer import data
from superformer.evaluation.evaluator import Score, TrainedRun, varied_copies
from superformer.runs import Run
from superformer.search.scores import agreed, ranked

Floats = NDArray[np.float64]
WAYS: dict[str, Callable[[list[Score]], Floats]] = {
    "accuracy": lambda scores: np.asarray([s.accuracy for s in scores]),
    "accuracy, of equals the lower loss": ranked,
    "loss": lambda scores: -np.asarray([s.loss for s in scores]),
    "places in both": agreed,
}
DRAWS = 300
NETWORKS, FINALISTS = 0.8, 1 / 3
"""Parts of the networks that a draw has, and of those, the ones that are judged again."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", type=int, default=80)
    parser.add_argument("--pictures", type=int, default=287)
    parser.add_argument("runs", nargs="+")
    given = parser.parse_args()
    for folder in given.runs:
        right, lost, test = _judged(TrainedRun.of(Run.open(folder)), given.networks)
        place = np.asarray([(test < t).mean() + 0.5 * (test == t).mean() for t in test])
        rng, found = np.random.default_rng(0), {way: list[int]() for way in WAYS}
        for _ in range(DRAWS):
            some = rng.choice(right.shape[2], min(given.pictures, right.shape[2]), replace=False)
            who = rng.choice(len(test), int(NETWORKS * len(test)), replace=False)
            few, more = (_scores(right[who, :n][:, :, some], lost[who, :n][:, :, some]) for n in (1, None))
            for way, value in WAYS.items():
                final = np.argsort(-value(few), kind="stable")[: int(FINALISTS * len(who))]
                found[way].append(who[final[np.argmax(value([more[k] for k in final]))]])
        report(
            f"chosen by {given.pictures} pictures of the search split: {Path(folder).name}",
            networks=len(test),
            test_spread=float(test.std()),
            share_of_networks_below={way: float(place[chosen].mean()) for way, chosen in found.items()},
            above_the_median={way: float((test[chosen] > np.median(test)).mean()) for way, chosen in found.items()},
        )


def _scores(right: Floats, lost: Floats) -> list[Score]:
    return [Score(float(a.mean()), float(b.mean())) for a, b in zip(right, lost, strict=True)]


@torch.no_grad()
def _judged(opened: TrainedRun, networks: int) -> tuple[Floats, Floats, Floats]:
    """Of each network: whether it is right about each copy of each picture of the search split, its loss there, its
    test accuracy."""
    space, settings = opened.space, opened.recipe.data
    limit = float(np.median(sf.cost(space, space.sample_genes(2000, 0), num_classes=opened.net.num_classes).macs))
    search, test = (
        list(data.eval_batches(part, settings, opened.img_size, 250))
        for part in (opened.pictures.search, opened.pictures.test())
    )
    right, lost, tested = [], [], []
    for arch in space.sample(networks, seed=1, macs=(0.9 * limit, limit), num_classes=opened.net.num_classes):
        net = opened.network(arch)
        outs = [([net(one) for one in varied_copies(x, settings)], y) for x, y in search]
        right.append(torch.cat([torch.stack([(o.argmax(1) == y).double() for o in some]) for some, y in outs], 1))
        lost.append(
            torch.cat([torch.stack([F.cross_entropy(o, y, reduction="none") for o in some]) for some, y in outs], 1)
        )
        tested.append(torch.cat([net(x).argmax(1) == y for x, y in test]).double().mean())
    return torch.stack(right).numpy(), torch.stack(lost).double().numpy(), torch.stack(tested).numpy()


if __name__ == "__main__":
    main()
