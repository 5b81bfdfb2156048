"""Architectures from anywhere: refused with a line to read, or a network that costs, is drawn, is built and runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
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
    if cost.params[0] > 1e8:
        return "large"
    net = sf.model(arch, num_classes=10)
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
    assert bad == []
    assert counts["ran"] > 0


def changed(change: Callable[[dict[str, Any]], object], space: str = "vitas-block") -> str:
    tree = json.loads(sf.space(space).smallest().to_json())
    change(tree)
    return json.dumps(tree)


HOSTILE = {
    "a word for a number": changed(lambda t: t["stages"][0]["blocks"][0].update(heads="2")),
    "a negative share": changed(lambda t: t["stages"][0]["blocks"][0].update(heads=-0.5)),
    "nothing": changed(lambda t: t["stages"][0]["blocks"][0].update(attn=0)),
    "truth": changed(lambda t: t.update(resolution=True)),
    "infinity": changed(lambda t: t["choices"].update(stem=float("-inf")), "nasvit"),
    "infinity, written out": changed(lambda t: t["choices"].update(stem=12345), "nasvit").replace("12345", "1e400"),
    "not a number": changed(lambda t: t["choices"].update(width=float("nan"))),
    "no object": changed(lambda t: t.update(options=3)),
    "no object of choices": changed(lambda t: t["stages"][0].update(choices=[1])),
    "too wide": changed(lambda t: t["choices"].update(width=10**9)),
    "too large pictures": changed(lambda t: t.update(resolution=8192)),
    "too deep": changed(lambda t: t["stages"][0].update(blocks=t["stages"][0]["blocks"][:1] * 5000)),
    "thousands of digits": changed(lambda t: t["choices"].update(width=12345)).replace("12345", "9" * 5000),
    "nested": "[" * 100_000,
    "nested, well-formed": changed(lambda t: t.update(x=1)).replace('"x": 1', '"x": ' + "[" * 900 + "]" * 900),
    "twice": '{"family": "vit", "family": "vit"}',
    "positions that are none": changed(lambda t: t["stages"][0].update(at=[True])),
    "positions for other blocks": changed(lambda t: t["stages"][0].update(at=[0])),
    "an option of another kind": changed(lambda t: t.update(options={"resize": "off"}), "nasvit"),
    "an option of no size": changed(lambda t: t.update(options={"rel_pos": 0.5}), "vitas-block"),
    "a scale of nothing": changed(lambda t: t.update(options={"layer_scale": 0})),
    "a huge text": " " * 5_000_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_architectures_are_refused_in_a_line(text):
    with pytest.raises(sf.SuperformerError) as told:
        sf.Arch.from_json(text)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 500


def test_networks_larger_than_the_machine_are_refused_before_memory_is_asked_for():
    tree = json.loads(sf.space("vitas-block").smallest().to_json())
    block = {"heads": 1, "attn": 65536, "mlp": 65536}
    tree["choices"]["width"], tree["stages"][0]["blocks"] = 65536, [block] * 100
    arch = sf.Arch.from_json(json.dumps(tree))
    assert sf.cost(point(arch), arch).params[0] > 10**12
    with pytest.raises(sf.SuperformerError, match="this machine has"):
        sf.model(arch)
