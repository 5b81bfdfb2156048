"""The accuracy of sub-networks of a trained supernet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from superformer import data
from superformer.cost import cost
from superformer.errors import SuperformerError, nearest
from superformer.run import Run
from superformer.space import Space
from superformer.space.arch import Arch
from superformer.train.watch import accuracy, needs_recalibration
from superformer.trained import load_supernet

SPLITS = ("test", "search")
CALIBRATION, BATCH = 8, 64
"""Batches of training pictures that batch norms are estimated on, and their size."""


def chosen(run: Run, space: Space, word: str) -> Arch:
    """What a word of the command line means: smallest, largest, best (of the last search), a key of its front, or a file."""
    if word in ("smallest", "largest"):
        return space.smallest() if word == "smallest" else space.largest()
    path = Path(word)
    if not path.is_file():
        found = run.front() if word == "best" or run.front_file.exists() else {"front": [], "best": None}
        key = found["best"] if word == "best" else word
        arch = next((row["arch"] for row in found["front"] if row["key"] == key), None)
        if arch is None:
            known = ["smallest", "largest", "best", *(row["key"] for row in found["front"])]
            raise SuperformerError(f"unknown architecture {word!r}, and no file of that name: {nearest(word, known)}")
        return Arch.from_json(json.dumps(arch))
    arch = Arch.from_json(path.read_text())
    space.encode([arch])
    return arch


def evaluate(folder: str | Path, words: Sequence[str], split: str = "test") -> list[dict[str, Any]]:
    """Accuracy, MACs and parameters of sub-networks, a row each."""
    if split not in SPLITS:
        raise SuperformerError(f"unknown split {split!r}: {nearest(split, SPLITS)}")
    run = Run.open(folder)
    run.trained()
    space, recipe, facts = run.space(), run.recipe(), run.facts()
    archs = [chosen(run, space, word) for word in words]
    pictures = data.load(facts["data"], recipe.data, facts["img_size"])
    run.same_pictures(pictures.fingerprint)
    net = load_supernet(run.supernet_file)
    part = pictures.test() if split == "test" else pictures.search

    def batches() -> Iterable[tuple[Tensor, Tensor]]:
        return data.eval_batches(part, recipe.data, facts["img_size"], 256)

    calibration: list[Tensor] = []
    if needs_recalibration(net):
        found = data.eval_batches(pictures.train, recipe.data, facts["img_size"], BATCH, limit=CALIBRATION * BATCH)
        calibration = [x for x, _ in found]
    sides = net.sharing.sides if recipe.sampling.sides == "both" else ("left",)
    costs = cost(space, archs, num_classes=net.num_classes)
    return [
        {"arch": word, "accuracy": accuracy(net, arch, batches, calibration, sides), "macs": int(macs), "params": int(params)}
        for word, arch, macs, params in zip(words, archs, costs.macs, costs.params, strict=True)
    ]
