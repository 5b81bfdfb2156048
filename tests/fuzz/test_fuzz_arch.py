"""Architectures from anywhere: refused with a line to read, or a network that costs, is drawn, is built and runs."""

from __future__ import annotations

import json

import torch
from helpers.fuzzing import SMALL, mutated, tried
from torch.utils.flop_counter import FlopCounterMode

import superformer as sf
from superformer.draw import draw
from superformer.recipes import names, resolve, space_of
from superformer.space import point

SPACES = [space_of(resolve(name)) for name in names() if name.endswith("-laptop")] + SMALL
TREES = [json.loads(arch.to_json()) for space in SPACES for arch in (space.smallest(), *space.sample(1, seed=1))]
RUNS = 3e8
"""MACs up to which a network is run."""


def use(text: str) -> str:
    arch = sf.Arch.from_json(text)
    assert sf.Arch.from_json(arch.to_json()) == arch
    space = point(arch)
    assert space.size == 1
    cost = sf.cost(space, [arch], num_classes=10)
    draw(arch)
    net = sf.model(arch, num_classes=10) if cost.params[0] < 1e8 else type(sf.model).__name__
    if isinstance(net, str):
        return "large"
    assert sum(p.numel() for p in net.parameters()) == cost.params[0] > 0
    if cost.macs[0] > RUNS:
        return "built"
    x = torch.randn(1, 3, arch.resolution, arch.resolution)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        assert net.eval()(x).isfinite().all()
    assert counter.get_total_flops() == 2 * cost.macs[0]
    return "ran"


def case(seed: int) -> str:
    return use(json.dumps(mutated(TREES[seed % len(TREES)], seed)))


def test_mutated_architectures_are_refused_or_run():
    counts, bad = tried(case, 100)
    print(dict(counts))
    assert bad == []
