"""What a search method may know: the space, the objectives, and costs that need no network to run."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from superformer.errors import InfeasibleError, SuperformerError, nearest
from superformer.space import Genes, Space
from superformer.space.costs import cost
from superformer.space.genes import clear
from superformer.space.sampling import LimitedSampler, Limits, excess, say_end

if TYPE_CHECKING:
    from superformer.cost.latency_table import LatencyTable
    from superformer.cost.memory_table import MemoryTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
MAXIMISED = ("accuracy", "throughput")


def exact_costs(space: Space, genes: Genes, num_classes: int, img_size: int | None = None) -> dict[str, Floats]:
    """MACs and parameters of rows of genes."""
    counted = cost(space, genes, num_classes, img_size)
    return {"macs": counted.macs.astype(np.float64), "params": counted.params.astype(np.float64)}


def predicted_costs(
    space: Space,
    genes: Genes,
    latency: LatencyTable | None = None,
    throughput: LatencyTable | None = None,
    memory: MemoryTable | None = None,
    imported: Mapping[str, LatencyTable] | None = None,
) -> dict[str, Floats]:
    """What tables say of rows of genes; that of ``throughput`` has the time of large batches, ``imported`` are costs of
    other kinds, such as energy."""
    found: dict[str, Floats] = {}
    if latency is not None:
        found["latency"] = latency.latency(space, genes)
    if throughput is not None:
        found["throughput"] = throughput.batch / throughput.latency(space, genes)
    if memory is not None:
        found["memory"] = memory.memory(genes)
    return found | {name: table.latency(space, genes) for name, table in (imported or {}).items()}


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
    ``num_classes`` and ``img_size`` are those that ``costs`` counts macs and params with; ``units`` are those of costs
    that were imported, for people to read.

    ``deepest``: depth is not searched; a stage of equal blocks is as deep as the limits allow (ViTAS v1, section 3.2:
    in the block level depth "can be simply determined according to the pre-defined overall resource cost
    constraint")."""

    space: Space
    objectives: tuple[Objective, ...]
    costs: Callable[[Genes], dict[str, Floats]]
    limits: Limits = field(default_factory=dict)
    seed: int = 0
    num_classes: int = 1000
    img_size: int | None = None
    deepest: bool = False
    units: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.deepest and not self._deepened:
            raise SuperformerError(
                f"depth=budget needs a stage of equal blocks (tied) with a list of depths, and {self.space.name} has "
                "none: declare one, such as {depth: [1, 2, 3], tied: true}, or leave depth=searched"
            )
        names = [o.name for o in self.objectives]
        if not names or len(set(names)) < len(names):
            given = ", ".join(names) or "none"
            raise SuperformerError(f"objectives must be one or more different ones; {given} were given")
        known = list(self.costs(np.zeros((1, len(self.space.bounds)), dtype=np.int64)))
        for name, (low, high) in self.limits.items():
            if name not in known:
                raise SuperformerError(f"no limit can be set on {name!r}: {nearest(name, known)}")
            if not low <= high:
                ends = f"from {say_end(name, low)} to {say_end(name, high)}"
                raise InfeasibleError(f"{name} {ends} leaves nothing: give (low, high) with low <= high")
        if self.seed < 0:
            raise SuperformerError(f"seed={self.seed} must be 0 or more")

    @staticmethod
    def of(
        space: Space,
        objectives: Iterable[str | Objective] = ("accuracy",),
        limits: Limits | None = None,
        seed: int = 0,
        num_classes: int = 1000,
        img_size: int | None = None,
    ) -> Problem:
        """A problem whose costs are exact MACs and parameters."""
        costs = functools.partial(exact_costs, space, num_classes=num_classes, img_size=img_size)
        sought = tuple(Objective.of(o) if isinstance(o, str) else o for o in objectives)
        return Problem(space, sought, costs, dict(limits or {}), seed, num_classes, img_size)

    @property
    def maximise(self) -> tuple[bool, ...]:
        return tuple(o.maximise for o in self.objectives)

    def feasible(self, genes: Genes) -> Flags:
        """Which rows lie within the limits."""
        if not self.limits or not len(genes):
            return np.ones(len(genes), dtype=bool)
        return np.asarray(excess(self.limits, self.costs(genes)) == 0)

    @property
    def _deepened(self) -> list[tuple[int, int]]:
        """The genes of the depths that limits set, and how many depths there are."""
        pairs = zip(self.space.stages, self.space.layout.stages, strict=True)
        return [(where.depth, len(s.depths)) for s, where in pairs if s.tied and where.depth is not None]

    def settled(self, genes: Genes) -> Genes:
        """The rows in their one form; with ``deepest`` each as deep as the limits allow, stage after stage. Rows that
        are outside the limits at any depth stay."""
        rows = canonical(self.space, genes)
        for column, depths in self._deepened if self.deepest and len(rows) else ():
            others, which = np.unique(np.delete(rows, column, 1), axis=0, return_inverse=True)
            tried = np.insert(np.repeat(others, depths, 0), column, np.tile(np.arange(depths), len(others)), 1)
            fits = self.feasible(tried).reshape(len(others), depths)[which.reshape(-1)]
            rows[:, column] = np.where(fits.any(1), depths - 1 - fits[:, ::-1].argmax(1), rows[:, column])
        return rows

    @functools.cached_property
    def sampler(self) -> LimitedSampler:
        return LimitedSampler(self.space, self.costs, self.limits, self.seed, self.num_classes, self.img_size)

    def draw(self, n: int, rng: np.random.Generator) -> Genes:
        """``n`` random rows within the limits (see `superformer.space.sampling.LimitedSampler`); rows may repeat."""
        return self.sampler.draw(n, rng) if self.limits else self.space.sample_genes(n, rng)

    def check(self) -> None:
        """Refuse limits that nobody can meet."""
        self.draw(1, np.random.default_rng(0))


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


