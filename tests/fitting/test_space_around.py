"""The space around a network: the network is its largest point; how far down it goes."""

from __future__ import annotations

import pytest
import timm

import superformer as sf
from superformer.recipes import resolve, space_of
from superformer.search import Problem, method
from superformer.spaces import arch as published


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("vit_tiny_patch16_224", [128, 160, 192, 224]),
        ("twins_svt_small", [128, 160, 192, 224]),
        ("resnet26", [128, 160, 192, 224]),
        ("swin_tiny_patch4_window7_224", [224]),  # its windows are as large as its last map
    ],
)
def test_of_a_timm_network(name: str, sizes: list[int]) -> None:
    space, arch = sf.space_around(name, speed_up=2), sf.from_timm(name).space.smallest()
    assert space.largest() == arch
    assert list(space.widths("resolution")) == sizes
    small, large = sf.cost(space, [space.smallest(), arch]).macs
    assert large / small > 3  # room for a front below half of the cost
    assert sf.space_around(timm.create_model(name)) == space == sf.space_around(arch) == sf.space_around(sf.model(arch))


@pytest.mark.parametrize("speed_up", [1.5, 4])
def test_of_every_published_network(speed_up: float) -> None:
    for name in sf.models():
        arch = published(name)
        space = sf.space_around(arch, speed_up)
        assert space.largest() == arch, name
        small, large = sf.cost(space, [space.smallest(), arch]).macs
        assert large / small > speed_up, name


def test_few_sizes_leave_no_gap() -> None:
    """A ResNet for pictures of 32 pixels may see 16 instead, at a quarter of the cost, and nothing between."""
    arch = space_of(resolve("vitas-resnet50-laptop")).largest()
    space = sf.space_around(arch, speed_up=2)
    assert list(space.widths("resolution")) == [16, 32]
    whole = int(sf.cost(space, [arch], num_classes=10).macs[0])
    for share in (0.25, 0.4, 0.5, 0.6, 0.75, 0.9):
        assert space.sample(3, seed=0, macs=(0.9 * share * whole, share * whole), num_classes=10)


def test_sizes_that_are_asked_for() -> None:
    arch = sf.from_timm("vit_tiny_patch16_224").space.smallest()
    assert sf.space_around(arch, sizes=()).widths("resolution") == (224,)
    assert sf.space_around(arch, sizes=(96,)).widths("resolution") == (96, 224)
    assert sf.space_around(arch, img_size=128).largest().resolution == 128
    with pytest.raises(sf.SuperformerError, match="a speed-up is a factor"):
        sf.space_around(arch, speed_up=1000)


def test_further_down_for_more_speed() -> None:
    arch = sf.from_timm("deit3_small_patch16_224").space.smallest()
    least = [float(sf.cost(s, [s.smallest()]).macs[0]) for s in (sf.space_around(arch, k) for k in (1.5, 2, 4, 8))]
    assert least == sorted(least, reverse=True)
    assert len(set(least)) == 4


def test_a_search_begins_with_the_largest_of_each_depth_and_size() -> None:
    """Within the limits: what a trained network can spare at once, before its widths are looked at."""
    space = sf.space_around(sf.from_timm("vit_tiny_patch16_224", img_size=128).space.smallest(), 3)
    problem = Problem.of(space, ("accuracy", "macs"), {"macs": (0, 2.6e8)})
    genes = method(problem, "nsga2", population=4, first="even").ask()
    archs = space.decode(genes)
    assert len({(a.resolution, len(a.stages[0].blocks)) for a in archs}) == len(archs) > 10
    most = space.largest()
    assert {a.choices["width"] for a in archs} == {most.choices["width"]}
    assert {b["mlp"] for a in archs for b in a.stages[0].blocks} == {most.stages[0].blocks[0]["mlp"]}
    assert problem.costs(genes)["macs"].max() <= 2.6e8
    assert {a.resolution for a in archs} == set(space.widths("resolution"))
    random = method(problem, "nsga2", population=4).ask()
    assert len(random) == 4
