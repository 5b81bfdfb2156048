"""NASViT's networks: the released ones, the spaces as the paper counts them, batch norm."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.released import FIXTURES, agree, load

import superformer as sf
from superformer.elastic.conv import BatchNorm
from superformer.elastic.positions import relative_bias
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
