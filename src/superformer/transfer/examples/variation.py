"""A picture at the size that a network sees, and varied in training; boxes and masks follow.

torchvision's transforms v2 on its tv_tensors, but each with the numbers it is to use: they are drawn from a generator
of (seed, epoch, place), so that neither threads nor processes nor the order of work change an example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as V

from superformer.data.augment import generator
from superformer.errors import SuperformerError
from superformer.transfer.examples.settings import ExampleSettings

Draw = tuple[int, int, int]
Size = tuple[int, int]
Things = dict[str, Tensor]
IGNORED = 255
"""What a mask of classes holds where nothing is to be learned and nothing counts."""
ATTEMPTS = 10
"""Crops that are tried until no class covers too much of one (MMSegmentation's cat_max_ratio)."""
DISTORTIONS: tuple[tuple[Callable[..., Tensor], float, float], ...] = (
    (V.adjust_brightness, 0.875, 1.125),
    (V.adjust_contrast, 0.5, 1.5),
    (V.adjust_saturation, 0.5, 1.5),
    (V.adjust_hue, -0.05, 0.05),
)
"""SSD's photometric distortion, as torchvision has it."""


@dataclass(frozen=True)
class Variation:
    """From pictures as stored to those that a network gets. ``square``: both sides are the size."""

    settings: ExampleSettings
    square: bool = False

    def __post_init__(self) -> None:
        for name, values in (("mean", self.settings.mean), ("std", self.settings.std)):
            if len(values) not in (1, 3):
                raise SuperformerError(f"data.{name} has {len(values)} values; pictures are RGB: give 3, or 1 for all")

    def given(self, stored: Size, ratio: float = 1.0) -> Size:
        """Height and width of a picture that a network gets, of one that is stored; the shape is kept."""
        size, longest = self.settings.size, self.settings.longest
        if size is None:
            return stored
        if self.square:
            return (max(round(size * ratio), 1),) * 2
        scale = size / min(stored)
        if longest is not None:
            scale = min(scale, longest / max(stored))
        return max(round(stored[0] * scale * ratio), 1), max(round(stored[1] * scale * ratio), 1)

    def __call__(self, things: Mapping[str, Tensor], draw: Draw | None = None) -> Things:
        """``picture`` (uint8, 3 x height x width) resized and normalised; ``boxes``, ``masks`` and ``mask`` with it.
        Without ``draw`` as for a test."""
        rng = None if draw is None else generator(draw[0], "variation", draw[1], draw[2])
        ratio = 1.0 if rng is None else float(rng.uniform(*self.settings.scales))
        stored = (things["picture"].shape[-2], things["picture"].shape[-1])
        out = _all(_wrapped(things), V.resize, size=list(self.given(stored, ratio)), antialias=True)
        if rng is not None:
            out = self._varied(out, rng)
        plain = {name: thing.as_subclass(torch.Tensor) for name, thing in out.items()}
        mean, std = (torch.tensor(v).mul(255).view(-1, 1, 1) for v in (self.settings.mean, self.settings.std))
        return plain | {"picture": plain["picture"].float().sub_(mean).div_(std)}

    def _varied(self, things: Things, rng: np.random.Generator) -> Things:
        if self.settings.crop is not None:
            things = self._cropped(things, self.settings.crop, rng)
        if rng.random() < (self.settings.flip or 0):
            things = _all(things, V.horizontal_flip)
        for change, low, high in DISTORTIONS if self.settings.distort else ():
            if rng.random() < self.settings.distort:
                things = things | {"picture": change(things["picture"], float(rng.uniform(low, high)))}
        return things

    def _cropped(self, things: Things, crop: Size, rng: np.random.Generator) -> Things:
        """A random part of the crop's size; black, and what is ignored in a mask, stands where there is no picture."""
        height, width = things["picture"].shape[-2:]
        kept = min(crop[0], height), min(crop[1], width)
        for _ in range(ATTEMPTS):
            top, left = int(rng.integers(height - kept[0] + 1)), int(rng.integers(width - kept[1] + 1))
            if "mask" not in things or self.settings.crop_most == 1:
                break
            seen = things["mask"][..., top : top + kept[0], left : left + kept[1]]
            counts = torch.bincount(seen[seen != IGNORED].flatten())
            if len(counts) > 1 and counts.max() < self.settings.crop_most * counts.sum():
                break
        out = _all(things, V.crop, top=top, left=left, height=kept[0], width=kept[1])
        missing = [0, 0, crop[1] - kept[1], crop[0] - kept[0]]  # left, top, right, bottom
        return {n: V.pad(t, missing, fill=IGNORED if n == "mask" else 0) for n, t in out.items()}


def _all(things: Things, change: Callable[..., Tensor], **words: object) -> Things:
    return {name: change(thing, **words) for name, thing in things.items()}


def _wrapped(things: Mapping[str, Tensor]) -> Things:
    """As tv_tensors, by which torchvision knows what boxes, masks and pictures are."""
    size = (things["picture"].shape[-2], things["picture"].shape[-1])
    out: Things = {}
    for name, thing in things.items():
        if name == "boxes":
            out[name] = tv_tensors.BoundingBoxes(thing, format="XYXY", canvas_size=size)
        else:
            out[name] = tv_tensors.Image(thing) if name == "picture" else tv_tensors.Mask(thing)
    return out
