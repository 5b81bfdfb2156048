from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.data.mixup import mixup_target, rand_bbox

from superformer.data.mix import cutmix_box, mix_batch, patch_box, smoothed
from superformer.recipes.settings import Mix

BOXES = json.loads((Path(__file__).parents[1] / "fixtures/vit_resnas/patch_boxes.json").read_text())


class Released:
    """Draws as ViT-ResNAS's released code does: from numpy's old generator, an offset twice, of which the second
    counts."""

    def __init__(self, seed: int):
        self.state = np.random.RandomState(seed)

    def beta(self, a, b):
        return self.state.beta(a, b)

    def integers(self, low, high):
        return self.state.randint(low, high) if low else self.state.randint(low, high, size=2)[1]


def test_patch_boxes_are_those_of_the_released_code():
    rng = Released(0)
    for y0, y1, x0, x1, lam in BOXES["boxes"]:
        box = patch_box(4, rng)
        assert box == (y0, y1, x0, x1)
        assert 1 - (y1 - y0) * (x1 - x0) / 16 == lam


def test_patch_boxes_have_the_shapes_of_the_released_code():
    rng, counts = np.random.default_rng(0), dict.fromkeys(BOXES["histogram_20000_seed1_h_x_w"], 0)
    for _ in range(5000):
        y0, y1, x0, x1 = patch_box(4, rng)
        counts[f"{y1 - y0}x{x1 - x0}"] += 1
    for shape, n in BOXES["histogram_20000_seed1_h_x_w"].items():
        assert abs(counts[shape] / 5000 - n / 20000) < 0.02, shape


@given(st.integers(1, 15), st.integers(0, 10**6))
def test_patch_boxes_lie_on_the_grid(grid, seed):
    y0, y1, x0, x1 = patch_box(grid, np.random.default_rng(seed))
    assert 0 <= y0 <= y1 <= grid
    assert 0 <= x0 <= x1 <= grid


class Fixed:
    """A generator that gives these numbers."""

    def __init__(self, numbers):
        self.numbers = iter(numbers)

    def integers(self, low, high):
        return next(self.numbers)


@given(st.floats(0, 1), st.integers(0, 10**6))
def test_cutmix_boxes_are_timms(lam, seed):
    np.random.seed(seed)
    theirs = rand_bbox((1, 3, 21, 21), lam)
    np.random.seed(seed)
    ours = cutmix_box(21, lam, Fixed([np.random.randint(0, 21), np.random.randint(0, 21)]))
    assert ours == tuple(int(v) for v in theirs)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.floats(0, 0.9))
def test_smoothing_is_timms(labels, smoothing):
    target = torch.tensor(labels)
    torch.testing.assert_close(smoothed(target, 5, smoothing), mixup_target(target, 5, 1.0, smoothing))


MIXES = st.builds(
    Mix,
    mixup=st.sampled_from([0.2, 0.8]),
    cutmix=st.sampled_from([0.5, 1.0]),
    prob=st.sampled_from([0.5, 1.0]),
    switch=st.sampled_from([0.0, 0.5, 1.0]),
    smoothing=st.sampled_from([0.0, 0.1]),
    patches=st.sampled_from(["off", "switch", "halves"]),
)


@given(MIXES, st.integers(0, 10**6))
def test_targets_say_what_is_in_the_picture(mix, seed):
    """Picture i is class i, and its pixels are its own one-hot label: what was mixed can be read off the pixels."""
    n, grid, size = 8, 4, 16
    labels = torch.arange(n)
    x = torch.eye(n)[:, :, None, None].repeat(1, 1, size, size)
    out = mix_batch(x, labels, n, mix, np.random.default_rng(seed), grid)
    expected = x.mean((2, 3)) * (1 - mix.smoothing) + mix.smoothing / n
    torch.testing.assert_close(out.image, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(out.image.sum(1), torch.ones(n))
    if mix.patches == "off":
        assert out.patches is None
        return
    patches = torch.nn.functional.avg_pool2d(x, size // grid).flatten(2).transpose(1, 2)
    assert out.patches.shape == (n, grid * grid, n)
    torch.testing.assert_close(out.patches, patches * (1 - mix.smoothing) + mix.smoothing / n, atol=1e-5, rtol=0)


def test_the_partner_is_half_a_batch_away():
    x = torch.arange(6.0).view(6, 1, 1, 1).repeat(1, 3, 4, 4)
    out = mix_batch(x, torch.arange(6), 6, Mix(mixup=1.0, smoothing=0), np.random.default_rng(0))
    lam = float(out.image[0, 0])
    assert 0 < lam < 1
    for i in range(6):
        partner = (i + 3) % 6
        assert float(out.image[i, partner]) == pytest.approx(1 - lam)
        assert float(x[i, 0, 0, 0]) == pytest.approx(lam * i + (1 - lam) * partner, abs=1e-5)


def test_halves_cut_the_first_and_blend_the_second():
    x = torch.eye(8)[:, :, None, None].repeat(1, 1, 8, 8)
    mix_batch(x, torch.arange(8), 8, Mix(mixup=0.8, cutmix=1.0, patches="halves"), np.random.default_rng(1), 4)
    assert set(x[:4].unique().tolist()) == {0.0, 1.0}
    assert torch.equal(x[4:], x[4:, :, :1, :1].expand_as(x[4:]))
    assert ((x[4:, :, 0, 0] > 0) & (x[4:, :, 0, 0] < 1)).sum() == 8


def test_the_switch_chooses_by_batch():
    mix, cut = Mix(mixup=0.8, cutmix=1.0, switch=0.7, patches="switch"), 0
    for seed in range(200):
        x = torch.eye(8)[:, :, None, None].repeat(1, 1, 8, 8)
        mix_batch(x, torch.arange(8), 8, mix, np.random.default_rng(seed), 4)
        cut += set(x.unique().tolist()) == {0.0, 1.0}
    assert 120 < cut < 160


def test_nothing_is_mixed_where_nothing_is_asked():
    for mix in (Mix(), Mix(mixup=1.0, prob=0.0), Mix(patches="switch")):
        x = torch.randn(5, 3, 4, 4)
        before = x.clone()
        out = mix_batch(x, torch.arange(5), 5, mix, np.random.default_rng(0), 2)
        assert torch.equal(x, before)
        assert torch.equal(out.image, smoothed(torch.arange(5), 5, 0.1))
