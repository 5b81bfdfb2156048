"""Spaces from anywhere: refused with a line to read, or counted, drawn from, costed and written."""

from __future__ import annotations

import json

from helpers.fuzzing import SMALL, mutated, tried

import superformer as sf
from superformer.recipes import names, resolve, space_of

SPACES = [space_of(resolve(name)) for name in names() if name.endswith("-laptop")] + SMALL
TREES = [json.loads(space.to_json()) for space in SPACES]


def use(text: str) -> str:
    space = sf.Space.from_json(text)
    assert sf.Space.from_json(space.to_json()) == space
    assert space.size >= 1
    assert space.paths >= space.size
    repr(space)
    archs = [space.smallest(), space.largest(), *space.sample(3, seed=1), *space.sample(2, over="architectures")]
    assert space.decode(space.encode(archs)) == archs
    cost = sf.cost(space, archs, num_classes=10)
    assert cost.params.min() > 0
    assert cost.macs.min() > 0
    for arch in archs[2:4]:
        assert sf.Arch.from_json(arch.to_json()) == arch
    low, high = cost.macs[[0, 1]].tolist()
    if low <= high:
        assert len(space.sample(2, macs=(low, high), num_classes=10)) == 2
    return "used"


def case(seed: int) -> str:
    return use(json.dumps(mutated(TREES[seed % len(TREES)], seed)))


def test_mutated_spaces_are_refused_or_usable():
    counts, bad = tried(case, 80)
    print(dict(counts))
    assert bad == []
