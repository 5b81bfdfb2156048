"""Several sub-networks in one batch, each at its own width: in step, and together where they are alike.

*In step*: a branch of a block of each after another. Their slices lie in the same weights, which stay in the cache, and
so do the gradients on the way back. *Together*: sub-networks that use the same channels of a branch of a block run as
one batch there, because a product of a few rows mostly waits for its weights.

Networks and passes are whatever has the parts used here (`superformer.families.network`, `superformer.elastic.axis`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from superformer.kernels import kernel, on_cpu
from superformer.kernels.limits import MANY_ROWS, MASKED_PARTS


def masked_is_better(x: Tensor, parts: int) -> bool:
    """Whether so many architectures run as one masked pass at full width: where starting operations is what takes the
    time, off the CPU, that starts fewer of them."""
    return not on_cpu(x) and parts >= MASKED_PARTS


def plain_run_together(tokens: Sequence[Tensor], plans: Sequence[Any], net: Any) -> list[Tensor]:
    return [net.run(x, at) for x, at in zip(tokens, plans, strict=True)]


@kernel(plain_run_together, amp=True)
def run_together(tokens: Sequence[Tensor], plans: Sequence[Any], net: Any) -> list[Tensor]:
    """The final tokens of each pass of a network, from its first tokens."""
    now = list(tokens)
    for i, stage in enumerate(net.space.stages):
        now = [net.enter(i, x, at) for x, at in zip(now, plans, strict=True)]
        todo = [{visit.block: visit for visit in at.stages[i]} for at in plans]
        for position in range(stage.positions):
            block = net.stage(i).block(position)
            visits = {k: own[block] for k, own in enumerate(todo) if block in own}
            for run, alike in block.branches():
                groups: dict[Hashable, list[int]] = {}
                for k, visit in visits.items():
                    few = alike is not None and math.prod(now[k].shape[:-1]) < MANY_ROWS
                    key = (now[k].shape[1:], alike(visit, plans[k])) if few else k
                    groups.setdefault(key, []).append(k)
                for first, *others in groups.values():
                    members = [now[k] for k in (first, *others)]
                    out = run(members[0] if not others else torch.cat(members), visits[first], plans[first])
                    parts = [out] if not others else out.split([len(x) for x in members])
                    for k, part in zip((first, *others), parts, strict=True):
                        now[k] = part
    return [net.finish(x, at) for x, at in zip(now, plans, strict=True)]
