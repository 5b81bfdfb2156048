"""The accuracy of sub-networks of a trained supernet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from superformer import data
from superformer.cost import cost
from superformer.errors import SuperformerError, nearest
from superformer.evaluation.evaluator import Evaluator
from superformer.run import Run
from superformer.trained import load_supernet

SPLITS = ("test", "search")


def evaluate(folder: str | Path, words: Sequence[str], split: str = "test") -> list[dict[str, Any]]:
    """Accuracy, MACs and parameters of sub-networks, a row each."""
    if split not in SPLITS:
        raise SuperformerError(f"unknown split {split!r}: {nearest(split, SPLITS)}")
    run = Run.open(folder)
    run.trained()
    space, recipe, facts = run.space(), run.recipe(), run.facts()
    archs = [run.arch(word) for word in words]
    pictures = data.load(facts["data"], recipe.data, facts["img_size"])
    run.same_pictures(pictures.fingerprint)
    net = load_supernet(run.supernet_file)
    part = pictures.test() if split == "test" else pictures.search
    scores = Evaluator.of(net, recipe, pictures, part, facts["img_size"])(archs)
    costs = cost(space, archs, num_classes=net.num_classes)
    return [
        {"arch": word, "accuracy": score, "macs": int(macs), "params": int(params)}
        for word, score, macs, params in zip(words, scores, costs.macs, costs.params, strict=True)
    ]
