"""Final tokens beside a teacher's: what a network knows of a picture, place by place, not of its class alone.

A network that began as the teacher, with channels in the same order, has its channels' meanings: the first ones of both
are compared, as many as both have. Maps are compared at the smaller one's grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from superformer.elastic.axis import Pass
from superformer.families.network import Network


@dataclass(frozen=True)
class Final:
    """The final tokens of some pictures: ``first`` (batch, class token and registers, channels) and the ``map``
    (batch, channels, rows, columns)."""

    first: Tensor
    map: Tensor

    @staticmethod
    def of(net: Network, tokens: Tensor, at: Pass) -> Final:
        """From what a pass gave."""
        last = len(net.stages) - 1
        tokens = tokens.flatten(1, 2) if tokens.ndim == 4 else tokens  # (batch, rows, columns, channels)
        rows, cols = net.stage_grid(last, at.grid)
        first, patches = tokens[:, : -rows * cols], tokens[:, -rows * cols :]
        return Final(first, patches.transpose(1, 2).reshape(len(tokens), -1, rows, cols))

    def some(self, start: int, count: int) -> Final:
        """Of some of the pictures."""
        return Final(self.first[start : start + count], self.map[start : start + count])


def difference(own: Final, teacher: Final) -> Tensor:
    """The mean squared difference, in units of the teacher's variance; where both have tokens before the patches, the
    mean of theirs and of the patches'."""
    channels = min(own.map.shape[1], teacher.map.shape[1])
    mine, theirs = own.map[:, :channels].float(), teacher.map[:, :channels].float()
    grid = tuple(min(a, b) for a, b in zip(mine.shape[-2:], theirs.shape[-2:], strict=True))
    parts = [_relative(_at(mine, grid), _at(theirs, grid))]
    if own.first.shape[1] and own.first.shape[1] == teacher.first.shape[1]:
        parts.append(_relative(own.first[..., :channels].float(), teacher.first[..., :channels].float()))
    return torch.stack(parts).mean()


def feature_loss(net: Network, passes: Sequence[tuple[Tensor, Pass]], teachers: Sequence[Final]) -> Tensor:
    """Of the passes of a batch, in order, towards each teacher: the mean over pictures and teachers."""
    total, start = [], 0
    for tokens, at in passes:
        own, count = Final.of(net, tokens, at), len(tokens)
        total += [count * difference(own, teacher.some(start, count)) for teacher in teachers]
        start += count
    return torch.stack(total).sum() / (start * len(teachers))


def _at(x: Tensor, grid: tuple[int, ...]) -> Tensor:
    if tuple(x.shape[-2:]) == grid:
        return x
    return F.interpolate(x, grid, mode="bilinear", antialias=True, align_corners=False)


def _relative(own: Tensor, goal: Tensor) -> Tensor:
    return F.mse_loss(own, goal) / goal.var().clamp(min=1e-6)
