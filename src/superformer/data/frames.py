"""The square that a network looks at, cut from a picture of any size: timm's evaluation transform, on whole batches of uint8.

Pictures larger than the input are resized until the shorter side is input / crop, and the centre is kept. Pictures whose shorter side
is not larger than the input (8 x 8 digits, CIFAR) are resized to the input and lose no border: the crop share is not for them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from superformer.errors import SuperformerError, nearest

MODES = ("bicubic", "bilinear", "nearest", "random")


@dataclass(frozen=True)
class Frame:
    """How pictures become squares of ``size`` pixels."""

    size: int
    crop: float = 0.875
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        if self.interpolation not in MODES:
            raise SuperformerError(f"interpolation {self.interpolation!r} is not known: {nearest(self.interpolation, MODES)}")
        if self.size < 1:
            raise SuperformerError(f"an input of {self.size} pixels was asked for; give 1 or more")

    def cut(self, pictures: Tensor) -> Tensor:
        """uint8 pictures of one size, (n, height, width, 3), as (n, 3, size, size)."""
        height, width = pictures.shape[1:3]
        short, long = min(height, width), max(height, width)
        scaled = self.size if short <= self.size else math.floor(self.size / self.crop)
        other = int(scaled * long / short)
        x = resize(pictures.permute(0, 3, 1, 2), (scaled, other) if height <= width else (other, scaled), self.interpolation)
        top, left = round((x.shape[2] - self.size) / 2), round((x.shape[3] - self.size) / 2)
        return x[:, :, top : top + self.size, left : left + self.size].contiguous()


def resize(x: Tensor, size: tuple[int, int], interpolation: str) -> Tensor:
    """uint8 pictures (n, 3, height, width) at another size, with antialiasing; ``random`` is timm's word for training, bilinear here."""
    if tuple(x.shape[2:]) == size:
        return x
    mode = "bilinear" if interpolation == "random" else interpolation
    if mode == "nearest":
        return F.interpolate(x, size=size, mode="nearest-exact")
    return F.interpolate(x, size=size, mode=mode, antialias=True, align_corners=False)


def shrunk(picture: Tensor, short: int) -> Tensor:
    """One uint8 picture (height, width, 3), its shorter side made at most ``short``."""
    height, width = picture.shape[:2]
    if min(height, width) <= short:
        return picture
    scale = short / min(height, width)
    size = (max(round(height * scale), 1), max(round(width * scale), 1))
    return resize(picture[None].permute(0, 3, 1, 2), size, "bilinear")[0].permute(1, 2, 0).contiguous()
