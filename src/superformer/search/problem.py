"""What a search method may know: the space, the objectives, and costs that need no network to run."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from superformer.cost.population import cost
from superformer.errors import InfeasibleError, SuperformerError, nearest
from superformer.space import Genes, Space
from superformer.space.exact import Exact
from superformer.space.sampling import clear
from superformer.space.variation import mutate

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

EXACT = ("macs", "params")
"""Costs whose reachable range is known exactly, and within which the space can draw without trial."""
MAXIMISED = ("accuracy",)
PROBE = 2048
"""Draws that tell whether limits are wide enough for trial and error."""
OFTEN = 0.02
"""Limits that this share of the unlimited draws meets are met by trial and error; narrower ones by the tables of the space."""
GIVE_UP = 20_000
"""Draws after which the rest is sought by walking towards the limits."""
STEPS = 40
"""Steps of that walk."""
WALKERS = 256


@dataclass(frozen=True)
class Objective:
    """What is sought: ``accuracy`` is maximised, costs are minimised."""

    name: str
    maximise: bool

    @staticmethod
    def of(name: str) -> Objective:
        return Objective(name, name in MAXIMISED)


@dataclass(frozen=True)
class Problem:
    """A space, what is sought in it, and within which limits.

    The first objective is the one that is expensive to measure; whoever runs the search measures it. ``costs`` gives all cheap quantities
    of rows of genes; ``limits`` are pairs (low, high) of some of them, both ends included. ``num_classes`` and ``img_size`` are those that
    ``costs`` counts macs and params with.
    """

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
            raise SuperformerError(f"objectives must be one or more different ones; {', '.join(names) or 'none'} were given")
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

    def draw(self, n: int, rng: np.random.Generator) -> Genes:
        """``n`` random rows within the limits, every choice uniform as the papers sample, conditioned on the limits; rows may repeat.

        Limits on macs and params that are seldom met are drawn within by the space's tables, other limits by trial. Where trial finds too
        few, rows walk by mutation from the nearest found towards the limits (no longer the conditioned distribution).
        """
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
            near, excess = _closest(np.concatenate([near, genes]), np.concatenate([excess, away]))
        if have < n:
            found.append(self._walk(n - have, near, excess, rng, drawn))
        return np.concatenate(found)[:n]

    @functools.cached_property
    def _tabled(self) -> dict[str, tuple[float, float]]:
        """The limits for which the space's tables are used. Refuses what cannot be reached, before any table is built."""
        exact = {name: (max(low, 0.0), high) for name, (low, high) in self.limits.items() if name in EXACT}
        if not exact:
            return {}
        reach = Exact.of(self.space, tuple(exact), self.num_classes, self.img_size).range
        if any(low > reach[name][1] or high < reach[name][0] for name, (low, high) in exact.items()):
            raise InfeasibleError(f"no architecture of {self.space.name} has {_limits(exact)}; reachable: {_limits(reach)}")
        genes = self.space.sample_genes(PROBE, np.random.default_rng([self.seed, 0]))
        return exact if (self._excess(self.costs(genes), exact) == 0).mean() < OFTEN else {}

    def _try(self, n: int, rng: np.random.Generator) -> Genes:
        within = self._tabled
        return self.space.sample_genes(
            n, rng, macs=within.get("macs"), params=within.get("params"), num_classes=self.num_classes, img_size=self.img_size
        )

    def _walk(self, n: int, near: Genes, excess: Floats, rng: np.random.Generator, drawn: int) -> Genes:
        """Mutants of mutants, the nearest to the limits kept, until there are ``n`` within them; else those found, repeated."""
        ranges = {name: (float(v.min()), float(v.max())) for name, v in self.costs(self._ends(near)).items() if name in self.limits}
        found = [near[excess == 0][:0]]
        have = 0
        for _ in range(STEPS):
            genes = mutate(self.space, near[rng.integers(len(near), size=WALKERS)], rng, p=0.1)
            costs = self.costs(genes)
            ranges = {k: (min(low, float(costs[k].min())), max(high, float(costs[k].max()))) for k, (low, high) in ranges.items()}
            away = self._excess(costs)
            found.append(genes[away == 0])
            have += int((away == 0).sum())
            near, excess = _closest(np.concatenate([near, genes]), np.concatenate([excess, away]))
            if have >= n:
                break
        inside = np.concatenate([near[excess == 0], *found])
        if not len(inside):
            raise InfeasibleError(
                f"no architecture of {self.space.name} has {_limits(self.limits)}, as far as {drawn:,} draws and {STEPS * WALKERS:,} steps "
                f"towards the limits tell; reached: {_limits(ranges)}"
            )
        rows = np.concatenate(found)
        return rows if len(rows) >= n else np.concatenate([rows, inside[rng.integers(len(inside), size=n - len(rows))]])

    def _ends(self, genes: Genes) -> Genes:
        return np.concatenate([genes, self.space.encode([self.space.smallest(), self.space.largest()])])


def _closest(genes: Genes, excess: Floats) -> tuple[Genes, Floats]:
    order = np.argsort(excess, kind="stable")[: WALKERS // 4]
    return genes[order], excess[order]


def _say(name: str, value: float) -> str:
    return f"{value:,.0f}" if name in EXACT else f"{value:,.4g}"


def _limits(limits: Mapping[str, tuple[float, float]]) -> str:
    return " and ".join(f"{_say(name, low)} to {_say(name, high)} {name}" for name, (low, high) in limits.items())


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
