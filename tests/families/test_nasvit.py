"""NASViT's networks: the released ones, the spaces as the paper counts them, batch norm."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from helpers.released import FIXTURES, agree, load
from hypothesis import given
from hypothesis import strategies as st

import superformer as sf
import superformer.interop.timm  # the published networks are models of timm
from superformer.elastic.conv import BatchNorm
from superformer.elastic.hybrid import window_counts
from superformer.elastic.positions import lengths, relative_bias
from superformer.kernels import attention, inverted
from superformer.kernels.attention import talking_heads
from superformer.spaces import arch


def pictures(size: int, seed: int = 0, batch: int = 2) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((batch, 3, size, size), dtype=np.float32))


@pytest.mark.parametrize("name", ["smallest", "largest", "table13_a1"])
@torch.no_grad()
def test_pictures_are_resized(name):
    meta, state, expected = load("nasvit", name)
    agree(sf.official.model("nasvit", meta["arch"], state)(pictures(224)), expected["logits_from224"])


@torch.no_grad()
def test_supernet():
    meta, state, expected = load("nasvit", "random1")
    small, _, small_logits = load("nasvit", "smallest")
    net = sf.official.supernet("nasvit", state)
    archs = [sf.official.arch("nasvit", m["arch"]) for m in (meta, small)]
    agree(net(pictures(224), archs[0]), expected["logits"])
    both = net(torch.cat([pictures(224), pictures(224)]), archs)
    agree(both[:2], expected["logits"])
    agree(both[2:], small_logits["logits_from224"])


def test_recalibration():
    """Statistics averaged over batches, as the released evaluation does it (whose float32 is 2e-6 from what float64
    gives)."""
    meta, state, _ = load("nasvit", "smallest")
    expected = np.load(FIXTURES / "nasvit" / "_training" / "bn_calibration_smallest.npz")
    net = sf.recalibrate(
        sf.official.model("nasvit", meta["arch"], state), (pictures(224, seed, 4) for seed in (200, 201, 202))
    )
    assert not net.training
    with torch.no_grad():
        agree(net(pictures(192)), expected["logits"])
    for ours, theirs in ((net.stem_norm, "first_conv.bn"), (net.final_norm, "last_conv.0.bn")):
        np.testing.assert_allclose(ours.running_mean.numpy(), expected[f"mean/{theirs}"], rtol=1e-4, atol=5e-6)
        np.testing.assert_allclose(ours.running_var.numpy(), expected[f"var/{theirs}"], rtol=1e-4, atol=5e-6)


def test_published_figures():
    """The smallest and largest network (section 2: 190 M and 1,881 M), and table 13 at what its columns really cost."""
    space = sf.space("nasvit-released")
    assert space.size == 48_157_949_952
    names = ["nasvit_smallest", "nasvit_largest", *(f"nasvit_a{k}" for k in range(1, 5))]
    cost = sf.cost(space, [arch(name) for name in names])
    assert cost.macs.tolist() == [189_789_040, 1_881_708_502, 208_901_524, 371_365_008, 599_308_800, 774_858_774]
    assert [space.smallest(), space.largest()] == [arch("nasvit_smallest"), arch("nasvit_largest")]
    alphanet = sf.space("alphanet")
    assert round(sf.cost(alphanet, alphanet.smallest()).macs[0] / 1e6) == 203  # table 6: AlphaNet-A0


def test_the_paper_s_space_runs():
    space = sf.space("nasvit")
    net = sf.supernet(space, 10).train()
    smallest = space.smallest()
    assert smallest.stages[3].choices["windows"] == 4
    logits = net(pictures(192), smallest)
    logits.square().sum().backward()
    assert torch.isfinite(logits).all()


def test_pyramid():
    model = sf.model("nasvit_smallest", num_classes=3).eval()
    assert [f["reduction"] for f in model.feature_info] == [4, 8, 16, 32]
    with torch.no_grad():
        maps = model.forward_intermediates(pictures(192), intermediates_only=True)
    assert [(m.shape[1], m.shape[-1]) for m in maps] == [
        (f["num_chs"], 192 // f["reduction"]) for f in model.feature_info
    ]


@torch.no_grad()
def test_a_backbone_keeps_the_size_of_the_picture():
    """Section 4.2: maps are those of the picture's own size, also where the classifier resizes it; timm's
    ``features_only`` asks the same."""
    model = sf.model("nasvit_smallest", num_classes=3).eval()
    x = torch.randn(1, 3, 256, 320, generator=torch.Generator().manual_seed(0))
    final, maps = model.forward_intermediates(x)
    assert [tuple(m.shape[-2:]) for m in maps] == [(256 // r, 320 // r) for r in (4, 8, 16, 32)]
    assert final.shape[1:3] == (4, 5)
    backbone = timm.create_model("nasvit_smallest", features_only=True).eval()
    assert [tuple(m.shape[-2:]) for m in backbone(x)] == [(64, 80), (32, 40), (16, 20), (8, 10)]
    assert backbone.feature_info.reduction() == [4, 8, 16, 32]
    square = F.interpolate(x, size=(192, 192), mode="bicubic", align_corners=False)
    torch.testing.assert_close(model(x), model(square))  # to classify, it is resized as before
    native, levels = model.forward_intermediates(square)
    assert torch.equal(native, model.forward_features(square))
    assert [m.shape[-1] for m in levels] == [48, 24, 12, 6]


def hybrid(windows: int = 1, **options: object) -> sf.Space:
    """A stage of attention on the map after the stem."""
    own = {"stages": "t", "strides": "2", "squeeze_excite": "0", "head_dim": 4, **options}
    choices = {"width": (8, 16), "mlp": sf.ratio(1, 2, of="width"), "windows": windows}
    return sf.Space("s", "nasvit", (sf.Stage({}, (1, 2), choices),), {"stem": 8, "head": 8}, 16, own)


@given(st.integers(1, 200), st.integers(1, 12))
def test_windows_of_a_row_differ_by_one_token_at_most(length, parts):
    cut = lengths(length, parts)
    ends = [0, *(where.stop for where, _ in cut)]
    assert [where.start for where, _ in cut] == ends[:-1]
    assert ends[-1] == length
    sides = [side for where, side in cut for _ in range((where.stop - where.start) // side)]
    assert sum(sides) == length
    assert len(sides) == min(parts, length)
    assert max(sides) - min(sides) <= 1


@pytest.mark.parametrize(
    ("grid", "counts"), [((14, 14), (2, 2)), ((64, 128), (9, 18)), ((16, 20), (2, 3)), ((3, 7), (1, 1))]
)
def test_windows_of_larger_pictures_have_about_seven_tokens(grid, counts):
    """Section 4.2: "the number of windows [is] the input feature map size divided by 7"; else what was searched."""
    assert window_counts(1, grid, True) == counts
    assert window_counts(4, grid, False) == (2, 2)


@torch.no_grad()
def test_attention_stays_within_its_window():
    """A map of 16 x 20 has 2 x 3 windows of 8 x (7, 7, 6) tokens: what happens in one does not reach another through
    the attention, of a network whose own map has 4 x 4."""
    net = sf.model(hybrid(scale="none").largest(), 3).eval().double()
    cell, at = net.stage(0).block(0), net.plan(net.space.smallest(), (64, 80), own_size=True)
    x = torch.randn(1, 16, 20, 16, dtype=torch.float64)
    cell.v_conv.weight.zero_()[:, :, 1, 1] = 1  # else v sees its neighbours
    y, other = cell.attend(x, at.stages[0][0], at), x.clone()
    other[:, 9, 15] = torch.randn(16, dtype=x.dtype)  # in the last window
    changed = (cell.attend(other, at.stages[0][0], at) - y).abs().sum(-1)[0] > 0
    assert changed[8:, 14:].all()
    assert not changed[:8].any()
    assert not changed[:, :14].any()


def test_biases_of_smaller_windows_are_the_middle_and_of_longer_ones_stretched():
    table = torch.randn(7, 7, 2)  # of 4 x 4 tokens
    assert torch.equal(relative_bias(table, (3, 4), (4, 4)), relative_bias(table[1:-1], (3, 4)))
    longer = F.interpolate(table.permute(2, 0, 1)[None], size=(7, 9), mode="bicubic")[0].permute(1, 2, 0)
    torch.testing.assert_close(relative_bias(table, (2, 5), (4, 4)), relative_bias(longer[2:-2], (2, 5)))


@pytest.mark.parametrize("scale", ["none", "shared", "width", "tokens"])
def test_scales(scale):
    """Table 7's ablation: no scaling, one vector for all widths, switchable ones, the released ones. Extracted networks
    are exact, and costs count what is there."""
    space = hybrid(scale=scale)
    net = sf.supernet(space, 3).double()
    for p in (p for name, p in net.named_parameters() if "scales" in name):
        torch.nn.init.uniform_(p, 0.5, 1.5)
    net.eval()
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    shapes = {tuple(p.shape) for name, p in net.named_parameters() if "scales" in name}
    assert shapes == {"none": set(), "shared": {(16,)}, "width": {(8,), (16,)}, "tokens": {(2, 1, 16)}}[scale]
    for chosen in (space.smallest(), space.largest(), *space.sample(3, seed=0)):
        model = net.extract(chosen)
        with torch.no_grad():
            torch.testing.assert_close(model(x), net(x, chosen), rtol=1e-11, atol=1e-12)
        assert sf.cost(space, chosen, num_classes=3).params[0] == sum(p.numel() for p in model.parameters())
    with pytest.raises(sf.SpaceError, match="width or tokens or shared or none, not 'off'"):
        hybrid(scale="off")


def test_shared_scales_are_shared_and_switchable_ones_are_not():
    for scale, reached in (("shared", [True, False]), ("width", [False, False])):
        space = hybrid(scale=scale)
        net = sf.supernet(space, 3).train()
        net(torch.randn(2, 3, 16, 16), space.smallest()).square().sum().backward()
        scales: object = net.stage(0).block(0).scales["attn"]
        table = scales["16"] if scale == "width" else scales  # that of the largest
        parts = (torch.zeros(16) if table.weight.grad is None else table.weight.grad).split(8)
        assert [bool(part.any()) for part in parts] == reached, scale


def test_dropout_before_the_classifier():
    """Table 5: 0.2 in AlphaNet's recipe. Only training drops; a drop rate belongs to no architecture."""
    space = hybrid()
    net, plain = (sf.supernet(space, 3, dropout=rate) for rate in (0.5, 0.0))
    x, arch = torch.randn(4, 3, 16, 16), space.largest()
    assert not torch.equal(net.train()(x, arch), plain.train()(x, arch))
    plain.load_state_dict(net.state_dict())
    with torch.no_grad():
        assert torch.equal(net.eval()(x, arch), plain.eval()(x, arch))
    assert net.extract(arch).drop_rate == 0.0
    vit = sf.supernet("autoformer-tiny", 3, dropout=0.5).train()
    with torch.no_grad():
        x = torch.randn(1, 3, 224, 224)
        assert not torch.equal(vit(x, vit.space.smallest()), vit(x, vit.space.smallest()))


