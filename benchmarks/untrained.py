"""What sub-networks of the space around a trained network know before any training: one JSON line.

The retrained network of a run (``RUN/model``) is put into the supernet of the space around it, in the order of what
matters on the run's training pictures; then random sub-networks at shares of its MACs, and the network with smaller
pictures alone where the space has them, are judged on the test pictures.

python benchmarks/untrained.py RUN [--speed-up 2] [--networks 40]"""

from __future__ import annotations

import argparse
import statistics

import torch
from common import report

import superformer as sf
from superformer import data
from superformer.cost import cost
from superformer.evaluation.evaluator import Evaluator
from superformer.runs import Run
from superformer.runs.storage import load_network
from superformer.train.importance import measure
from superformer.train.warm_start import from_network

SHARES = (0.75, 0.5)
UNITS, BLOCKS = 256, 128
"""Training pictures that tell the importance of units, and of blocks."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--speed-up", type=float, default=2.0)
    parser.add_argument("--networks", type=int, default=40)
    given = parser.parse_args()
    run = Run.open(given.run)
    net = load_network(run.folder / "model").net.eval()
    recipe, size = run.recipe(), net.space.img_size
    pictures = data.load(run.facts()["data"], recipe.data, size)
    order = torch.randperm(len(pictures.train), generator=torch.Generator().manual_seed(0))[: UNITS + BLOCKS]
    all_of_them = torch.cat([x for x, _ in data.eval_batches(pictures.train, recipe.data, size, 64)])
    x = all_of_them[order]
    orders = measure(net, [x[:UNITS]], x[UNITS:])
    space = sf.space_around(net, given.speed_up, order=orders.blocks)
    supernet = sf.supernet(space, net.num_classes)
    from_network(supernet, net, orders)
    judge = Evaluator.of(supernet.eval(), recipe, pictures, pictures.test(), size, None, torch.device("cpu"))
    whole = float(cost(space, [space.largest()], net.num_classes).macs[0])
    (original,) = judge([space.largest()])
    found: dict[str, object] = {"original": original, "macs": whole, "chance": 1 / net.num_classes}
    for share in SHARES:
        limits = (0.9 * share * whole, share * whole)
        accuracies = judge(space.sample(given.networks, seed=0, macs=limits, num_classes=net.num_classes))
        found[f"at {share:g}"] = {"best": max(accuracies), "median": statistics.median(accuracies)}
    report(f"untrained sub-networks around {net.space.family}", **found)


if __name__ == "__main__":
    main()
