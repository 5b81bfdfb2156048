"""Exact MACs and parameters of whole populations.

A network's cost is a sum: what leads into each stage, each block that runs, and what follows the last. Every term is computed by the very
modules that run (each layer knows its own cost) on arrays of widths, one entry for each architecture.

MACs are multiply-accumulates of convolutions and matrix products, what ``torch.utils.flop_counter`` counts divided by two. They do not
include biases, norms, activations, softmax, pooling and interpolation.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from superformer.elastic.axis import Axis
from superformer.elastic.count import NOTHING, Cost, Count, broadcast
from superformer.families import family
from superformer.families.base import Network
from superformer.space import Genes, Space
from superformer.space.arch import Arch

AT_ONCE = 16_384
"""Architectures whose arrays stay in the cache."""


@dataclass(frozen=True)
class Costs:
    """``macs`` and ``params``: int64 arrays, an entry for each architecture."""

    macs: NDArray[np.int64]
    params: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.macs)


@functools.lru_cache(maxsize=32)
def skeleton(space: Space, num_classes: int, settings: tuple[tuple[str, Any], ...] = ()) -> Network:
    """The supernet of a space without any weight in memory."""
    with torch.device("meta"):
        return family(space.family)(space, num_classes, **dict(settings))


@dataclass(frozen=True)
class Terms:
    """The terms of the cost of a space's networks.

    Values are numbers or arrays; ``img_size`` None is each architecture's own resolution.
    """

    net: Network
    img_size: int | tuple[int, int] | None = None

    def size(self, values: Mapping[str, Count]) -> tuple[Count, Count]:
        size = values["resolution"] if self.img_size is None else self.img_size
        return self.net.canvas(values, size if isinstance(size, tuple) else (size, size))

    def enter(self, stage: int, widths: Mapping[Axis, Count], values: Mapping[str, Count]) -> Cost:
        return self.net.enter_cost(stage, widths, values, self.size(values))

    def block(self, stage: int, position: int, widths: Mapping[Axis, Count], values: Mapping[str, Count]) -> Cost:
        own = {**widths, **self.net.stage(stage).block(position).bind(values)}
        return self.net.block_cost(stage, position, own, values, self.size(values))

    def exit(self, widths: Mapping[Axis, Count], values: Mapping[str, Count]) -> Cost:
        return self.net.exit_cost(widths, values, self.size(values))


def cost(
    space: Space,
    archs: Genes | Iterable[Arch] | Arch,
    num_classes: int = 1000,
    img_size: int | tuple[int, int] | None = None,
    **settings: Any,
) -> Costs:
    """MACs and parameters of architectures, or of rows of genes, of a space.

    For one picture at each architecture's own resolution, or of ``img_size``. Parameters are those of the stand-alone networks;
    ``patch_head=True`` counts ViT-ResNAS's second classifier too, as the paper does.
    """
    if isinstance(archs, Arch):
        archs = [archs]
    genes = archs if isinstance(archs, np.ndarray) else space.encode(archs)
    if img_size is None and len(sizes := space.widths("resolution")) == 1:
        img_size = sizes[0]
    terms = Terms(skeleton(space, num_classes, tuple(sorted(settings.items()))), img_size)
    macs, params = zip(*(_sums(space, genes[at : at + AT_ONCE], terms) for at in range(0, max(len(genes), 1), AT_ONCE)), strict=True)
    return Costs(np.concatenate(macs), np.concatenate(params))


def _sums(space: Space, genes: Genes, terms: Terms) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    values = space.population(genes)
    widths = terms.net.bind(values.choices, [s.choices for s in values.stages])
    total = NOTHING
    for i, stage in enumerate(values.stages):
        scope = {**values.choices, **stage.choices}
        total += terms.enter(i, widths, scope)
        if terms.net.alike and stage.blocks and not stage.blocks[0]:
            total += terms.block(i, 0, widths, scope).times(stage.active.sum(1))
            continue
        for p, block in enumerate(stage.blocks):
            total += terms.block(i, p, widths, {**scope, **block}).times(stage.active[:, p])
    total += terms.exit(widths, values.choices)
    return broadcast(total, values.n)
