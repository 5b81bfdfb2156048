"""Twins: timm's networks, the feature pyramid, and the spaces of ViTAS v2."""

from __future__ import annotations

import pytest
import timm
import torch
from helpers.training import THOROUGH

import superformer as sf
from superformer.elastic.positions import join_windows, pad_to_windows, split_windows
from superformer.errors import SpaceError
from superformer.interop.timm_weights import from_timm
from superformer.interop.timm_weights.pyramids import twins_arch as arch_of
from superformer.kernels.convolution import patches
from superformer.space import point
from superformer.space.costs import Exact
from superformer.spaces import arch

PAIRS = {"twins_svt_small": "twins_svt_s", "twins_svt_base": "twins_svt_b", "twins_svt_large": "twins_svt_l"}


def shaken(name: str, **settings: object) -> torch.nn.Module:
    """A network of timm whose every tensor matters."""
    model = timm.create_model(name, **settings).eval()
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data += 0.05 * torch.randn(p.shape, generator=generator)
    return model


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("twins_svt_small", (224, 260)), ("twins_svt_base", (224,)), *([("twins_svt_large", (224,))] if THOROUGH else [])],
)
@torch.no_grad()
def test_timm_networks_are_points_of_the_family(name, sizes):
    model = shaken(name)
    ours = from_timm(model)
    assert ours.space.smallest() == arch(PAIRS[name])
    for size in sizes:
        x = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(ours(x), model(x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_pcpvt_has_global_blocks_only():
    model = shaken("twins_pcpvt_small", num_classes=5, in_chans=1)
    x = torch.randn(1, 1, 64, 96, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(from_timm(model)(x), model(x), rtol=1e-4, atol=1e-4)


def test_other_settings_of_timm_are_refused():
    with pytest.raises(sf.SuperformerError, match="halve sr_ratio"):
        arch_of(timm.create_model("twins_svt_small", sr_ratios=(8, 8, 2, 1)))
    with pytest.raises(sf.SuperformerError, match="windows of one size"):
        arch_of(timm.create_model("twins_svt_small", wss=(7, 7, 7, 5)))
    with pytest.raises(sf.SuperformerError, match="pool"):
        arch_of(timm.create_model("twins_svt_small", global_pool=""))


@torch.no_grad()
def test_the_pyramid_is_timms():
    model = shaken("twins_svt_small")
    backbone = timm.create_model("twins_svt_s", features_only=True).eval()
    assert backbone.feature_info.reduction() == [4, 8, 16, 32]
    assert backbone.feature_info.channels() == [64, 128, 256, 512]
    x = torch.randn(1, 3, 64, 128)
    assert [m.shape[1:] for m in backbone(x)] == [(64 << i, 16 >> i, 32 >> i) for i in range(4)]
    ours, theirs = (net.forward_intermediates(x, intermediates_only=True) for net in (from_timm(model), model))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert all("peg" in name for name in from_timm(model).no_weight_decay())


def test_published_counts():
    """ViTAS v2, table 13: 2.9 G and 24 M, 8.6 G and 56 M, 15.1 G and 99.2 M."""
    found = [sf.cost(point(arch(name)), [arch(name)]) for name in PAIRS.values()]
    assert [round(c.macs[0] / 1e9, 1) for c in found] == [2.9, 8.6, 15.1]
    assert [round(c.params[0] / 1e6) for c in found] == [24, 56, 99]


@pytest.mark.parametrize(
    ("name", "depths"),
    [("tiny", (4, 4, 12, 6)), ("small", (4, 4, 12, 6)), ("base", (4, 4, 20, 4)), ("large", (4, 4, 20, 4))],
)
def test_sizes_of_the_spaces(name, depths):
    size = 10**4
    for depth in depths:
        size *= sum(800**k for k in range(depth + 1))
    assert sf.space(f"vitas-twins-{name}").size == size


def test_the_small_space():
    space = sf.space("vitas-twins-small")
    assert Exact.of(space, ("macs", "params")).range == {"macs": (5863322, 18181294080), "params": (133788, 151938536)}
    assert arch("twins_svt_s") in space
    genes = space.sample_genes(20, 0, macs=(2.9e9, 3e9), params=(None, 35e6))
    found = sf.cost(space, genes)
    assert ((found.macs >= 2.9e9) & (found.macs <= 3e9) & (found.params <= 35e6)).all()


@pytest.mark.parametrize("rule", ["ordinal", "bilateral", "cyclic"])
def test_a_published_space_trains(rule):
    space = sf.space("vitas-twins-tiny").narrow(depth={0: 2, 1: 1, 2: (1, 2), 3: 1})
    net = sf.supernet(space, 3, rule, drop_path=0.1)
    archs = space.sample(2, seed=1)
    x = torch.randn(4, 3, 64, 64)
    net(x, archs).square().mean().backward()
    assert torch.isfinite(net.stage(0).enter.proj.weight.grad).all()
    with torch.no_grad():
        torch.testing.assert_close(net.eval().extract(archs[0])(x), net(x, archs[0]), rtol=1e-4, atol=1e-5)


def test_types_share_norms_and_mlp_on_demand():
    stage = sf.Stage({"type": ("local", "global"), "heads": 2, "attn": 8, "mlp": 16}, 1, {"width": 8})
    whole, part = (
        sf.supernet(sf.Space("s", "twins", (stage,), weights={"type": t}), 3) for t in ("block", "attention")
    )
    mlp = 2 * 8 * 16 + 16 + 8 + 4 * 8
    assert sum(p.numel() for p in whole.parameters()) - sum(p.numel() for p in part.parameters()) == mlp


@pytest.mark.parametrize(
    ("block", "options", "message"),
    [
        ({"type": "sideways"}, {}, "local or global"),
        ({"heads": 3}, {}, "does not divide into 3 heads"),
        ({}, {"patch": 5}, "does not divide into patches of 5"),
        ({}, {"sr": 16}, "too small"),
        ({}, {"ws": 0}, "whole number from 1"),
    ],
)
def test_spaces_that_cannot_be(block, options, message):
    stage = sf.Stage({"type": "global", "heads": 2, "attn": 8, "mlp": 16, **block}, 1, {"width": 8})
    with pytest.raises(SpaceError, match=message):
        sf.Space("s", "twins", (stage,), img_size=32, options=options)


def test_small_pictures_are_refused():
    stage = sf.Stage({"type": "global", "heads": 2, "attn": 8, "mlp": 16}, 1, {"width": 8})
    net = sf.supernet(sf.Space("s", "twins", (stage,), img_size=32), 3)
    with pytest.raises(sf.SuperformerError, match="too small"):
        net(torch.zeros(1, 3, 16, 32), net.space.smallest())


@pytest.mark.parametrize(("rows", "cols"), [(6, 9), (7, 4)])
def test_windows_and_patches(rows, cols):
    x = torch.randn(2, rows, cols, 12, dtype=torch.float64, requires_grad=True)
    for part, own in zip(split_windows(pad_to_windows(x, 3), 3, 2, 3), x.chunk(2, -1), strict=True):
        torch.testing.assert_close(join_windows(part, 3, rows, cols), own)
    assert torch.autograd.gradcheck(
        lambda y: torch.stack(split_windows(pad_to_windows(y, 3), 3, 2, 3)).square(),
        (x[:1, :, :, :6].detach().requires_grad_(),),
    )
    weight = torch.randn(5, 12, 2, 2, dtype=torch.float64)
    expected = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), weight, stride=2)
    torch.testing.assert_close((patches(x, 2).flatten(3) @ weight.flatten(1).t()).permute(0, 3, 1, 2), expected)
    for side in (2, 8):
        y = torch.randn(1, side + 1, 2 * side, 1, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda z, side=side: patches(z, side), (y,))
