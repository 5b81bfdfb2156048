"""Drawing architectures: as the papers sample, or uniformly over different architectures; with limits, conditioned on
them.

MACs and parameters are sums over blocks, so architectures within limits on them need not be found by trial. Tables of
the weight of every rounded total (`superformer.space.tables`) give draws close to the limits, and a final exact check
removes what only rounding let in. What remains has exactly the unlimited distribution conditioned on the limits:
`sample_within`. A search draws many times within the same limits, which may be on measured costs, too: a
`LimitedSampler` finds out once which of them need tables, and walks where trials find too few."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.random import Generator

from superformer.errors import InfeasibleError, SuperformerError, amount, nearest
from superformer.space.costs import Exact, cost
from superformer.space.genes import Genes, clear, mutate
from superformer.space.stage import Floats, depth_weights, place
from superformer.space.tables import Tables, say

if TYPE_CHECKING:
    from superformer.space.space import Space

OVER = ("choices", "architectures")
EXACT = ("macs", "params")
"""Costs whose reachable range is known exactly, and within which tables can draw."""
Limit = float | tuple[float | None, float | None]
"""At most this, or (at least, at most); None leaves an end open."""
Limits = Mapping[str, tuple[float, float]]
"""(low, high) of costs by name, both ends included."""
CostsOf = Callable[[Genes], Mapping[str, Any]]
"""The costs of rows of genes, by name."""

GIVE_UP = 50_000
"""Draws without any success after which limits inside the reachable range count as impossible; fewer, if the draws
repeat themselves."""


def sample(space: Space, n: int, rng: Generator, over: str = "choices") -> Genes:
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
    space: Space, n: int, rng: Generator, over: str, given: Mapping[str, Limit], num_classes: int, img_size: int | None
) -> Genes:
    """Draw conditioned on limits (both ends included)."""
    _check(n, over)
    limits = {name: _ends(name, limit) for name, limit in given.items()}
    tables = _tables_within(space, over, limits, num_classes, img_size)
    found, closest = [np.zeros((0, len(space.bounds)), dtype=np.int64)], dict.fromkeys(limits, np.zeros(0, np.int64))

    def costs(genes: Genes) -> Mapping[str, Any]:
        counted = cost(space, genes, num_classes, img_size)
        return {name: getattr(counted, name) for name in limits}

    for batch in _batches(n, lambda size: tables.draw(size, rng, limits), costs, limits, spare=256, most=50_000):
        found.append(batch.genes[batch.away == 0])
        if batch.have:
            continue
        for name, (low, high) in limits.items():
            values = np.concatenate([batch.costs[name], closest[name]])
            closest[name] = np.concatenate([np.sort(values[values < low])[-1:], np.sort(values[values > high])[:1]])
        if batch.drawn >= GIVE_UP or len(np.unique(batch.genes, axis=0)) < len(batch.genes) / 8:
            seen = {name: " and ".join(f"{v:,}" for v in values.tolist()) for name, values in closest.items()}
            near = "; ".join(f"{name}: the nearest seen are {values}" for name, values in seen.items())
            nobody = f"no architecture of {space.name} was found within {say(limits)}"
            raise InfeasibleError(f"{nobody} in {batch.drawn:,} targeted draws ({near})")
    return np.concatenate(found)[:n]


def _ends(name: str, limit: Limit) -> tuple[float, float]:
    low, high = limit if isinstance(limit, tuple | list) and len(limit) == 2 else (None, limit)
    try:
        ends = (0.0 if low is None else float(low), math.inf if high is None else float(high))
    except (TypeError, ValueError) as error:
        what = "give (at least, at most) or a number that is the most"
        raise SuperformerError(f"{name}={limit!r} is not a limit: {what}") from error
    if math.isnan(ends[0]) or math.isnan(ends[1]) or ends[0] > ends[1]:
        raise InfeasibleError(f"{name}={limit!r} leaves nothing: the lower end must not be above the upper end")
    return ends


def _tables_within(space: Space, over: str, limits: Limits, num_classes: int, img_size: int | None) -> Tables:
    """Tables for limits that are reachable. Two quantities share the bins: they are spent on totals up to the limits
    only. One has enough bins to serve all limits."""
    caps = tuple(high for _, high in limits.values()) if len(limits) > 1 else (math.inf,)
    tables = Tables.of(space, over, tuple(limits), caps, num_classes, img_size)
    tables.check_reachable(limits)
    return tables


def excess(limits: Limits, costs: Mapping[str, Any]) -> Floats:
    """How far rows lie outside the limits, relative to them, summed over the limits; 0 is within."""
    total: Floats = np.zeros(len(next(iter(costs.values()))))
    for name, (low, high) in limits.items():
        scale = max([abs(end) for end in (low, high) if math.isfinite(end)], default=1.0) or 1.0
        total += (np.maximum(low - costs[name], 0) + np.maximum(costs[name] - high, 0)) / scale
    return total


class _Batch(NamedTuple):
    """Rows that were drawn together, their costs, and how far ``away`` from the limits they are; of all rows so far,
    how many were ``drawn`` and how many we ``have`` within the limits."""

    genes: Genes
    costs: Mapping[str, Any]
    away: Floats
    have: int
    drawn: int


def _batches(
    n: int, draw: Callable[[int], Genes], costs: CostsOf, limits: Limits, spare: int, most: int, least_rate: float = 0.0
) -> Iterator[_Batch]:
    """Trials until ``n`` rows are within the limits: as many at a time as the rate of success so far asks for."""
    have = drawn = 0
    while have < n:
        rate = max(have / drawn, least_rate) if have or (drawn and least_rate) else 0.5
        genes = draw(min(int((n - have) / rate * 1.1) + spare, most))
        values = costs(genes)
        away = excess(limits, values)
        have, drawn = have + int((away == 0).sum()), drawn + len(genes)
        yield _Batch(genes, values, away, have, drawn)


# --- again and again, within limits on any costs ---

PROBE = 2048
"""Draws that tell whether limits are wide enough for trial and error."""
OFTEN = 0.02
"""Limits that this share of the unlimited draws meets are met by trial and error; narrower ones by tables."""
ENOUGH = 20_000
"""Draws after which the rest is sought by walking towards the limits."""
STEPS = 40
"""Steps of that walk."""
WALKERS = 256
"""Mutants of each step."""
FAR = 0.01
"""Limits that a walk stays this far away from, relative to them, count as impossible."""


@dataclass(frozen=True, eq=False)
class LimitedSampler:
    """Draws rows within ``limits`` on ``costs``, every choice uniform as the papers sample, conditioned on the limits.

    Limits on macs and params (counted with ``num_classes`` and ``img_size``) that are seldom met are drawn within by
    tables, other limits by trial. Where both find too few, rows walk by mutation from the nearest towards the limits
    (no longer the conditioned distribution). ``seed`` is of the looks at what can be reached."""

    space: Space
    costs: CostsOf
    limits: Limits
    seed: int = 0
    num_classes: int = 1000
    img_size: int | None = None

    def draw(self, n: int, rng: Generator) -> Genes:
        """``n`` rows, which may repeat; raises `InfeasibleError` where nobody meets the limits."""
        found = [np.zeros((0, len(self.space.bounds)), dtype=np.int64)]
        near, away, have, drawn = found[0], np.zeros(0), 0, 0
        propose = functools.partial(self._propose, rng=rng)
        for batch in _batches(n, propose, self.costs, self.limits, spare=64, most=8192, least_rate=0.01):
            have, drawn = batch.have, batch.drawn
            found.append(batch.genes[batch.away == 0])
            if not have and self._reached[0] > FAR:
                raise self._infeasible(PROBE, self._reached[1])
            near, away = _nearest(np.concatenate([near, batch.genes]), np.concatenate([away, batch.away]))
            if drawn >= ENOUGH:
                break
        if have < n:
            # Rows found on the way from the nearest ones into the limits; where they are too few, repeated.
            walked, _, seen = self._approach(n - have, near, away, rng, self.limits)
            inside = np.concatenate([near[away == 0], walked])
            if not len(inside):
                raise self._infeasible(drawn, seen)
            found += [walked, inside[rng.integers(len(inside), size=max(n - have - len(walked), 0))]]
        return np.concatenate(found)[:n]

    def _propose(self, n: int, rng: Generator) -> Genes:
        if self.tables is None:
            return sample(self.space, n, rng)
        tables, limits = self.tables
        return tables.draw(n, rng, limits)

    @functools.cached_property
    def tables(self) -> tuple[Tables, Limits] | None:
        """Tables for the limits that trial would seldom meet. What cannot be reached is refused before any is built."""
        exact = {name: (max(low, 0.0), high) for name, (low, high) in self.limits.items() if name in EXACT}
        if not exact:
            return None
        nobody = f"no architecture of {self.space.name} has {say_limits(exact)}"
        reach = Exact.of(self.space, tuple(exact), self.num_classes, self.img_size).range
        if any(low > reach[name][1] or high < reach[name][0] for name, (low, high) in exact.items()):
            raise InfeasibleError(f"{nobody}; reachable: {say_limits(reach)}")
        rng = np.random.default_rng([self.seed, 0])
        genes = sample(self.space, PROBE, rng)
        costs = self.costs(genes)
        away = excess(exact, costs)
        if (away == 0).mean() >= OFTEN:
            return None

        def tables(limits: Limits) -> tuple[Tables, Limits]:
            return _tables_within(self.space, "choices", limits, self.num_classes, self.img_size), limits

        if len(exact) == 1:
            return tables(exact)
        if self._approach(1, *_nearest(genes, away), rng, exact)[1][0] > FAR:
            raise InfeasibleError(f"{nobody} together; reachable: {say_limits(reach)}")
        rare = min(exact, key=lambda name: (excess({name: exact[name]}, costs) == 0).sum())
        one, limit = tables({rare: exact[rare]})
        drawn = excess(exact, self.costs(one.draw(PROBE, rng, limit)))
        return (one, limit) if (drawn == 0).mean() >= OFTEN else tables(exact)

    @functools.cached_property
    def _reached(self) -> tuple[float, Limits]:
        """A quick look before many draws: how near to the limits a walk from the nearest of some comes, costs seen."""
        rng = np.random.default_rng([self.seed, 1])
        genes = self._propose(PROBE, rng)
        near = _nearest(genes, excess(self.limits, self.costs(genes)))
        _, away, seen = self._approach(1, *near, rng, self.limits)
        return float(away[0]), seen

    def _approach(
        self, n: int, near: Genes, away: Floats, rng: Generator, limits: Limits
    ) -> tuple[Genes, Floats, Limits]:
        """Mutants of mutants, the nearest to the limits kept, until ``n`` are within: those, how far away the nearest
        are, and the costs seen."""
        found, have = [near[:0]], 0
        ends = self.space.encode([self.space.smallest(), self.space.largest()])
        costs = self.costs(np.concatenate([near, ends]))
        seen = {k: (float(costs[k].min()), float(costs[k].max())) for k in limits}
        for _ in range(STEPS):
            genes = mutate(self.space, near[rng.integers(len(near), size=WALKERS)], rng, p=0.1)
            costs = self.costs(genes)
            ends_now = {k: (float(costs[k].min()), float(costs[k].max())) for k in limits}
            seen = {k: (min(seen[k][0], low), max(seen[k][1], high)) for k, (low, high) in ends_now.items()}
            new = excess(limits, costs)
            found.append(genes[new == 0])
            have += len(found[-1])
            near, away = _nearest(np.concatenate([near, genes]), np.concatenate([away, new]))
            if have >= n:
                break
        return np.concatenate(found), away, seen

    def _infeasible(self, drawn: int, seen: Limits) -> InfeasibleError:
        return InfeasibleError(
            f"no architecture of {self.space.name} has {say_limits(self.limits)}, as far as {drawn:,} draws and "
            f"{STEPS * WALKERS:,} steps towards the limits tell; reached: {say_limits(seen)}"
        )


def _nearest(genes: Genes, away: Floats) -> tuple[Genes, Floats]:
    order = np.argsort(away, kind="stable")[: WALKERS // 4]
    return genes[order], away[order]


# --- for people to read ---


def say_cost(name: str, value: float, unit: str | None = None) -> str:
    """A cost with its unit, in three digits; that of an imported cost is told."""
    if unit is not None:
        return f"{value:.3g} {unit}"
    if name == "latency":
        return f"{1e3 * value:.3g} ms"
    if name == "throughput":
        return f"{amount(value)}/s"
    text = amount(value)
    return text if name != "memory" else f"{text}B" if text[-1].isalpha() else f"{text} B"


def say_end(name: str, value: float) -> str:
    """An end of a limit: macs and params to the last digit."""
    return f"{value:,.0f}" if name in EXACT else say_cost(name, value)


def say_limits(limits: Limits) -> str:
    """Limits, or what can be reached."""

    def ends(name: str, low: float, high: float) -> str:
        return (
            f"at least {say_end(name, low)}" if math.isinf(high) else f"{say_end(name, low)} to {say_end(name, high)}"
        )

    return " and ".join(f"{ends(name, *limit)} {name}" for name, limit in limits.items())
