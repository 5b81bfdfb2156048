"""Position tables for pictures of another size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def resized(table: Tensor, old: tuple[int, int], new: tuple[int, int], prefix: int) -> Tensor:
    """A table of (prefix + rows * columns, channels) for another grid, bicubic as in DeiT and ViT-ResNAS; the first entries (class
    token) stay."""
    if old == new:
        return table
    first, patches = table[:prefix], table[prefix:]
    picture = patches.t().reshape(1, -1, *old)
    stretched = F.interpolate(picture, size=new, mode="bicubic", align_corners=False)[0].flatten(1).t()
    return torch.cat([first, stretched]) if prefix else stretched
