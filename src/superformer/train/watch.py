"""Health while training: the accuracy of the smallest, the largest and a few random sub-networks, always the same ones."""

from __future__ import annotations

from superformer.evaluation.evaluator import Evaluator
from superformer.space import Space
from superformer.space.arch import Arch


def watched(space: Space, networks: int, seed: int) -> dict[str, Arch]:
    """The sub-networks that are watched; of a network by itself, the network."""
    if space.size == 1:
        return {"of the network": space.smallest()}
    random = space.sample(networks, seed=seed) if networks else []
    return {"smallest": space.smallest(), "largest": space.largest()} | {f"random {i + 1}": a for i, a in enumerate(random)}


def check(judge: Evaluator, archs: dict[str, Arch]) -> dict[str, float]:
    """The accuracy of every watched sub-network."""
    return dict(zip(archs, judge(list(archs.values())), strict=True))
