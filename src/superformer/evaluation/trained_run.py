"""A trained run: its supernet (or another network trained on its pictures), its pictures, and how networks are judged
by them."""

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
from superformer.evaluation.evaluator import CALIBRATION_BATCH, CALIBRATION_BATCHES, Evaluator
from superformer.families.network import Network
from superformer.recipes import Recipe
from superformer.runs import Run
from superformer.runs.storage import load_supernet
from superformer.space import Space
from superformer.space.arch import Arch

SPLITS = ("test", "search")


@dataclass(frozen=True)
class TrainedRun:
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
        net = net or load_supernet(run.supernet_file)
        return cls(run, recipe, net.to(device), pictures, size, device)

    @property
    def space(self) -> Space:
        return self.net.space

    def network(self, arch: Arch) -> Network:
        """A sub-network with the weights it inherits; its batch norms are estimated on training pictures."""
        net, most = self.net.extract(arch), CALIBRATION_BATCHES * CALIBRATION_BATCH
        batches = data.eval_batches(self.pictures.train, self.recipe.data, self.img_size, CALIBRATION_BATCH, limit=most)
        recalibrate(net, (x.to(self.device) for x, _ in batches))
        return net

    def evaluator(self, part: data.Pictures | None = None, limit: int | None = None, varied: bool = False) -> Evaluator:
        """Of sub-networks, on the search split or on another ``part`` of the pictures (see `Evaluator.of`)."""
        part = self.pictures.search if part is None else part
        return Evaluator.of(self.net, self.recipe, self.pictures, part, self.img_size, limit, self.device, varied)


def evaluate(folder: str | Path, words: Sequence[str], split: str = "test") -> list[dict[str, Any]]:
    """Accuracy, MACs and parameters of sub-networks of a trained supernet, a row each."""
    if split not in SPLITS:
        raise SuperformerError(f"unknown split {split!r}: {nearest(split, SPLITS)}")
    run = Run.open(folder)
    run.require_trained()
    archs = [run.arch(word) for word in words]
    trained = TrainedRun.of(run)
    scores = trained.evaluator(trained.pictures.test() if split == "test" else None)(archs)
    costs = cost(trained.space, archs, num_classes=trained.net.num_classes)
    return [
        {"arch": word, "accuracy": score, "macs": int(macs), "params": int(params)}
        for word, score, macs, params in zip(words, scores, costs.macs, costs.params, strict=True)
    ]
