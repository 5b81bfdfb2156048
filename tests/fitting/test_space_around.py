"""The space around a network: the network is its largest point; how far down it goes."""

from __future__ import annotations

import pytest
import timm

import superformer as sf


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
