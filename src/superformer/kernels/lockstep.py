"""Several sub-networks in one batch, each at its own width: in step, and together where they are alike.

*In step*: a phase of a block of each after another. Their slices lie in the same weights, which stay in the cache, and
so do the gradients on the way back. *Together*: sub-networks that use the same channels of a block run as one batch
there, because a product of a few rows mostly waits for its weights."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from superformer.elastic.axis import Pass, Step
from superformer.elastic.transformer import Cell, Stretch

if TYPE_CHECKING:
    from superformer.families.network import Network

FEW = 1024
"""Rows (pictures times tokens) of a sub-network from which on more of them make no product faster."""


def in_step(net: Network, tokens: Sequence[Tensor], plans: Sequence[Pass]) -> list[Tensor]:
    """The final tokens of each pass."""
    now = list(tokens)
    for i, stage in enumerate(net.space.stages):
        now = [net.enter(i, x, at) for x, at in zip(now, plans, strict=True)]
        todo = [{step.block: step for step in at.stages[i]} for at in plans]
        for position in range(stage.positions):
            block = net.stage(i).block(position)
            _advance(block, {k: steps[block] for k, steps in enumerate(todo) if block in steps}, now, plans)
    return [net.finish(x, at) for x, at in zip(now, plans, strict=True)]


def _advance(block: Cell, steps: Mapping[int, Step], tokens: list[Tensor], plans: Sequence[Pass]) -> None:
    """One block, of those that have it."""
    for stretch in block.stretches():
        groups = _groups(stretch, steps, tokens, plans)
        states: list[Any] = [tokens[g[0]] if len(g) == 1 else torch.cat([tokens[k] for k in g]) for g in groups]
        for phase in stretch.phases:
            for n, (first, *_) in enumerate(groups):
                states[n] = phase(states[n], plans[first].view, steps[first], plans[first])
        for group, state in zip(groups, states, strict=True):
            parts = [state] if len(group) == 1 else state.split([len(tokens[k]) for k in group])
            for k, part in zip(group, parts, strict=True):
                tokens[k] = part


def _groups(
    stretch: Stretch, steps: Mapping[int, Step], tokens: Sequence[Tensor], plans: Sequence[Pass]
) -> list[list[int]]:
    """Which of them go together."""
    groups: dict[Hashable, list[int]] = {}
    for k, step in steps.items():
        x, at = tokens[k], plans[k]
        key: Hashable = k
        if stretch.alike is not None and step.parts is None and math.prod(x.shape[:-1]) < FEW:
            key = (x.shape[1:], stretch.alike(at.view, step, at))
        groups.setdefault(key, []).append(k)
    return list(groups.values())
