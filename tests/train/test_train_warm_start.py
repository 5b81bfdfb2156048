"""Warm starts: what holds for every family, and timm's networks in spaces like the published ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import timm
import torch
from helpers.stirred import close, little, pictures, same, state, supernet
from helpers.strategies import FAMILIES, SMALL, sharings, spaces, spaces_with_archs
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import superformer as sf
from superformer.interop.timm_weights import from_timm
from superformer.recipes.settings import Start
from superformer.train.channel_sort import sort_channels
from superformer.train.warm_start import from_network, from_settings, from_supernet

# --- warm starts ---


@given(spaces, sharings)
@settings(max_examples=15)
def test_a_supernet_of_the_same_space_is_copied_whole(space, sharing):
    net, other = supernet(space, sharing[0]), supernet(space, sharing[0], seed=5)
    report = from_supernet(net, other)
    assert same(state(net), state(other))
    assert report.share == 1
    assert (report.missing, report.partial, report.unused) == ((), (), ())


@given(spaces_with_archs(1), sharings)
@settings(max_examples=15)
@torch.no_grad()
def test_a_network_of_the_space_is_reproduced(case, sharing):
    space, (arch,) = case
    model = supernet(space, seed=5).extract(arch)
    before = state(model)
    net = supernet(space, sharing[0])
    report = from_network(net, model)
    x = pictures(2, space.img_size)
    assert report.arch == arch
    assert report.unused == ()
    close(net.extract(report.arch)(x), model(x))
    assert same(state(model), before), "the network itself is not re-ordered"


@st.composite
def grown(draw: st.DrawFn, family: str) -> tuple[sf.Space, sf.Space]:
    """A space, and the same with fewer values of one choice."""
    space = draw(SMALL[family])
    options = []
    for i, stage in enumerate(space.stages):
        if len(stage.depths) > 1 and not stage.free:
            options.append({"depth": {i: stage.depths[:-1]}})
        for where in (stage.choices, *stage.blocks[:1]):
            options += [{n: {i: cut}} for n, s in where.items() for cut in (s.values[:-1], s.values[1:]) if cut]
    options += [{n: cut} for n, s in space.choices.items() for cut in (s.values[:-1], s.values[1:]) if cut]
    return (space, space.narrow(**draw(st.sampled_from(options)))) if options else (space, space)


@pytest.mark.parametrize("family", FAMILIES)
@given(st.data(), sharings)
@settings(max_examples=6)
@torch.no_grad()
def test_what_two_spaces_share_is_inherited_exactly(family, data, sharing):
    """The old largest network lives on in a larger space; a smaller space begins with what its largest network was in
    the larger one."""
    large, small = data.draw(grown(family))
    arch, x = small.largest(), pictures(2, small.img_size)
    assert arch in large
    old, new = supernet(small, sharing[0], seed=5), supernet(large, sharing[0])
    report = from_supernet(new, old)
    close(new(x, arch), old(x, arch))
    assert report.unused == ()
    new, old = supernet(small, sharing[0]), supernet(large, sharing[0], seed=5)
    report = from_supernet(new, old)
    close(new(x, arch), old(x, arch))
    assert report.missing == ()


@st.composite
def strangers(draw: st.DrawFn) -> tuple[sf.Space, sf.Space]:
    """Two spaces of one family."""
    family = draw(st.sampled_from(sorted(SMALL)))
    return draw(SMALL[family]), draw(SMALL[family])


@given(strangers(), sharings)
@settings(max_examples=15)
@torch.no_grad()
def test_any_network_starts_any_space_of_its_family(pair, sharing):
    here, there = pair
    other, net = supernet(there, sharing[0], seed=5), supernet(here, sharing[0])
    model = other.extract(there.sample(1, seed=3)[0])
    for report in (from_network(net, model), from_supernet(net, other)):
        assert 0 < report.share <= 1
        assert set(report.missing).isdisjoint(report.partial)
        assert set(report.missing + report.partial) <= {name for name, _ in net.named_parameters()}
        assert bool(report.missing + report.partial) == (report.copied < report.weights)
        assert f"{report.share:.1%}" in report.text()
    assert net(pictures(2, here.img_size), here.largest()).isfinite().all()


@torch.no_grad()
def test_a_wider_network_gives_its_most_important_heads_and_units():
    model = supernet(little(heads=6, mlp=20), seed=5).extract(little(heads=6, mlp=20).largest())
    net = supernet(little())
    report = from_network(net, model)
    assert report.arch is None
    assert report.missing == ()
    sort_channels(model)
    for k in range(2):
        mine, theirs = net.stage(0).block(k), model.stage(0).block(k)
        assert torch.equal(mine.mlp.fc1.weight, theirs.mlp.fc1.weight[:8])
        assert torch.equal(mine.attn.qkv.bias.view(3, 4, 3), theirs.attn.qkv.bias.view(3, 6, 3)[:, :4])
        assert torch.equal(mine.attn.proj.weight, theirs.attn.proj.weight[:, :12])


@torch.no_grad()
def test_a_network_of_another_depth_gives_its_first_blocks():
    deep = replace(little(), stages=(sf.Stage(little().stages[0].blocks[0], depth=4),))
    net = supernet(deep)
    model = supernet(little(), seed=5).extract(little().largest())
    before = state(net)
    report = from_network(net, model)
    assert {name.split(".")[3] for name in report.missing} == {"2", "3"}
    assert "not copied: stages.0.blocks.2 (12 tensors), stages.0.blocks.3 (12 tensors)" in report.text()
    for name in report.missing:
        assert torch.equal(net.state_dict()[name], before[name])


@torch.no_grad()
def test_a_classifier_of_other_classes_stays():
    space = little()
    model, net = supernet(space, seed=5).extract(space.largest()), supernet(space, classes=7)
    before = net.head.weight.clone()
    report = from_network(net, model)
    assert report.missing == ("head.weight", "head.bias")
    assert report.arch is None, "the features are the network's, the function is not"
    assert torch.equal(net.head.weight, before)
    x = pictures(2, 16)
    close(net.extract(space.largest()).forward_features(x), model.forward_features(x))


@torch.no_grad()
def test_tables_of_positions_are_resized():
    space = little()
    model, net = (
        supernet(space, seed=5).extract(space.largest()),
        supernet(replace(space, img_size=32, choices={**space.choices, "resolution": 32})),
    )
    report = from_network(net, model)
    assert report.missing == ()
    table, other = net.stems["8"].pos_embed.weight, model.stems["8"].pos_embed.weight
    assert len(table) == 17
    assert torch.equal(table[0], other[0])
    close(table[1:].mean(0), other[1:].mean(0))  # a grid of 2 x 2, stretched to 4 x 4


@torch.no_grad()
def test_a_window_begins_with_the_nearest_windows_table():
    def windows(*sizes: int) -> sf.Space:
        return sf.Space(
            "s", "swin", (sf.Stage({"window": sizes, "heads": 2, "attn": 8, "mlp": 8}, 1, {"width": 8}),), img_size=32
        )

    net, other = supernet(windows(4, 7, 8)), supernet(windows(4, 7), seed=5)
    assert from_supernet(net, other).share == 1
    tables, others = (n.stage(0).block(0).attn.relative_bias for n in (net, other))
    assert torch.equal(tables["4"].weight, others["4"].weight)
    assert torch.equal(tables["7"].weight, others["7"].weight)
    close(tables["8"].weight[7, 7], others["7"].weight[6, 6])  # the middle, distance 0


@torch.no_grad()
def test_relative_positions_of_another_reach_share_their_distances():
    def reach(r: int) -> sf.Space:
        return replace(little(), options={"rel_pos": r})

    net, other = supernet(reach(3)), supernet(reach(1), seed=5)
    report = from_supernet(net, other)
    mine, theirs = (n.stage(0).block(0).attn.relative.k_rows.weight for n in (net, other))
    assert torch.equal(mine[0], theirs[0])
    assert torch.equal(mine[3:6], theirs[1:])
    assert "stages.0.blocks.0.attn.relative.k_rows.weight" in report.partial


def test_refusals_change_nothing():
    net = supernet(little())
    other = supernet(
        sf.Space(
            "r", "resnet", (sf.Stage({"mid1": 4, "mid2": 4}, 1, {"width": 8, "entry1": 4, "entry2": 4}),), {"stem": 4}
        )
    )
    before = state(net)
    for start in (from_network, from_supernet):
        with pytest.raises(sf.SuperformerError, match=r"family vit.*cannot start from a resnet"):
            start(net, other)
    with pytest.raises(sf.SuperformerError, match="is a supernet, not a stand-alone network: use from_supernet"):
        from_network(net, supernet(little(), seed=5))
    assert same(state(net), before)


# --- timm's networks ---


def s3_like() -> sf.Space:
    def stage(width: int, windows: tuple[int, ...], depth: tuple[int, ...]) -> sf.Stage:
        heads = tuple(width // 32 + k for k in (-1, 0, 1))
        block = {
            "window": windows,
            "heads": heads,
            "attn": sf.times(32, of="heads"),
            "mlp": sf.ratio(3, 3.5, 4, of="width"),
        }
        return sf.Stage(block, depth, {"width": (width - 32, width, width + 32)})

    shapes = ((96, (7, 14), (1, 2)), (192, (7, 14), (1, 2)), (384, (7, 14), (2, 4)), (768, (7,), (1, 2)))
    return sf.Space("s3-like", "swin", tuple(stage(*s) for s in shapes))


def twins_like() -> sf.Space:
    def stage(width: int) -> sf.Stage:
        own = {
            "type": ("local", "global"),
            "heads": (2, 4, 8),
            "attn": (width // 2, width),
            "mlp": (2 * width, 4 * width),
        }
        return sf.Stage(own, (1, 2), {"width": (width // 2, width)})

    return sf.Space("twins-like", "twins", tuple(stage(64 << i) for i in range(4)))


TIMM = {
    "deit_tiny_patch16_224": ({}, lambda: sf.space("autoformer-tiny"), False),
    "swin_tiny_patch4_window7_224": ({"depths": (2, 2, 4, 2)}, s3_like, True),
    "twins_svt_small": ({"depths": (2, 2, 2, 2), "num_heads": (2, 4, 8, 8)}, twins_like, True),
    "resnet50": ({}, lambda: sf.space("vitas-resnet50"), True),
}


@pytest.mark.parametrize("name", TIMM)
@torch.no_grad()
def test_timm_networks_start_spaces_like_the_published_ones(name):
    settings, space, inside = TIMM[name]
    theirs = timm.create_model(name, pretrained=False, num_classes=10, **settings).eval()
    model, net = from_timm(theirs), sf.supernet(space(), 10).eval()
    report = from_network(net, model)
    assert report.unused == ()
    assert (report.arch is not None) == inside
    assert report.share > 0.4
    x = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    if report.arch is not None:
        expected = theirs(x)
        assert (net(x, report.arch) - expected).abs().max() < 1e-4 * expected.abs().max()
    else:
        assert net(x, net.space.smallest()).isfinite().all()


@torch.no_grad()
def test_a_timm_network_starts_a_space_of_other_pictures(tmp_path):
    """At its size if that is possible: then the supernet computes what timm's network for that size does."""
    theirs, file = timm.create_model("deit_tiny_patch16_224").eval(), str(tmp_path / "weights.safetensors")
    theirs.pos_embed.normal_()
    save_file(theirs.state_dict(), file)
    theirs.set_input_size((48, 48))
    start = Start(timm="deit_tiny_patch16_224", checkpoint=file)
    block, width = {"heads": (2, 3), "attn": sf.times(64, of="heads"), "mlp": 768}, {"width": (96, 192)}
    net = sf.supernet(sf.Space("s", "vit", (sf.Stage(block, 12),), {"patch_size": 16, **width}, 48), 1000).eval()
    report = from_settings(net, start)
    assert report is not None
    assert report.arch is not None
    x = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(net(x, report.arch), theirs(x), rtol=1e-5, atol=1e-5)
    other = sf.supernet(sf.Space("s", "vit", (sf.Stage(block, 2),), {"patch_size": 10, **width}, 50), 1000)
    report = from_settings(other, start)  # 50 pixels are no patches of 16: what fits
    assert report is not None
    assert report.arch is None
    assert report.share > 0.5