# --- fronts: which scores no other score beats in every objective, in ranks, by crowding, and as a volume ---
#
# Sorting, crowding distance and hypervolume are pymoo's, which minimises; here each objective says which way it goes.
# Rows with a score that is not a number (what could not be evaluated) are on no front.


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


def best(scores: Any, maximise: Sequence[bool], n: int) -> Ints:
    """The ``n`` best rows: by front, then the least crowded of their front, then the first (NSGA-II's survival)."""
    return ordered(scores, maximise, n)[0]


def ordered(scores: Any, maximise: Sequence[bool], n: int) -> tuple[Ints, Ints, Floats]:
    """The ``n`` best rows, the fronts they are on, and how far from their neighbours there: NSGA-II's crowding
    distance, which is infinite at the ends of a front."""
    from pymoo.operators.survival.rank_and_crowding.metrics import get_crowding_function

    turned, rank = minimised(scores, maximise), ranks(scores, maximise)
    by_front = np.argsort(rank, kind="stable")
    ends = np.searchsorted(rank[by_front], np.arange(rank.max(initial=-1) + 2))
    rows, distances = [by_front[:0]], [np.zeros(0)]
    for start, end in itertools.pairwise(ends):
        if start - ends[0] >= n:
            break
        members = by_front[start:end]
        distance = get_crowding_function("cd").do(turned[members])
        order = np.argsort(-distance, kind="stable")
        rows.append(members[order])
        distances.append(distance[order])
    kept = np.concatenate(rows)[:n]
    return kept, rank[kept], np.concatenate(distances)[:n]


def reach(known: Any, given: Any, maximise: Sequence[bool], n: int = 1) -> Floats:
    """What rows need in the first, maximised objective: with less, ``n`` of the known rows beat them in it and are no
    worse in the others. The first column of ``given`` is not looked at."""
    have, rows = minimised(known, maximise), minimised(given, maximise)
    if len(have) < n:
        return np.full(len(rows), -np.inf)
    no_worse = (have[None, :, 1:] <= rows[:, None, 1:]).all(-1)
    return np.asarray(np.sort(np.where(no_worse, -have[None, :, 0], -np.inf), 1)[:, -n])


def hypervolume(scores: Any, maximise: Sequence[bool], reference: Sequence[float]) -> float:
    """The volume of what the rows dominate, up to a reference point that is worse than all of interest."""
    from pymoo.indicators.hv import HV

    turned, worst = minimised(scores, maximise), minimised([reference], maximise)[0]
    turned = turned[np.isfinite(turned).all(1) & (turned < worst).all(1)]
    return float(HV(ref_point=worst)(turned)) if len(turned) else 0.0
