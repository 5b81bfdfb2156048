"""Mixup, CutMix and label smoothing on a batch; ViT-ResNAS's token labelling with patch-wise CutMix and Mixup.

The mathematics are timm's (`timm.data.mixup`, one draw for a batch). Only the partner differs: picture i of a global
batch of B is mixed with picture (i + B/2) mod B, where timm takes the mirrored one. So a rank, which has every world-th
picture, finds the partners of its pictures among its own, and ranks together compute what one process would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from superformer.errors import SuperformerError
from superformer.recipes.settings import Mix

Box = tuple[int, int, int, int]
"""y0, y1, x0, x1; the ends are outside."""
Method = Literal["mixup", "cutmix"]


class Draws(Protocol):
    """What a box needs of a generator: beta (1, 1 is uniform in [0, 1]) and uniform in low .. high - 1."""

    def beta(self, a: float, b: float) -> float: ...
    def integers(self, low: int, high: int) -> int: ...


@dataclass(frozen=True)
class Targets:
    """Soft labels (n, classes), and in token labelling those of the patches (n, grid x grid, classes), row by row."""

    image: Tensor
    patches: Tensor | None = None


def check_mixing(mix: Mix, batch: int, world: int, img_size: int, patch_grid: int | None) -> None:
    """Whether batches can be mixed as asked; ``batch`` is that of all ranks."""
    on = mix.mixup > 0 or mix.cutmix > 0
    halves = mix.patches == "halves"
    if halves and not (mix.mixup > 0 and mix.cutmix > 0):
        what = "mix.patches=halves mixes half of each batch by CutMix and half by Mixup"
        raise SuperformerError(f"{what}: set mix.mixup and mix.cutmix above 0")
    unit = (4 if halves else 2 if on else 1) * world
    if batch % unit:
        what = f"a batch of {batch} cannot be mixed in pairs" + (f" on {world} processes" if world > 1 else "")
        raise SuperformerError(f"{what}: train.batch_size must be a multiple of {unit}")
    if mix.patches == "off":
        return
    if patch_grid is None:
        what = f"mix.patches={mix.patches} labels patches, but this network has no patch tokens to label"
        raise SuperformerError(f"{what}; set mix.patches=off")
    if img_size % patch_grid:
        what = f"an input of {img_size} pixels cannot be cut in {patch_grid} x {patch_grid}"
        raise SuperformerError(f"{what} patches of equal size")


def mix_batch(
    x: Tensor, labels: Tensor, classes: int, mix: Mix, rng: np.random.Generator, patch_grid: int | None = None
) -> Targets:
    """Mix normalised pictures (n, 3, size, size) in place, with a ``rng`` equal on all ranks, and give soft labels."""
    target = smoothed(labels, classes, mix.smoothing)
    if mix.patches != "off" and patch_grid is not None:
        return _token_labels(x, target, mix, rng, patch_grid)
    method, lam = _method(mix, rng)
    if method == "cutmix":
        box = cutmix_box(x.shape[-1], lam, rng)
        _replace(x, box)
        lam = 1 - _area(box) / x.shape[-1] ** 2
    elif method == "mixup":
        _blend(x, lam)
    return Targets(target if method is None else _mixed(target, lam))


def _method(mix: Mix, rng: np.random.Generator) -> tuple[Method | None, float]:
    """How this batch is mixed (None: not at all), and lambda."""
    if not (mix.mixup > 0 or mix.cutmix > 0) or rng.random() >= mix.prob:
        return None, 1.0
    cut = rng.random() < mix.switch if mix.mixup > 0 and mix.cutmix > 0 else mix.cutmix > 0
    alpha = mix.cutmix if cut else mix.mixup
    return "cutmix" if cut else "mixup", float(rng.beta(alpha, alpha))


def _token_labels(x: Tensor, target: Tensor, mix: Mix, rng: np.random.Generator, grid: int) -> Targets:
    """ViT-ResNAS, section 2.4: patch-wise CutMix or Mixup, switched by batch (the paper) or half a batch each (as
    released). CutMix's strength only says whether it is on: the box is drawn with a uniform lambda."""
    if mix.patches == "switch":
        return Targets(*_patch_mixed(x, target, *_method(mix, rng), rng, grid))
    half, lam = len(x) // 2, float(rng.beta(mix.mixup, mix.mixup))
    first = _patch_mixed(x[:half], target[:half], "cutmix", 1.0, rng, grid)
    second = _patch_mixed(x[half:], target[half:], "mixup", lam, rng, grid)
    return Targets(*map(torch.cat, zip(first, second, strict=True)))


def _patch_mixed(
    x: Tensor, target: Tensor, method: Method | None, lam: float, rng: Draws, grid: int
) -> tuple[Tensor, Tensor]:
    """Mix in place; the soft labels of the pictures (n, classes) and of their patches (n, grid x grid, classes)."""
    if method != "cutmix":
        if method == "mixup":
            _blend(x, lam)
            target = _mixed(target, lam)
        return target, target[:, None].repeat(1, grid * grid, 1)
    y0, y1, x0, x1 = patch_box(grid, rng)
    patch = x.shape[-1] // grid
    _replace(x, (y0 * patch, y1 * patch, x0 * patch, x1 * patch))
    tokens = target[:, None, None].repeat(1, grid, grid, 1)  # (n, rows, columns, classes)
    tokens[:, y0:y1, x0:x1] = _partners(target)[:, None, None]
    return _mixed(target, 1 - _area((y0, y1, x0, x1)) / grid**2), tokens.flatten(1, 2)


def smoothed(labels: Tensor, classes: int, smoothing: float) -> Tensor:
    """One-hot labels with label smoothing: 1 - s + s / classes for the class, s / classes for all others."""
    off = smoothing / classes
    return torch.full((len(labels), classes), off).scatter_(1, labels.view(-1, 1), 1 - smoothing + off)


def cutmix_box(size: int, lam: float, rng: Draws) -> Box:
    """timm's CutMix box: a square of share 1 - lam around a random point, cut off at the borders."""
    side = int(size * np.sqrt(1 - lam))
    y, x = int(rng.integers(0, size)), int(rng.integers(0, size))
    return max(y - side // 2, 0), min(y + (side + 1) // 2, size), max(x - side // 2, 0), min(x + (side + 1) // 2, size)


def patch_box(grid: int, rng: Draws) -> Box:
    """ViT-ResNAS's box of whole patches, as its released code draws it (the paper says only "random")."""

    def below(low: int, high: int) -> int:
        return int(rng.integers(low, high)) if high > low else low

    n = int(grid * grid * rng.beta(1, 1))
    height = below(1, min(grid, n) - 1)
    width = n // height
    if width > grid:
        width, height = grid, n // grid
    y, x = below(0, grid - height), below(0, grid - width)
    return y, y + height, x, x + width


def _area(box: Box) -> int:
    return (box[1] - box[0]) * (box[3] - box[2])


def _partners(x: Tensor) -> Tensor:
    return x.roll(len(x) // 2, 0)


def _mixed(target: Tensor, lam: float) -> Tensor:
    return target * lam + _partners(target) * (1 - lam)


def _blend(x: Tensor, lam: float) -> None:
    other = _partners(x)
    x.mul_(lam).add_(other, alpha=1 - lam)


def _replace(x: Tensor, box: Box) -> None:
    inside = x[:, :, box[0] : box[1], box[2] : box[3]]
    inside.copy_(_partners(inside))
