"""Swin and S3: released sizes, timm's networks, windows that do not fit, the feature pyramid."""

from __future__ import annotations

import json

import pytest
import timm
import torch
from helpers.released import load
from timm.models.swin_transformer import SwinTransformer
from torch.utils.flop_counter import FlopCounterMode

import superformer as sf
from superformer.elastic.positions import relative_bias
from superformer.families.swin import FAR, Windows
from superformer.interop.timm_weights import from_timm
from superformer.space import point
from superformer.spaces import arch as published

X = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))


def small(
    window: int | tuple[int, ...] = 4, depth: int = 2, img_size: int = 40, stages: int = 1, **other: object
) -> sf.Space:
    block = {"window": window, "heads": 2, "attn": 8, "mlp": 16, **other}
    return sf.Space("s", "swin", (sf.Stage(block, depth, {"width": 8}),) * stages, img_size=img_size)


def stirred(net: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    for p in net.parameters():
        p.data += 0.3 * torch.randn(p.shape, generator=generator)
    return net.double().eval()


@pytest.mark.parametrize(
    ("name", "params", "macs"),
    [
        ("s3_tiny", 28_328_674, 4_623_332_352),
        ("s3_small", 49_737_298, 9_404_703_744),
        ("s3_base", 71_125_762, 13_655_012_352),
        ("s3_small_384", 50_100_898, 32_721_844_224),  # table 1: 50M, 33G
        ("s3_base_384", 71_682_322, 45_716_846_592),  # table 1: 71M, 46G
    ],
)
def test_sizes_of_the_released_networks(name, params, macs):
    cost = sf.cost(point(published(name)), [published(name)])
    assert (cost.params[0], cost.macs[0]) == (params, macs)


def test_windows_at_384_pixels():
    for name, third in (("s3_tiny_384", 24), ("s3_small_384", 24), ("s3_base_384", 24)):
        stages = published(name).stages
        assert {b["window"] for b in stages[2].blocks} == {third}
        assert {b["window"] for b in stages[3].blocks} == {12}


def test_the_initial_space():
    space = sf.space("s3-initial")
    assert [space.widths("window", i) for i in range(4)] == [(7, 14)] * 3 + [(7,)]
    assert space.widths("attn") == (224, 256, 288)
    assert space.widths("mlp") == (672, 768, 784, 864, 896, 1008, 1024, 1152)
    assert all(s.depths == (2, 3, 4) for s in space.stages)
    assert "stage0.block0.attn" in space.gene_names
    assert "stage0.block0.heads" not in space.gene_names  # section 4.1: Q-K-V is the dimension, heads are Q-K-V / 32


@torch.no_grad()
def test_the_initial_space_as_runs_before_wrote_it():
    """Their space.json has heads that choose and a Q-K-V dimension that follows: the same networks and weights."""
    space = sf.space("s3-initial")
    written = json.loads(space.to_json())
    for stage in written["stages"]:
        window, mlp = stage["block"]["window"], stage["block"]["mlp"]
        stage["block"] = {"window": window, "heads": [7, 8, 9], "attn": {"times": 32, "of": "heads"}, "mlp": mlp}
    old = sf.Space.from_json(json.dumps(written))
    assert old.size == space.size
    archs = space.sample(50, seed=1)
    assert old.sample(50, seed=1) == archs
    for a, b in zip(sf.cost(space, archs).__dict__.values(), sf.cost(old, archs).__dict__.values(), strict=True):
        assert (a == b).all()
    nets = [sf.supernet(s.narrow(depth=2), 7, seed=4).eval() for s in (space, old)]
    assert nets[0].state_dict().keys() == nets[1].state_dict().keys()
    arch = nets[0].space.sample(1, seed=2)[0]
    alone = nets[0].extract(arch)
    with FlopCounterMode(display=False) as counter:
        logits = alone(X[:1])
    assert counter.get_total_flops() == 2 * sf.cost(point(arch), [arch], 7).macs[0]
    torch.testing.assert_close(logits, nets[0](X[:1], arch))
    assert torch.equal(nets[0](X[:1], arch), nets[1](X[:1], arch))


@pytest.mark.parametrize("name", ["S3-T", "hetero"])
def test_released_weights_alone_tell_the_network(name):
    meta, state, _ = load("s3", name)
    arch = sf.official.arch("s3", meta["arch"])
    net = sf.official.supernet("s3", {**state, "layers.0.blocks.1.attn_mask": torch.zeros(1)})
    assert net.space.smallest() == arch
    blocks = [[(b["window"], b["heads"], b["mlp"]) for b in s.blocks] for s in arch.stages]
    assert blocks == [[(b["window"], b["heads"], b["mlp_hidden"]) for b in s] for s in meta["effective_blocks"]]
    assert {m.eps for m in net.modules() if isinstance(m, torch.nn.LayerNorm)} == {1e-5}
    if name == "S3-T":
        assert arch == published("s3_tiny")


def test_lists_shorter_than_a_stage():
    meta, _, _ = load("s3", "hetero")
    with pytest.raises(sf.SuperformerError, match="stage 1 has 2 blocks, but window_size only 1"):
        sf.official.arch("s3", {**meta["arch"], "DEPTHS": [3, 2, 4, 2]})


@pytest.mark.parametrize("name", ["swin_s3_tiny_224", "custom"])
@torch.no_grad()
def test_timm_networks_give_the_same_logits(name):
    if name == "custom":
        size = {"img_size": 48, "embed_dim": 16, "depths": (2, 3), "num_heads": (2, 4), "window_size": 3}
        theirs = SwinTransformer(**size, head_dim=6, mlp_ratio=3, num_classes=7)
    else:
        theirs = timm.create_model(name, num_classes=7)
    x = X[..., : theirs.patch_embed.img_size[0], : theirs.patch_embed.img_size[0]]
    for p in theirs.parameters():
        p.add_(0.05 * torch.randn_like(p))
    ours, expected = from_timm(theirs.eval()), theirs(x)
    torch.testing.assert_close(ours(x), expected, rtol=1e-4, atol=1e-4 * float(expected.std()))
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


@torch.no_grad()
def test_the_pyramid():
    backbone = timm.create_model("s3_tiny", features_only=True, out_indices=(0, 1, 2, 3)).eval()
    assert backbone.feature_info.reduction() == [4, 8, 16, 32]
    assert backbone.feature_info.channels() == [96, 192, 384, 768]
    assert [tuple(f.shape[1:]) for f in backbone(X[:1])] == [(96, 56, 56), (192, 28, 28), (384, 14, 14), (768, 7, 7)]


def test_a_moved_window_does_not_mix_opposite_edges():
    """Only windows at the last edge hold tokens that are no neighbours in the picture."""
    mask = Windows((8, 8), 4, 2).far(torch.float32, torch.device("cpu"))
    assert mask.shape == (4, 16, 16)
    assert not mask[0].any()
    assert set(mask.flatten().tolist()) == {0.0, FAR}
    assert Windows((8, 8), 4, 0).far(torch.float32, torch.device("cpu")) is None


@pytest.mark.parametrize("depth", [1, 2])
@torch.no_grad()
def test_padded_tokens_are_never_attended_to(depth):
    """A 10 x 10 map in windows of 4: whatever padded tokens hold, it does not show."""
    net = stirred(sf.supernet(small(depth=depth), 5))
    x = X[:1, :, :40, :40].double()
    before = net(x)
    for windows in (Windows((10, 10), 4, 0), Windows((10, 10), 4, 2)):
        mask = windows.far(torch.float64, torch.device("cpu"))
        assert (mask == -torch.inf).any()
        assert (mask > -torch.inf).any(-1).all(), "every token finds something to attend to"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("superformer.families.swin.pad_to_windows", _padded_with_noise)
        torch.testing.assert_close(net(x), before)


def _padded_with_noise(x: torch.Tensor, side: int) -> torch.Tensor:
    below, right = -x.shape[1] % side, -x.shape[2] % side
    out = torch.randn(x.shape[0], x.shape[1] + below, x.shape[2] + right, x.shape[3], dtype=x.dtype)
    out[:, : x.shape[1], : x.shape[2]] = x
    return out


@torch.no_grad()
def test_windows_larger_than_the_map():
    assert Windows.of((3, 5), 4, odd=True) == Windows((3, 5), 3, 0)
    assert Windows.of((4, 5), 4, odd=True) == Windows((4, 5), 4, 0)
    assert Windows.of((5, 5), 4, odd=True) == Windows((5, 5), 4, 2)
    table = torch.arange(49.0).view(7, 7, 1)
    torch.testing.assert_close(relative_bias(table, (2, 2)), relative_bias(table[2:5, 2:5], (2, 2)))  # the middle
    assert (
        relative_bias(table, (4, 4))[0, 0, 15] == table[0, 0]
    )  # query minus key: first token to last is the most negative distance
    net = stirred(sf.supernet(small(window=4), 5))
    assert net(X[:1, :, :12, :20].double()).shape == (1, 5)


def test_every_second_block_that_runs_is_moved():
    """Positions are those of the network that runs: with an identity in front, the second block is the first."""
    stage = sf.Stage({"window": 2, "heads": 1, "attn": 4, "mlp": 8}, 3, {"width": 8}, skippable=range(3))
    net = stirred(sf.supernet(sf.Space("s", "swin", (stage,), img_size=16), 5))
    arch = next(a for a in net.space.sample(50) if a.stages[0].at == (1, 2))
    at = net.plan(arch, (16, 16))
    assert [step.block.attn.windows(step, at).shift for step in at.stages[0]] == [0, 1]
    x = X[:2, :, :16, :16].double()
    torch.testing.assert_close(net.extract(arch)(x), net(x, arch))


def test_odd_maps_are_merged_with_zeros():
    net = stirred(sf.supernet(small(window=3, img_size=20, stages=2), 5))
    assert net.forward_features(X[:1, :, :20, :20].double()).shape == (1, 9, 8)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"window": (4, 12)},
            r"a window of 12 is larger than the map of stage 0, 10 x 10 tokens at 40 pixels.* write 10 instead",
        ),
        ({"window": 0}, "whole number from 1"),
        ({"attn": 9}, "does not divide into 2 heads"),
        ({"img_size": 42}, "does not divide into patches of 4"),
    ],
)
def test_spaces_that_are_wrong(change, says):
    with pytest.raises(sf.SuperformerError, match=says):
        small(**change)


@torch.no_grad()
def test_an_extracted_network_can_be_exported():
    model = stirred(sf.supernet(small(), 5))
    x = X[:1, :, :40, :40].double()
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))
