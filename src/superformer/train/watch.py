"""Health while training: the accuracy of the smallest, the largest and a few fixed random sub-networks on the search split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from superformer.elastic.conv import BatchNorm, recalibrate
from superformer.families.base import Network
from superformer.space import Space
from superformer.space.arch import Arch

Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""Pictures and labels, from the beginning each time it is called."""


def watched(space: Space, networks: int, seed: int) -> dict[str, Arch]:
    """The sub-networks that are watched: always the same ones."""
    random = space.sample(networks, seed=seed) if networks else []
    return {"smallest": space.smallest(), "largest": space.largest()} | {f"random {i + 1}": a for i, a in enumerate(random)}


def needs_recalibration(net: Network) -> bool:
    """Whether the statistics of a sub-network's batch norms are not its own until they are estimated anew."""
    return any(isinstance(m, BatchNorm) for m in net.modules())


@torch.no_grad()
def accuracy(net: Network, arch: Arch, batches: Batches, calibration: Sequence[Tensor] = (), sides: Sequence[str] = ("left",)) -> float:
    """The share of pictures that a sub-network names right; with several sides the mean of theirs (as ViTAS scores).

    ``calibration``: batches of training pictures for the batch norms, where there are any to estimate anew.
    """
    was, right, seen = net.training, 0.0, 0
    net.eval()
    try:
        for side in sides:
            model: Callable[[Tensor], Tensor]
            if calibration and needs_recalibration(net):
                model = recalibrate(net.extract(arch, side), calibration)
            else:
                model = _bound(net, arch, side)
            for x, labels in batches():
                right += float((model(x).argmax(1) == labels).sum())
                seen += len(labels)
    finally:
        net.train(was)
    return right / max(seen, 1)


def _bound(net: Network, arch: Arch, side: str) -> Callable[[Tensor], Tensor]:
    def call(x: Tensor) -> Tensor:
        out: Tensor = net(x, arch, side=side)
        return out

    return call


def check(
    net: Network, archs: Mapping[str, Arch], batches: Batches, calibration: Sequence[Tensor], sides: Sequence[str]
) -> dict[str, float]:
    """The accuracy of every watched sub-network."""
    return {name: accuracy(net, arch, batches, calibration, sides) for name, arch in archs.items()}
