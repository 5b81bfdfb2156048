"""The accuracy of candidates: sub-networks of one supernet, with the weights they inherit, on the search split.

Candidates are evaluated together, as a tree (`superformer.search.tree`): those that begin with the same blocks share the work up to where
they differ.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from superformer.elastic.conv import BatchNorm
from superformer.errors import SuperformerError
from superformer.families.base import Network
from superformer.search.tree import grow, walk
from superformer.space.arch import Arch

Batches = Sequence[tuple[Tensor, Tensor]]
TOGETHER = 64
"""Candidates of one tree."""


class Evaluator:
    """Accuracy on fixed pictures.

    ``batches``: pictures and labels. ``calibration``: batches of training pictures, on which the statistics of batch norms are estimated
    for each candidate; needed by networks that have any. With several ``sides`` (bilateral sharing) the score is the mean of theirs.
    """

    def __init__(self, net: Network, batches: Batches, calibration: Sequence[Tensor] = (), sides: Sequence[str] = ("left",)):
        norms = [m for m in net.modules() if isinstance(m, BatchNorm)]
        if norms and not calibration:
            raise SuperformerError("networks with batch norm need calibration: a few batches of training pictures")
        self.net = copy.deepcopy(net).eval() if norms else net.eval()  # estimating statistics must not change the supernet's
        for norm in self.net.modules():
            if isinstance(norm, BatchNorm):
                norm.momentum = None  # plain averages
        self.batches, self.sides = batches, tuple(sides)
        self.calibration = tuple(calibration) if norms else ()
        self.pictures = sum(len(labels) for _, labels in batches)

    def __call__(self, archs: Sequence[Arch], told: Callable[[int], None] = lambda done: None) -> list[float]:
        """The accuracy of each architecture; ``told`` hears how many are done."""
        out: list[float] = []
        for start in range(0, len(archs), TOGETHER):
            out += self._together(archs[start : start + TOGETHER])
            told(len(out))
        return out

    def _together(self, archs: Sequence[Arch]) -> list[float]:
        right = torch.zeros(len(archs), dtype=torch.float64)
        for side in self.sides:
            x = self.batches[0][0]
            root = grow(self.net, archs, (int(x.shape[-2]), int(x.shape[-1])), side)
            for n, (x, labels) in enumerate(self.batches):
                for k, logits in walk(root, x, self.calibration if n == 0 else ()):
                    right[k] += float((logits.argmax(1) == labels).sum())
        return (right / (self.pictures * len(self.sides))).tolist()
