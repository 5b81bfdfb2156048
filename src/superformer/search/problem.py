"""Fronts: which scores no other score beats in every objective, in ranks, by crowding, and as a volume.

Sorting, crowding distance and hypervolume are pymoo's, which minimises; here each objective says which way it goes.
Rows with a score that is not a number (what could not be evaluated) are on no front."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superformer.errors import InfeasibleError, SuperformerError, nearest
from superformer.settings import amount
from superformer.space import Genes, Space
from superformer.space.costs import Exact, cost
from superformer.space.genes import clear, mutate
from superformer.space.tables import Tables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def minimised(scores: Any, maximise: Sequence[bool]) -> Floats:
    """Scores turned so that less is better in every objective."""
    given: Floats = np.asarray(scores, dtype=np.float64)
    if given.ndim != 2 or given.shape[1] != len(maximise):
        raise SuperformerError(f"scores must be rows of {len(maximise)} numbers, not an array of shape {given.shape}")
    return np.where(np.asarray(maximise, dtype=bool), -given, given)


def ranks(scores: Any, maximise: Sequence[bool]) -> Ints:
    """The number of the front of each row: 0 for what nothing dominates, 1 for what is then left, and so on; -1 without
    a score."""
    from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting

    turned = minimised(scores, maximise)
    valid = np.isfinite(turned).all(1)
    out = np.full(len(turned), -1, dtype=np.int64)
    if valid.any():
        out[valid] = NonDominatedSorting().do(turned[valid], return_rank=True)[1]
    return out


def front(scores: Any, maximise: Sequence[bool]) -> Ints:
    """The rows that no other row dominates (at least as good in every objective and better in one), in their order;
    equal rows all stay."""
    return np.flatnonzero(ranks(scores, maximise) == 0)


def crowding(scores: Any, maximise: Sequence[bool]) -> Floats:
    """NSGA-II's crowding distance of each row, all rows being one front: its ends are infinitely far from the
    others."""
    from pymoo.operators.survival.rank_and_crowding.metrics import get_crowding_function

    distance: Floats = get_crowding_function("cd").do(minimised(scores, maximise))
    return distance


def best(scores: Any, maximise: Sequence[bool], n: int) -> Ints:
    """The ``n`` best rows: by front, then the least crowded of their front, then the first (NSGA-II's survival)."""
    return ordered(scores, maximise, n)[0]


def ordered(scores: Any, maximise: Sequence[bool], n: int) -> tuple[Ints, Ints, Floats]:
    """The ``n`` best rows, the fronts they are on, and how far from their neighbours there."""
    given, rank = np.asarray(scores, dtype=np.float64), ranks(scores, maximise)
    by_front = np.argsort(rank, kind="stable")
    ends = np.searchsorted(rank[by_front], np.arange(rank.max(initial=-1) + 2))
    rows, distances = [by_front[:0]], [np.zeros(0)]
    for start, end in itertools.pairwise(ends):
        if start - ends[0] >= n:
            break
        members = by_front[start:end]
        distance = crowding(given[members], maximise)
        order = np.argsort(-distance, kind="stable")
        rows.append(members[order])
        distances.append(distance[order])
    kept = np.concatenate(rows)[:n]
    return kept, rank[kept], np.concatenate(distances)[:n]


def reach(known: Any, given: Any, maximise: Sequence[bool], n: int = 1) -> Floats:
    """What rows need in the first, maximised objective: with less, ``n`` of the known rows beat them in it and are no
    worse in the others.

    The first column of ``given`` is not looked at.
    """
    have, rows = minimised(known, maximise), minimised(given, maximise)
    if len(have) < n:
        return np.full(len(rows), -np.inf)
    no_worse = (have[None, :, 1:] <= rows[:, None, 1:]).all(-1)
    found: Floats = np.sort(np.where(no_worse, -have[None, :, 0], -np.inf), 1)[:, -n]
    return found


def hypervolume(scores: Any, maximise: Sequence[bool], reference: Sequence[float]) -> float:
    """The volume of what the rows dominate, up to a reference point that is worse than all of interest."""
    from pymoo.indicators.hv import HV

    turned, worst = minimised(scores, maximise), minimised([reference], maximise)[0]
    turned = turned[np.isfinite(turned).all(1)]
    turned = turned[(turned < worst).all(1)]
    return float(HV(ref_point=worst)(turned)) if len(turned) else 0.0


# What a search method may know: the space, the objectives, and costs that need no network to run.


Flags = NDArray[np.bool_]

EXACT = ("macs", "params")
"""Costs whose reachable range is known exactly, and within which the space can draw without trial."""
MAXIMISED = ("accuracy", "throughput")
PROBE = 2048
"""Draws that tell whether limits are wide enough for trial and error."""
OFTEN = 0.02
"""Limits that this share of the unlimited draws meets are met by trial and error; narrower ones by the tables of the
space."""
GIVE_UP = 20_000
"""Draws after which the rest is sought by walking towards the limits."""
STEPS = 40
"""Steps of that walk."""
WALKERS = 256
"""Mutants of each step."""
FAR = 0.01
"""Limits that a walk stays this far away from, relative to them, count as impossible."""


def say(name: str, value: float) -> str:
    """A cost for people to read."""
    if name == "latency":
        return f"{1e3 * value:.3g} ms"
    if name == "throughput":
        return f"{amount(value)}/s"
    text = amount(value)
    return text if name != "memory" else f"{text}B" if text[-1].isalpha() else f"{text} B"


@dataclass(frozen=True)
class Objective:
    """What is sought: ``accuracy`` and ``throughput`` are maximised, costs are minimised."""

    name: str
    maximise: bool

    @staticmethod
    def of(name: str) -> Objective:
        return Objective(name, name in MAXIMISED)


@dataclass(frozen=True)
class Problem:
    """A space, what is sought in it, and within which limits.

    The first objective is the one that is expensive to measure; whoever runs the search measures it. ``costs`` gives
    all cheap quantities of rows of genes; ``limits`` are pairs (low, high) of some of them, both ends included.
    ``num_classes`` and ``img_size`` are those that ``costs`` counts macs and params with."""

    space: Space
    objectives: tuple[Objective, ...]
    costs: Callable[[Genes], dict[str, Floats]]
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    seed: int = 0
    num_classes: int = 1000
    img_size: int | None = None

    def __post_init__(self) -> None:
        names = [o.name for o in self.objectives]
        if not names or len(set(names)) < len(names):
            raise SuperformerError(
                f"objectives must be one or more different ones; {', '.join(names) or 'none'} were given"
            )
        known = list(self.costs(np.zeros((1, len(self.space.bounds)), dtype=np.int64)))
        for name, (low, high) in self.limits.items():
            if name not in known:
                raise SuperformerError(f"no limit can be set on {name!r}: {nearest(name, known)}")
            if not low <= high:
                raise InfeasibleError(
                    f"{name} from {_say(name, low)} to {_say(name, high)} leaves nothing: give (low, high) with low <= high"
                )
        if self.seed < 0:
            raise SuperformerError(f"seed={self.seed} must be 0 or more")

    @staticmethod
    def of(
        space: Space,
        objectives: Iterable[str | Objective] = ("accuracy",),
        limits: Mapping[str, tuple[float, float]] | None = None,
        seed: int = 0,
        num_classes: int = 1000,
        img_size: int | None = None,
    ) -> Problem:
        """A problem whose costs are exact MACs and parameters."""

        def costs(genes: Genes) -> dict[str, Floats]:
            counted = cost(space, genes, num_classes, img_size)
            return {"macs": counted.macs.astype(np.float64), "params": counted.params.astype(np.float64)}

        sought = tuple(Objective.of(o) if isinstance(o, str) else o for o in objectives)
        return Problem(space, sought, costs, dict(limits or {}), seed, num_classes, img_size)

    @property
    def maximise(self) -> tuple[bool, ...]:
        return tuple(o.maximise for o in self.objectives)

    def feasible(self, genes: Genes) -> Flags:
        """Which rows lie within the limits."""
        if not self.limits or not len(genes):
            return np.ones(len(genes), dtype=bool)
        inside: Flags = self._excess(self.costs(genes)) == 0
        return inside

    def _excess(self, costs: Mapping[str, Floats], names: Iterable[str] | None = None) -> Floats:
        """How far rows lie outside the limits, relative to them, summed over the limits."""
        total: Floats = np.zeros(len(next(iter(costs.values()))))
        for name in self.limits if names is None else names:
            low, high = self.limits[name]
            scale = max([abs(end) for end in (low, high) if math.isfinite(end)], default=1.0) or 1.0
            total += (np.maximum(low - costs[name], 0) + np.maximum(costs[name] - high, 0)) / scale
        return total

    # --- drawing ---

    def check(self) -> None:
        """Refuse limits that nobody can meet."""
        self.draw(1, np.random.default_rng(0))

    def draw(self, n: int, rng: np.random.Generator) -> Genes:
        """``n`` random rows within the limits, every choice uniform as the papers sample, conditioned on the limits;
        rows may repeat.

        Limits on macs and params that are seldom met are drawn within by the space's tables
        (`superformer.space.tables`), other limits by trial. Where both find too few, rows walk by mutation from the
        nearest towards the limits (no longer the conditioned distribution)."""
        if not self.limits:
            return self.space.sample_genes(n, rng)
        found, drawn, have = [np.zeros((0, len(self.space.bounds)), dtype=np.int64)], 0, 0
        near, excess = found[0], np.zeros(0)
        while have < n and drawn < GIVE_UP:
            batch = min(int((n - have) / max(have / drawn if drawn else 0.5, 0.01) * 1.1) + 64, 8192)
            genes = self._try(batch, rng)
            away = self._excess(self.costs(genes))
            found.append(genes[away == 0])
            have, drawn = have + int((away == 0).sum()), drawn + batch
            if not have:
                self._reachable  # noqa: B018  # refuses
            near, excess = _closest(np.concatenate([near, genes]), np.concatenate([excess, away]))
        if have < n:
            found.append(self._walk(n - have, near, excess, rng, drawn))
        return np.concatenate(found)[:n]

    @functools.cached_property
    def _tables(self) -> tuple[Tables, dict[str, tuple[float, float]]] | None:
        """The space's tables for the limits that trial would seldom meet. Refuses what cannot be reached before any
        table is built."""
        exact = {name: (max(low, 0.0), high) for name, (low, high) in self.limits.items() if name in EXACT}
        if not exact:
            return None
        reach = Exact.of(self.space, tuple(exact), self.num_classes, self.img_size).range
        if any(low > reach[name][1] or high < reach[name][0] for name, (low, high) in exact.items()):
            raise InfeasibleError(
                f"no architecture of {self.space.name} has {within(exact)}; reachable: {within(reach)}"
            )
        rng = np.random.default_rng([self.seed, 0])
        genes = self.space.sample_genes(PROBE, rng)
        if self._share(genes, exact) >= OFTEN:
            return None
        if len(exact) == 1:
            return self._tables_of(exact)
        costs = self.costs(genes)
        _, excess, _ = self._approach(1, *_closest(genes, self._excess(costs, exact)), rng, exact)
        if excess[0] > FAR:
            raise InfeasibleError(
                f"no architecture of {self.space.name} has {within(exact)} together; reachable: {within(reach)}"
            )
        rare = min(exact, key=lambda name: (self._excess(costs, [name]) == 0).sum())
        one = self._tables_of({rare: exact[rare]})
        return one if self._share(one[0].draw(PROBE, rng, one[1]), exact) >= OFTEN else self._tables_of(exact)

    @functools.cached_property
    def _reachable(self) -> None:
        """Refuses limits that a walk from the nearest of some draws does not come near; a quick look before many
        draws."""
        rng = np.random.default_rng([self.seed, 1])
        genes = self._try(PROBE, rng)
        _, excess, ranges = self._approach(1, *_closest(genes, self._excess(self.costs(genes))), rng, self.limits)
        if excess[0] > FAR:
            raise self._infeasible(PROBE, ranges)

    def _share(self, genes: Genes, names: Iterable[str]) -> float:
        return float((self._excess(self.costs(genes), names) == 0).mean())

    def _tables_of(self, limits: dict[str, tuple[float, float]]) -> tuple[Tables, dict[str, tuple[float, float]]]:
        caps = tuple(high for _, high in limits.values()) if len(limits) > 1 else (math.inf,)
        tables = Tables.of(self.space, "choices", tuple(limits), caps, self.num_classes, self.img_size)
        tables.check_reachable(limits)
        return tables, limits

    def _try(self, n: int, rng: np.random.Generator) -> Genes:
        if self._tables is None:
            return self.space.sample_genes(n, rng)
        tables, limits = self._tables
        return tables.draw(n, rng, limits)

    def _walk(self, n: int, near: Genes, excess: Floats, rng: np.random.Generator, drawn: int) -> Genes:
        """Rows found on the way from the nearest ones into the limits; where they are too few, repeated."""
        found = near[excess == 0]
        walked, _, ranges = self._approach(n, near, excess, rng, self.limits)
        inside = np.concatenate([found, walked])
        if not len(inside):
            raise self._infeasible(drawn, ranges)
        return np.concatenate([walked[:n], inside[rng.integers(len(inside), size=max(n - len(walked), 0))]])

    def _infeasible(self, drawn: int, ranges: Mapping[str, tuple[float, float]]) -> InfeasibleError:
        return InfeasibleError(
            f"no architecture of {self.space.name} has {within(self.limits)}, as far as {drawn:,} draws and {STEPS * WALKERS:,} steps "
            f"towards the limits tell; reached: {within(ranges)}"
        )

    def _approach(
        self, n: int, near: Genes, excess: Floats, rng: np.random.Generator, names: Iterable[str]
    ) -> tuple[Genes, Floats, dict[str, tuple[float, float]]]:
        """Mutants of mutants, the nearest to the limits kept, until ``n`` are within: those, how far the nearest are,
        and costs seen."""
        names, found, have = list(names), [near[:0]], 0
        costs = self.costs(self._ends(near))
        ranges = {k: (float(costs[k].min()), float(costs[k].max())) for k in names}
        for _ in range(STEPS):
            genes = mutate(self.space, near[rng.integers(len(near), size=WALKERS)], rng, p=0.1)
            costs = self.costs(genes)
            ranges = {
                k: (min(low, float(costs[k].min())), max(high, float(costs[k].max())))
                for k, (low, high) in ranges.items()
            }
            away = self._excess(costs, names)
            found.append(genes[away == 0])
            have += len(found[-1])
            near, excess = _closest(np.concatenate([near, genes]), np.concatenate([excess, away]))
            if have >= n:
                break
        return np.concatenate(found), excess, ranges

    def _ends(self, genes: Genes) -> Genes:
        return np.concatenate([genes, self.space.encode([self.space.smallest(), self.space.largest()])])


def _closest(genes: Genes, excess: Floats) -> tuple[Genes, Floats]:
    order = np.argsort(excess, kind="stable")[: WALKERS // 4]
    return genes[order], excess[order]


def _say(name: str, value: float) -> str:
    return f"{value:,.0f}" if name in EXACT else say(name, value)


def within(limits: Mapping[str, tuple[float, float]]) -> str:
    """Limits, or what can be reached, in words."""
    return " and ".join(f"{_range(name, low, high)} {name}" for name, (low, high) in limits.items())


def _range(name: str, low: float, high: float) -> str:
    return f"at least {_say(name, low)}" if math.isinf(high) else f"{_say(name, low)} to {_say(name, high)}"


# --- rows of genes ---


def canonical(space: Space, genes: Genes) -> Genes:
    """Rows in their one form, in which the genes of blocks that do not run are 0."""
    return clear(space, np.array(genes, dtype=np.int64))


def alive(space: Space, genes: Genes) -> Flags:
    """Which genes of each row mean something: all but those of blocks that do not run."""
    found = np.ones(genes.shape, dtype=bool)
    for stage, where in zip(space.population(genes).stages, space.layout.stages, strict=True):
        for p, columns in enumerate(where.blocks):
            runs = stage.active.any(1) if stage.stage.tied else stage.active[:, p]
            for column in columns.values():
                found[:, column] = runs
    return found
