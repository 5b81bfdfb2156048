from __future__ import annotations

import numpy as np
import pytest
import torch

from superformer.errors import SuperformerError
from superformer.transfer.examples.settings import ExampleSettings
from superformer.transfer.examples.variation import Variation

PLAIN = {"mean": (0.0,), "std": (1 / 255,)}
"""Pixels stay as they are."""


def things(height=40, width=60):
    """A white rectangle, its box and its masks."""
    picture = torch.zeros(3, height, width, dtype=torch.uint8)
    picture[:, 10:30, 20:50] = 255
    inside = (picture[:1] > 0).to(torch.uint8)
    boxes = torch.tensor([[20.0, 10.0, 50.0, 30.0]])
    return {"picture": picture, "boxes": boxes, "masks": inside, "mask": inside.long()}


def extent(mask):
    rows, columns = np.nonzero(mask.numpy())
    return torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1], dtype=torch.float32)


@pytest.mark.parametrize(
    ("stored", "size", "longest", "given"),
    [
        ((480, 640), 800, 1333, (800, 1067)),
        ((300, 900), 800, 1333, (444, 1333)),
        ((640, 480), 800, None, (1067, 800)),
        ((5, 4000), 8, 16, (1, 16)),
    ],
)
def test_sizes_that_networks_get(stored, size, longest, given):
    assert Variation(ExampleSettings(size=size, longest=longest)).given(stored) == given


def test_odd_shapes_and_sizes_that_contradict():
    assert max(Variation(ExampleSettings(size=192).of("detect")).given((1, 400))) == 8 * 192
    with pytest.raises(ValueError, match=r"data\.longest=256 is less than data\.size=384.*data\.crop"):
        ExampleSettings(size=384, longest=256)


def test_squares():
    assert Variation(ExampleSettings(size=384), square=True).given((480, 640)) == (384, 384)


def test_usual_sizes_of_a_task():
    usual = ExampleSettings().of("detect")
    assert (usual.size, usual.longest, usual.flip) == (800, 1333, 0.5)
    own = ExampleSettings(size=128, flip=0.2).of("instance")
    assert (own.size, own.longest, own.flip) == (128, 1024, 0.2)
    assert ExampleSettings().of("vqa").flip == 0


@pytest.mark.parametrize("place", range(6))
def test_boxes_and_masks_follow_the_picture(place):
    settings = ExampleSettings(size=80, scales=(0.5, 1.5), flip=0.5, crop=(70, 90), **PLAIN)
    out = Variation(settings)(things(), (0, 0, place))
    assert out["picture"].shape == (3, 70, 90)
    bright = out["picture"][0] > 127
    assert ((bright != out["masks"][0].bool()).float().mean()) < 0.03  # an edge of a pixel
    assert torch.equal(out["masks"][0].bool(), out["mask"][0] == 1)
    assert (extent(out["masks"][0]) - out["boxes"][0].clamp(max=90)).abs().max() <= 2


def test_what_is_missing_of_a_crop_is_ignored():
    out = Variation(ExampleSettings(size=40, crop=64, **PLAIN))(things(), (0, 0, 0))
    assert out["mask"].shape == (1, 64, 64)
    assert (out["mask"][0, 40:] == 255).all()
    assert (out["mask"][0, :40, 60:] == 255).all()
    assert (out["masks"][0, 40:] == 0).all()
    assert (out["picture"][:, 40:] == 0).all()


def test_crops_avoid_what_one_class_fills():
    one = {"size": 40, "crop": 12, **PLAIN}
    shares = []
    for most in (1.0, 0.75):
        variation = Variation(ExampleSettings(crop_most=most, **one))
        masks = [variation(things(), (0, 0, k))["mask"].float().mean() for k in range(40)]
        shares.append(sum(0.25 < float(m) < 0.75 for m in masks))
    assert shares[1] > 1.5 * shares[0]


def test_numbers_alone_decide():
    settings = ExampleSettings(size=40, scales=(0.5, 2), flip=0.5, crop=32, distort=0.5)
    first = [Variation(settings)(things(), (1, 2, k))["picture"] for k in range(8)]
    torch.manual_seed(5)
    second = [Variation(settings)(things(), (1, 2, k))["picture"] for k in reversed(range(8))][::-1]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    other = [Variation(settings)(things(), (1, 3, k))["picture"] for k in range(8)]
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_test_picture_is_not_varied():
    settings = ExampleSettings(size=40, scales=(0.5, 2), flip=1, crop=32, distort=1, mean=(0.5,), std=(0.25,))
    out = Variation(settings)(things())
    assert torch.equal(out["picture"], (things()["picture"] / 255 - 0.5) / 0.25)


def test_means_fit_the_channels():
    with pytest.raises(SuperformerError, match=r"data\.mean has 2 values"):
        Variation(ExampleSettings(mean=(0.5, 0.5)))
