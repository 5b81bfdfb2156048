"""Backbones: maps at strides 4, 8, 16 and 32 of pictures of any shape, from any network."""

from __future__ import annotations

import pytest
import torch
from helpers.dense import ATTENTION, SPACES, network, tiny
from safetensors.torch import save_file

import superformer as sf
from superformer.errors import SuperformerError
from superformer.space import Space, Stage
from superformer.transfer.backbone import STRIDES
from superformer.transfer.networks import backbone

TIMM = ("test_vit", "test_resnet", "test_convnext", "resnet18", "swin_tiny_patch4_window7_224")


def check_maps(body: torch.nn.Module, height: int, width: int) -> None:
    with torch.no_grad():
        maps = body.eval()(torch.randn(2, 3, height, width))
    assert [y.shape for y in maps] == [
        (2, c, -(-height // s), -(-width // s)) for c, s in zip(body.channels, STRIDES, strict=True)
    ]


@pytest.mark.parametrize("family", SPACES)
def test_every_family_gives_maps_of_pictures_of_any_shape(family):
    body = tiny(family)
    for height, width in ((64, 64), (50, 131), (160, 96)):
        check_maps(body, height, width)


@pytest.mark.parametrize("name", TIMM)
def test_networks_of_timm_do_as_well(name):
    check_maps(backbone(name), 70, 131)


@pytest.mark.parametrize("family", [*SPACES, "test_vit", "resnet18"])
def test_every_weight_is_used(family):
    body = tiny(family) if family in SPACES else backbone(family)
    body.train()
    sum(y.square().sum() for y in body(torch.randn(2, 3, 64, 96))).backward()
    assert [name for name, p in body.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("family", ["swin", "twins", "resnet"])
def test_maps_are_those_of_the_network(family):
    net, x = network(family).eval(), torch.randn(2, 3, 64, 96)
    wanted = net.forward_intermediates(x, intermediates_only=True)
    body = backbone(net).eval()
    for norm, a, b in zip(body.norms, wanted, body(x), strict=True):
        assert torch.equal(norm(a), b)


def test_a_plain_transformer_gives_the_maps_of_four_blocks_for_dpt():
    body = tiny("vit", blocks=True)
    assert body.strides == (16,) * 4
    assert body.divisible == 32
    maps = body.eval()(torch.randn(1, 3, 64, 96))
    assert {y.shape for y in maps} == {(1, 16, 4, 6)}
    assert not torch.equal(maps[0], maps[3])


@pytest.mark.parametrize("family", SPACES)
def test_layers_have_rates_and_can_be_frozen(family):
    rates = tiny(family).rates(0.5)
    assert {rate for name, rate in rates.items() if not name.startswith("net.")} <= {1.0}
    stem = min(value for name, value in rates.items() if name.startswith("net."))
    assert stem < 0.5 / 2
    assert max(value for name, value in rates.items() if name.startswith("net.")) == 0.5
    body = tiny(family, freeze=1)
    fixed = {name for name, p in body.named_parameters() if not p.requires_grad}
    assert fixed
    assert all(rates[name] <= 0.25 for name in fixed)
    assert {name for name, p in body.named_parameters() if p.requires_grad and "net." in name}


@pytest.mark.parametrize("family", ["resnet", "nasvit"])
def test_frozen_batch_norms_stay_as_they_are(family):
    for norms, moves in (("frozen", False), ("trained", True)):
        body = tiny(family, norms=norms).train()
        before = {name: t.clone() for name, t in body.named_buffers()}
        body(torch.randn(2, 3, 64, 64))
        changed = [name for name, t in body.named_buffers() if not torch.equal(t, before[name])]
        assert bool(changed) == moves
        kept = [p.requires_grad for name, p in body.named_parameters() if "norm" in name]
        assert any(kept) == moves or family == "nasvit"  # its layer norms are trained


def test_stochastic_depth_acts_in_training():
    body, x = tiny("swin", drop_path=0.9).train(), torch.randn(8, 3, 64, 64)
    torch.manual_seed(0)
    first = body(x)[3]
    assert not torch.equal(first, body(x)[3])
    body.eval()
    assert torch.equal(body(x)[3], body(x)[3])


def test_weights_come_from_a_file_with_any_classifier(tmp_path):
    net = network("vit")
    save_file(dict(net.state_dict()), tmp_path / "net.safetensors")
    other = sf.supernet(net.space, 7, seed=2)
    body = backbone(other, checkpoint=tmp_path / "net.safetensors")
    assert torch.equal(body.net.stages[0].blocks[0].norm1.weight, net.stages[0].blocks[0].norm1.weight)
    assert torch.equal(body.net.stems["16"].proj.weight, net.stems["16"].proj.weight)
    with pytest.raises(SuperformerError, match="holds other weights"):
        backbone(network("swin"), checkpoint=tmp_path / "net.safetensors")


def test_the_same_seed_gives_the_same_weights():
    a, b, c = (backbone("test_vit", seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert any(not torch.equal(a[name], c[name]) for name in a)


@pytest.mark.parametrize("name", ["densenet121", "maxvit_pico_rw_256"])
def test_networks_without_intermediates_or_with_windows_of_their_own_size(name):
    check_maps(backbone(name), 70, 131)


def test_what_is_read_alone_is_the_same():
    body, x = tiny("vit", freeze=1, norms="frozen").eval(), torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        every, some = body(x), body.only([1, -1])(x)
    assert torch.equal(every[1], some[1])
    assert torch.equal(every[3], some[3])
    assert [y.numel() for y in (some[0], some[2])] == [0, 0]
    assert {p.requires_grad for p in body.net.parameters()} == {True, False}  # what is frozen stays so


def test_only_what_is_there_can_be_frozen():
    assert not all(p.requires_grad for p in tiny("vit", freeze=3).parameters())
    with pytest.raises(SuperformerError, match=r"backbone\.freeze=9: .* blocks: give less"):
        tiny("vit", freeze=9)


def test_what_cannot_be_a_backbone_is_refused():
    with pytest.raises(SuperformerError, match="resnet50"):
        backbone("resnet5o")
    with pytest.raises(SuperformerError, match="own size only"):
        backbone("levit_128s")
    several = Space("several", "vit", (Stage(ATTENTION, (1, 2)),), {"patch_size": 16, "width": 16}, img_size=32)
    with pytest.raises(SuperformerError, match="extract"):
        backbone(sf.supernet(several))
    with pytest.raises(SuperformerError, match="forward_intermediates"):
        backbone(torch.nn.Linear(2, 2))
