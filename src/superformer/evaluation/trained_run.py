"""A trained run, opened: its supernet (or another network trained on its pictures), its pictures, and how they are
judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from superformer import data
from superformer.cost import cost
from superformer.elastic.conv import recalibrate
from superformer.errors import SuperformerError, nearest
from superformer.evaluation.evaluator import CALIBRATION, FEW, Evaluator
from superformer.families.network import Network
from superformer.recipes import Recipe
from superformer.runs.folder import Run
from superformer.runs.storage import load_supernet
from superformer.space import Space
from superformer.space.arch import Arch


@dataclass(frozen=True)
class Opened:
    run: Run
    recipe: Recipe
    net: Network
    pictures: data.DataSet
    img_size: int
    device: torch.device | None = None

    @classmethod
    def of(
        cls, run: Run, net: Network | None = None, img_size: int | None = None, device: torch.device | None = None
    ) -> Self:
        """``net``: if not the run's supernet; ``img_size``: if not that of its training. Pictures that changed since
        are refused."""
        run.require_trained()
        recipe, size = run.recipe(), img_size or int(run.facts()["img_size"])
        pictures = data.load(run.facts()["data"], recipe.data, size)
        run.require_pictures(pictures.fingerprint)
        own = net or load_supernet(run.supernet_file)
        return cls(run, recipe, own.to(device), pictures, size, device)

    @property
    def space(self) -> Space:
        return self.net.space

    def network(self, arch: Arch) -> Network:
        """A sub-network with the weights it inherits; its batch norms are estimated on training pictures."""
        net = self.net.extract(arch).eval()
        if any(hasattr(m, "running_mean") for m in net.modules()):
            batches = data.eval_batches(
                self.pictures.train, self.recipe.data, self.img_size, FEW, limit=CALIBRATION * FEW
            )
            recalibrate(net, (x.to(self.device) for x, _ in batches))
        return net

    def judge(self, part: data.Pictures | None = None, limit: int | None = None, moved: bool = False) -> Evaluator:
        """Of sub-networks, on the search split or on another ``part`` of the pictures."""
        judged = self.pictures.search if part is None else part
        return Evaluator.of(self.net, self.recipe, self.pictures, judged, self.img_size, limit, self.device, moved)


# The accuracy of sub-networks of a trained supernet.


SPLITS = ("test", "search")


def evaluate(folder: str | Path, words: Sequence[str], split: str = "test") -> list[dict[str, Any]]:
    """Accuracy, MACs and parameters of sub-networks, a row each."""
    if split not in SPLITS:
        raise SuperformerError(f"unknown split {split!r}: {nearest(split, SPLITS)}")
    run = Run.open(folder)
    run.require_trained()
    archs = [run.arch(word) for word in words]
    opened = Opened.of(run)
    scores = opened.judge(opened.pictures.test() if split == "test" else None)(archs)
    costs = cost(opened.space, archs, num_classes=opened.net.num_classes)
    return [
        {"arch": word, "accuracy": score, "macs": int(macs), "params": int(params)}
        for word, score, macs, params in zip(words, scores, costs.macs, costs.params, strict=True)
    ]
