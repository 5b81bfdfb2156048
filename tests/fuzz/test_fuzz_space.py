"""Spaces from anywhere: refused with a line to read, or counted, drawn from, costed and written."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from helpers.fuzzing import SMALL, mutated, tried

import superformer as sf
from superformer.recipes import names, resolve, space_of
from superformer.space import costs, tables

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
    assert bad == []
    assert counts["used"] > 0


def changed(change: Callable[[dict[str, Any]], object], space: str = "vitas-block") -> str:
    tree = json.loads(sf.space(space).to_json())
    change(tree)
    return json.dumps(tree)


HOSTILE = {
    "a word for a size": changed(lambda t: t.update(img_size="yes")),
    "a word among sizes": changed(lambda t: t["choices"].update(width=[96, "1&12"])),
    "infinity": changed(lambda t: t["choices"].update(stem=float("-inf")), "nasvit"),
    "a share": changed(lambda t: t["stages"][0]["block"].update(heads=[-0.5, 2])),
    "truth": changed(lambda t: t["stages"][0].update(depth=True)),
    "truth among sizes": changed(lambda t: t["choices"].update(width=[True, 96])),
    "a size twice": changed(lambda t: t["choices"].update(width=[96, 96.0])),
    "a depth without end": changed(lambda t: t["stages"][0].update(depth=10**12)),
    "stages without end": changed(lambda t: t.update(stages=t["stages"] * 2000)),
    "values without end": changed(lambda t: t["choices"].update(width=list(range(1, 5000)))),
    "a multiple of itself": changed(lambda t: t["stages"][0]["block"].update(mlp={"times": 2, "of": "mlp"})),
    "a multiple of a list": changed(lambda t: t["stages"][0]["block"].update(mlp={"times": 2, "of": [1]})),
    "many times": changed(lambda t: t["stages"][0]["block"].update(mlp={"times": [2], "of": "width"})),
    "a ratio of words": changed(lambda t: t["stages"][0]["block"].update(mlp={"ratio": ["a"], "of": "width"})),
    "a ratio too large": changed(lambda t: t["stages"][0]["block"].update(mlp={"ratio": [1e300], "of": "width"})),
    "nothing of a width": changed(lambda t: t["stages"][0]["block"].update(mlp={"ratio": [1e-9], "of": "width"})),
    "options that are none": changed(lambda t: t.update(options=[1])),
    "a family that is none": changed(lambda t: t.update(family=["vit"])),
    "a type that is none": changed(lambda t: t["stages"][0]["block"].update(type=[1]), "vitas-twins-tiny"),
    "pictures too large to count": changed(
        lambda t: t["choices"].update(resolution=[4096], patch_size=[1], width=[9600])
    ),
    "nested": '{"name":' * 50_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_spaces_are_refused_in_a_line(text):
    with pytest.raises(sf.SuperformerError) as told:
        sf.Space.from_json(text)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 500


@pytest.mark.parametrize(
    "limits",
    [{"width": ["x"]}, {"depth": [None]}, {"width": {"a": 1}}, {"width": []}, {"heads": float("nan")}, {"x": 1}],
)
def test_narrowing_to_what_is_not_there_is_refused(limits):
    with pytest.raises(sf.SuperformerError):
        sf.space("vitas-v1").narrow(**limits)


def test_spaces_with_too_many_combinations_are_drawn_from_but_not_within_limits():
    many = list(range(2, 202, 2))
    block = {"heads": 1, "attn": many, "mlp": many}
    space = sf.Space("many", "vit", (sf.Stage(block, range(1, 9)),), {"patch_size": 8, "width": many}, 16)
    assert len(space.sample(5)) == 5
    with pytest.raises(sf.SuperformerError, match="narrow the space"):
        space.sample(5, macs=(0, 10**9))


def test_what_is_kept_of_many_spaces_is_bounded():
    """Tables of NASViT's space are a gigabyte; a process that saw many spaces grew to four."""
    for k in range(40):
        block = {"heads": 1, "attn": (4, 8 + k), "mlp": (4, 8 + k)}
        space = sf.Space(f"s{k}", "vit", (sf.Stage(block, (1, 2)),), {"patch_size": 8, "width": (8, 8 + k + 1)}, 16)
        space.sample(2, macs=(0, 10**9))
        sf.cost(space, space.sample(2))
    kept = tables._kept
    assert sum(t.bytes for t in kept.values()) <= tables.KEPT
    assert len(kept) <= 8
    assert costs.skeleton.cache_info().currsize <= 32
    assert costs.Exact.of.cache_info().currsize <= 8


def test_tables_are_forgotten_by_their_size(monkeypatch):
    monkeypatch.setattr(tables, "KEPT", 1)
    for name in ("vitas-block", "autoformer-tiny"):
        sf.space(name).sample(1, macs=(0, 10**12))
    assert len(tables._kept) == 1