def test_each_part_of_a_batch_has_its_own_statistics():
    """In training mode a mixed batch gives every sub-network what it would get alone."""
    net = sf.supernet("nasvit-released", 10).train()
    archs = [net.space.smallest(), arch("nasvit_a1")]
    x = pictures(64, batch=4)
    with torch.no_grad():
        parts = torch.cat([net(part, a) for part, a in zip(x.chunk(2), archs, strict=True)])
        torch.testing.assert_close(net(x, archs), parts)


def test_bias_lookup_and_its_gradient():
    rows, cols, heads = 3, 4, 2
    table = torch.randn(2 * rows - 1, 2 * cols - 1, heads, dtype=torch.float64, requires_grad=True)
    n = torch.arange(rows * cols)
    dr, dc = (n // cols)[:, None] - n // cols + rows - 1, (n % cols)[:, None] - n % cols + cols - 1
    expected = table[dr, dc].permute(2, 0, 1)
    actual = relative_bias(table, (rows, cols))
    torch.testing.assert_close(actual, expected)
    mix = torch.randn_like(expected)
    torch.testing.assert_close(*(torch.autograd.grad(y, table, mix)[0] for y in (actual, expected)))
    assert relative_bias(table, (2, 5), (rows, cols)).shape == (heads, 10, 10)


@pytest.mark.parametrize("in_cache", [20, 100, 2**20])
def test_talking_heads_and_their_gradient(monkeypatch, in_cache):
    monkeypatch.setattr(attention, "TALKING_IN_CACHE", in_cache)  # a few queries, a few pictures, all
    batch, heads, tokens, dim = 5, 3, 5, 4
    q, k, v = (
        torch.randn(batch, heads, tokens, d, dtype=torch.float64, requires_grad=True) for d in (dim, dim, 4 * dim)
    )
    bias = torch.randn(heads, tokens, tokens, dtype=torch.float64, requires_grad=True)
    maps = [torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((heads, heads), (heads,)) * 2]

    def plain() -> torch.Tensor:
        logits = (0.3 * q @ k.transpose(2, 3) + bias).permute(0, 2, 3, 1)
        weights = F.linear(logits, *maps[:2]).softmax(2)
        return F.linear(weights, *maps[2:]).permute(0, 3, 1, 2) @ v

    mix = torch.randn_like(plain())
    inputs = [q, k, v, bias, *maps]
    for ours, theirs in zip(
        torch.autograd.grad(talking_heads(q, k, v, bias, tuple(maps), 0.3), inputs, mix),
        torch.autograd.grad(plain(), inputs, mix),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        torch.testing.assert_close(talking_heads(q, k, v, bias, tuple(maps), 0.3), plain())


def test_gathering_statistics_in_parts_of_a_batch(monkeypatch):
    """Recalibration a picture at a time in every block, and through the operations of training, which see whole
    batches."""
    fresh, found = sf.model("nasvit_a1", 10), []
    for norm in (m for m in fresh.modules() if isinstance(m, BatchNorm)):
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    for in_cache, parts in ((1, True), (2**21, True), (2**21, False)):
        with monkeypatch.context() as patch:
            patch.setattr(inverted, "IN_CACHE", in_cache)
            if not parts:
                patch.setattr(torch, "is_grad_enabled", lambda: True)
            model = copy.deepcopy(fresh)
            sf.recalibrate(model, [pictures(64, seed, 3) for seed in (0, 1)])
        found.append({name: value for name, value in model.named_buffers() if "running" in name})
    for other in found[1:]:
        for name, value in found[0].items():
            torch.testing.assert_close(
                other[name], value, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
            )


def test_rules():
    with pytest.raises(sf.SpaceError, match="a letter for each of 1 stages"):
        sf.Space("s", "nasvit", (sf.Stage({}, 1, {"width": 8, "kernel": 3, "expand": 2}),), {"stem": 8, "head": 8})
    options = {"stages": "t", "strides": "1", "squeeze_excite": "0", "head_dim": 4}
    with pytest.raises(sf.SpaceError, match="cannot be cut into 4 square windows"):
        sf.Space(
            "s", "nasvit", (sf.Stage({}, 1, {"width": 8, "mlp": 8, "windows": 4}),), {"stem": 8, "head": 8}, 18, options
        )
