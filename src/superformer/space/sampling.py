"""Drawing architectures: as the papers sample, or uniformly over different architectures; with limits, exactly
conditioned on them.

Costs are sums over blocks, so architectures within limits need not be found by trial. Tables of the weight of every
rounded total (`superformer.space.tables`) give draws close to the limits, and a final exact check removes what only
rounding let in. What remains has exactly the unlimited distribution conditioned on the limits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from superformer.errors import InfeasibleError, SuperformerError, nearest
from superformer.space.costs import cost
from superformer.space.genes import Genes, clear
from superformer.space.stage import Ints, depth_weights, place
from superformer.space.tables import Tables, say

if TYPE_CHECKING:
    from superformer.space.space import Space

OVER = ("choices", "architectures")
Limit = float | tuple[float | None, float | None]
"""At most this, or (at least, at most); None leaves an end open."""

GIVE_UP = 50_000
"""Draws without any success after which limits inside the reachable range count as impossible; fewer, if the draws
repeat themselves."""


def sample(space: Space, n: int, rng: np.random.Generator, over: str = "choices") -> Genes:
    """Draw without limits."""
    _check(n, over)
    genes = rng.integers(0, np.asarray(space.bounds, dtype=np.int64), (n, len(space.bounds)))
    for stage, where in zip(space.stages, space.layout.stages, strict=True):
        if len(stage.depths) > 1:
            weights = depth_weights(stage, over)
            depth = np.asarray(stage.depths)[rng.choice(len(weights), size=n, p=weights)]
            place(genes, np.arange(n), stage, where, depth, over, rng)
    return clear(space, genes)


def _check(n: int, over: str) -> None:
    if n < 0:
        raise SuperformerError(f"{n} architectures were asked for; the number must be 0 or more")
    if over not in OVER:
        raise SuperformerError(f"over={over!r} is not a way to sample: {nearest(over, OVER)}")


# --- within limits ---


def sample_within(
    space: Space,
    n: int,
    rng: np.random.Generator,
    over: str = "choices",
    *,
    macs: Limit | None = None,
    params: Limit | None = None,
    num_classes: int = 1000,
    img_size: int | None = None,
) -> Genes:
    """Draw conditioned on limits (both ends included)."""
    _check(n, over)
    limits = {name: _ends(name, limit) for name, limit in (("macs", macs), ("params", params)) if limit is not None}
    # Two quantities share the bins: spend them on totals up to the limits only. One has enough to serve all limits.
    caps = tuple(high for _, high in limits.values()) if len(limits) > 1 else (math.inf,)
    tables = Tables.of(space, over, tuple(limits), caps, num_classes, img_size)
    tables.check_reachable(limits)
    found: list[Genes] = []
    have = drawn = 0
    closest: dict[str, list[int]] = {name: [] for name in limits}
    while have < n:
        rate = have / drawn if have else 0.5
        batch = min(int((n - have) / rate * 1.1) + 256, 50_000)
        genes = tables.draw(batch, rng, limits)
        counts = cost(space, genes, num_classes, img_size)
        inside = np.ones(batch, dtype=bool)
        for name, (low, high) in limits.items():
            value = getattr(counts, name)
            inside &= (value >= low) & (value <= high)
            closest[name] = [*_around(np.concatenate([value, np.asarray(closest[name], dtype=np.int64)]), low, high)]
        found.append(genes[inside])
        have += int(inside.sum())
        drawn += batch
        if not have and (drawn >= GIVE_UP or len(np.unique(genes, axis=0)) < batch / 8):
            near = "; ".join(
                f"{name}: the nearest seen are {' and '.join(f'{v:,}' for v in values)}"
                for name, values in closest.items()
            )
            raise InfeasibleError(
                f"no architecture of {space.name} was found within {say(limits)} in {drawn:,} targeted draws ({near})"
            )
    return np.concatenate(found)[:n] if found else np.zeros((0, len(space.bounds)), dtype=np.int64)


def _around(values: Ints, low: float, high: float) -> list[int]:
    below, above = values[values < low], values[values > high]
    return ([int(below.max())] if len(below) else []) + ([int(above.min())] if len(above) else [])


def _ends(name: str, limit: Limit) -> tuple[float, float]:
    low, high = limit if isinstance(limit, tuple | list) and len(limit) == 2 else (None, limit)
    try:
        ends = (0.0 if low is None else float(low), math.inf if high is None else float(high))
    except (TypeError, ValueError) as error:
        raise SuperformerError(
            f"{name}={limit!r} is not a limit: give (at least, at most) or a number that is the most"
        ) from error
    if math.isnan(ends[0]) or math.isnan(ends[1]) or ends[0] > ends[1]:
        raise InfeasibleError(f"{name}={limit!r} leaves nothing: the lower end must not be above the upper end")
    return ends


__all__ = ["GIVE_UP", "OVER", "Limit", "clear", "depth_weights", "place", "sample", "sample_within"]
