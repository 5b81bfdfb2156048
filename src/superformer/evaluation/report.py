"""The accuracy of sub-networks of a trained supernet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from superformer import data
from superformer.cost import cost
from superformer.errors import SuperformerError, nearest
from superformer.evaluation.evaluator import Evaluator
from superformer.run import Run
from superformer.space import Space
from superformer.space.arch import Arch
from superformer.trained import load_supernet

SPLITS = ("test", "search")


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
    scores = Evaluator.of(net, recipe, pictures, part, facts["img_size"])(archs)
    costs = cost(space, archs, num_classes=net.num_classes)
    return [
        {"arch": word, "accuracy": score, "macs": int(macs), "params": int(params)}
        for word, score, macs, params in zip(words, scores, costs.macs, costs.params, strict=True)
    ]
