"""Spaces of several input sizes: a sub-network sees pictures at its own size, and is the network of that size."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from helpers.strategies import SMALL, spaces_with_archs
from helpers.supernets import double
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import superformer as sf
from superformer.evaluation.prefix_tree import grow, walk
from superformer.families.weights import absorb
from superformer.train.warm_start import from_network


def in_two_sizes(space: sf.Space) -> sf.Space:
    sizes = (space.img_size, 2 * space.img_size)
    return replace(space, choices={**space.choices, "resolution": sizes}, img_size=sizes[-1])


SPACES = st.one_of(*(SMALL[name].map(in_two_sizes) for name in ("vit", "swin", "twins", "resnet") if name in SMALL))


def pictures(n: int, size: int) -> torch.Tensor:
    return torch.randn(n, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def smaller(x: torch.Tensor, size: int) -> torch.Tensor:
    return F.interpolate(x, size=(size, size), mode="bicubic", antialias=True) if x.shape[-1] != size else x


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


@given(spaces_with_archs(3, SPACES))
def test_the_extracted_network_equals_the_supernet(case):
    space, archs = case
    net, x = double(space), pictures(3, space.img_size)
    alone = []
    for arch in archs:
        model, own = net.extract(arch), smaller(x, arch.resolution)
        assert model.space.img_size == arch.resolution
        close(model(own), net(own, arch))
        close(model(own), net(x, arch))
        alone.append(model(own))
    for mode in ("sliced", "masked"):
        together = net(x, archs, mode=mode)
        close(together, torch.cat([one[k : k + 1] for k, one in enumerate(alone)]))
    if not any(isinstance(m, torch.nn.BatchNorm2d) for m in net.modules()):
        for k, logits in walk(grow(net, archs, (space.img_size,) * 2), x):
            close(logits, alone[k])


@given(spaces_with_archs(3, SPACES))
def test_cost_is_what_torch_counts_at_its_own_size(case):
    space, archs = case
    net, cost = sf.supernet(space, 5).eval(), sf.cost(space, archs, num_classes=5)
    for arch, macs, params in zip(archs, cost.macs, cost.params, strict=True):
        model = net.extract(arch)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.zeros(1, 3, arch.resolution, arch.resolution))
        assert 2 * macs == counter.get_total_flops()
        assert params == sum(p.numel() for p in model.parameters())


@given(spaces_with_archs(1, SPACES))
def test_weights_go_back_where_they_came_from(case):
    space, (arch,) = case
    net, other = double(space), sf.supernet(space, 5, seed=9).double().eval()
    absorb(other, arch, net.extract(arch).state_dict())
    x = pictures(2, arch.resolution)
    close(other(x, arch), net(x, arch))


@pytest.mark.parametrize("size", [8, 12, 16])
def test_a_network_is_at_every_size_what_it_is_at_that_size(size):
    """A supernet that starts from a network computes its function at its own size, and at others that of the network
    with resized positions."""
    block = {"heads": 2, "attn": 8, "mlp": (8, 16)}
    space = sf.Space("s", "vit", (sf.Stage(block, 3),), {"patch_size": 4, "width": 8, "resolution": (8, 12, 16)}, 16)
    network = sf.supernet(replace(space, choices={"patch_size": 4, "width": 8}), 5, seed=3).double().eval()
    largest = network.space.largest()
    network = network.extract(largest)
    net = sf.supernet(space, 5).double().eval()
    from_network(net, network)
    x = pictures(2, size)
    close(net(x, replace(largest, resolution=size)), network(x))
