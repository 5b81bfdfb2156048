"""Pictures and copies of them, varied as training varies its pictures: more to judge a network by, where there are few.

Of pictures that training shifts: a copy moved as far as can be into each corner; of those that it mirrors: the mirrored ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from superformer.data.augment import normalise
from superformer.recipes.settings import Data

CORNERS = ((-1, -1), (-1, 1), (1, -1), (1, 1))


def number(settings: Data, size: int) -> int:
    """Pictures that each one becomes, itself among them."""
    return (1 + len(CORNERS) * (_far(settings, size) > 0)) * (1 + _mirrored(settings))


def copies(x: Tensor, settings: Data) -> Iterator[Tensor]:
    """Normalised pictures (n, 3, height, width), then their copies."""
    for one in _corners(x, settings):
        yield one
        if _mirrored(settings):
            yield one.flip(-1)


def _far(settings: Data, size: int) -> int:
    return round(settings.shift * size) if settings.augment == "shift" else 0


def _mirrored(settings: Data) -> bool:
    return settings.augment != "none" and settings.mirror > 0


def _corners(x: Tensor, settings: Data) -> Iterator[Tensor]:
    yield x
    high, wide = x.shape[-2:]
    if most := _far(settings, high):
        black = normalise(torch.zeros(1, 3, 1, 1, dtype=torch.uint8), settings).to(x.device)
        around = black.expand(len(x), -1, high + 2 * most, wide + 2 * most).contiguous()
        around[:, :, most : most + high, most : most + wide] = x
        for down, right in CORNERS:
            top, left = most - down * most, most - right * most
            yield around[:, :, top : top + high, left : left + wide].contiguous()
