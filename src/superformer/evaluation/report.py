"""The accuracy of sub-networks of a trained supernet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from superformer.cost import cost
from superformer.errors import SuperformerError, nearest
from superformer.evaluation.opened import Opened
from superformer.run import Run

SPLITS = ("test", "search")


def evaluate(folder: str | Path, words: Sequence[str], split: str = "test") -> list[dict[str, Any]]:
    """Accuracy, MACs and parameters of sub-networks, a row each."""
    if split not in SPLITS:
        raise SuperformerError(f"unknown split {split!r}: {nearest(split, SPLITS)}")
    run = Run.open(folder)
    run.trained()
    archs = [run.arch(word) for word in words]
    opened = Opened.of(run)
    scores = opened.judge(opened.pictures.test() if split == "test" else None)(archs)
    costs = cost(opened.space, archs, num_classes=opened.net.num_classes)
    return [
        {"arch": word, "accuracy": score, "macs": int(macs), "params": int(params)}
        for word, score, macs, params in zip(words, scores, costs.macs, costs.params, strict=True)
    ]
