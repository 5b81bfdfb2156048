"""The accuracy and the loss of sub-networks of one supernet on fixed pictures.

They are evaluated together, as a tree (`superformer.evaluation.tree`): those that begin alike share the work up to where they differ.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from superformer import data
from superformer.elastic.conv import BatchNorm
from superformer.elastic.synced import synchronise
from superformer.errors import SuperformerError
from superformer.evaluation.tree import alike, grow, walk
from superformer.families.base import Network
from superformer.recipes import Recipe
from superformer.space.arch import Arch

Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""Pictures and labels, from the beginning each time it is called."""
TOGETHER = 64
"""Networks of one tree."""
AT_ONCE = 256
"""Pictures of one batch."""
CALIBRATION, FEW = 8, 64
"""Batches of training pictures that batch norms are estimated on, and their size."""


class Score(NamedTuple):
    """Of a network on some pictures: the share that it gets right, and its mean cross-entropy (not a number: unknown)."""

    accuracy: float
    loss: float


def needs_recalibration(net: Network) -> bool:
    """Whether a sub-network's batch norms have no statistics of its own until they are estimated; a network by itself has its own."""
    return net.space.size > 1 and any(isinstance(m, BatchNorm) for m in net.modules())


class Evaluator:
    """Accuracy and loss on fixed pictures.

    ``calibration``: batches of training pictures, on which the statistics of batch norms are estimated for each network; needed where there
    are any. With several ``sides`` (bilateral sharing) the score is the mean of theirs, as ViTAS scores.
    """

    def __init__(self, net: Network, batches: Batches, calibration: Sequence[Tensor] = (), sides: Sequence[str] = ("left",)):
        norms = needs_recalibration(net)
        if norms and not calibration:
            raise SuperformerError("networks with batch norm need calibration: a few batches of training pictures")
        self.net = copy.deepcopy(net) if norms else net  # estimating statistics must not change the supernet's
        for norm in self.net.modules() if norms else ():
            if isinstance(norm, BatchNorm):
                norm.momentum = None  # plain averages
        if norms:
            synchronise(self.net, on=False)  # this process evaluates by itself; the others would never answer
        self.batches, self.sides = batches, tuple(sides)
        self.calibration = tuple(calibration) if norms else ()

    @staticmethod
    def of(
        net: Network,
        recipe: Recipe,
        pictures: data.DataSet,
        part: data.Pictures,
        img_size: int,
        limit: int | None = None,
        device: torch.device | None = None,
    ) -> Evaluator:
        """On a part of a data set, as a recipe prepares pictures; batch norms are estimated on its training pictures."""

        def batches(which: data.Pictures, size: int, most: int | None) -> Iterable[tuple[Tensor, Tensor]]:
            for x, labels in data.eval_batches(which, recipe.data, img_size, size, limit=most):
                yield x.to(device), labels.to(device)

        calibration = [x for x, _ in batches(pictures.train, FEW, CALIBRATION * FEW)] if needs_recalibration(net) else []
        sides = net.sharing.sides if recipe.sampling.sides == "both" else ("left",)
        return Evaluator(net, lambda: batches(part, AT_ONCE, limit), calibration, sides)

    def __call__(self, archs: Sequence[Arch]) -> list[float]:
        """The accuracy of each architecture."""
        return [score.accuracy for score in self.scores(archs)]

    def scores(self, archs: Sequence[Arch]) -> list[Score]:
        """The accuracy and the loss of each architecture."""
        was, found = self.net.training, dict[int, Score]()
        order = alike(archs)
        self.net.eval()
        try:
            for start in range(0, len(order), TOGETHER):
                some = order[start : start + TOGETHER]
                found |= zip(some, self._together([archs[k] for k in some]), strict=True)
        finally:
            self.net.train(was)
        return [found[k] for k in range(len(archs))]

    def _together(self, archs: Sequence[Arch]) -> list[Score]:
        right, lost, seen = torch.zeros(len(archs), dtype=torch.float64), torch.zeros(len(archs), dtype=torch.float64), 0
        for side in self.sides:
            root = None
            for x, labels in self.batches():
                first = root is None
                if root is None:
                    root = grow(self.net, archs, (int(x.shape[-2]), int(x.shape[-1])), side)
                for k, logits in walk(root, x, self.calibration if first else ()):
                    right[k] += float((logits.argmax(1) == labels).sum())
                    lost[k] += float(F.cross_entropy(logits.float(), labels, reduction="sum"))
                seen += len(labels)
        return [Score(*pair) for pair in (torch.stack([right, lost], 1) / max(seen, 1)).tolist()]
