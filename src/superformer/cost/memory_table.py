"""Peak memory of whole populations, exactly, from a few networks that were followed (`superformer.cost.memory`).

A network's peak is the largest of its parts' (what leads into a stage, each block, the end), and a part's is the
largest sum of the tensors that are there at one moment. The size of each tensor is a product of widths: its logarithm
is a linear function of the logarithms of the widths that the part's weights have, and of the other choices. So a few
networks tell all: for each part the table looks for the fewest choices (a window, a patch size, the kind of a block)
that tell apart the networks which follow one such law, and solves for it. A network that is not determined by those
that were followed (a choice nobody has seen, widths outside their span) is followed, too."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from superformer.cost.memory import END, Held, Moments, held_by_parts
from superformer.cost.runtimes import Size
from superformer.elastic.axis import Axis, Packed
from superformer.elastic.layers import Elastic
from superformer.space import Genes, Space
from superformer.space.arch import StageArch
from superformer.space.costs import skeleton

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Values = Mapping[str, NDArray[Any]]
Key = tuple[Any, ...]

FIRST = 24
"""Networks that are followed before anything is predicted."""
SHORT = 3
"""Blocks that these have in each stage, at most: the first, an odd and an even one."""
CHECKED = 6
"""Networks in a row that must be predicted exactly before predictions are believed."""
AT_ONCE = 4
"""Networks that are followed before laws are looked for again."""
MOST_TOLD = 3
"""Choices that tell networks of different laws apart, at most."""
EXACT = 1e-6
"""A law holds for logarithms that differ by less."""


@dataclass
class MemoryTable:
    """Bytes that are in memory at once, at most, when the networks of a space run on one picture. It learns while it is
    asked."""

    space: Space
    num_classes: int = 1000
    img_size: Size | None = None
    parts: dict[str, _Part] = field(default_factory=lambda: defaultdict(_Part))
    followed: int = 0

    @staticmethod
    def build(space: Space, num_classes: int = 1000, img_size: Size | None = None, *, seed: int = 0) -> MemoryTable:
        """Follow networks of the space, drawn with ``seed``, until predictions are right ``CHECKED`` times in a row."""
        table, right = MemoryTable(space, num_classes, img_size), 0
        genes = space.sample_genes(4 * FIRST, np.random.default_rng(seed))
        for k in range(FIRST):
            table._follow(genes[k : k + 1], SHORT)
        for k in range(FIRST, len(genes)):
            row = genes[k : k + 1]
            predicted, real = table._predict(row)[0], table._follow(row)
            right = right if np.isnan(predicted) else right + 1 if predicted == real else 0
            if right == CHECKED:
                break
        return table

    def memory(self, genes: Genes) -> Floats:
        """Peak bytes of rows of genes."""
        genes = np.asarray(genes)
        found = self._predict(genes)
        while len(unknown := np.flatnonzero(np.isnan(found))):
            for k in unknown[:AT_ONCE]:
                found[k] = self._follow(genes[k : k + 1])
            rest = unknown[AT_ONCE:]
            found[rest] = self._predict(genes[rest])
        return found

    def _predict(self, genes: Genes) -> Floats:
        """Peak bytes, or nan of networks that must be followed."""
        peak = np.zeros(len(genes))
        for rows, name, _, values, logs in _described(self.space, genes, self.num_classes):
            peak[rows] = np.maximum(peak[rows], self.parts[name].peak(values, logs))  # nan stays nan
        return peak

    def _follow(self, row: Genes, blocks: int | None = None) -> float:
        """Peak bytes of one network (with so many blocks in each stage, at most), by following it; the table learns
        from it."""
        arch = self.space.decode(row)[0]
        short = replace(arch, stages=tuple(StageArch(s.blocks[:blocks], s.choices) for s in arch.stages))
        held = held_by_parts(short, self.num_classes, self.img_size)
        for _, name, own, values, logs in _described(self.space, row, self.num_classes):
            if own in held:
                self.parts[name].learn({n: v[0] for n, v in values.items()}, logs[0], held[own])
        self.followed += 1
        return float(max(h.peak for h in held.values()))


# --- the law of a part ---


@dataclass(frozen=True)
class _Law:
    """Of networks alike: ``moments`` and, for each tensor, the coefficients of the logarithms (the first is a
    constant)."""

    moments: Moments
    weights: Floats
    span: Floats
    """Projects onto what the followed networks span; what lies outside is not known."""
    spare: int
    """Networks that were followed beyond those that the law is solved from. Without any, nothing tells that it is
    one."""

    @staticmethod
    def of(logs: Floats, held: Sequence[Held]) -> _Law | None:
        """The law that the followed networks obey, if there is one."""
        if len({h.moments for h in held}) > 1:
            return None
        ones = np.column_stack([np.ones(len(logs)), logs])
        sizes = np.log([h.sizes for h in held])
        inverse = np.linalg.pinv(ones, rcond=1e-9)
        weights = inverse @ sizes
        if np.abs(ones @ weights - sizes).max(initial=0.0) > EXACT:
            return None
        span = inverse @ ones
        return _Law(held[0].moments, weights, span, len(np.unique(ones, axis=0)) - round(float(np.trace(span))))

    def peak(self, logs: Floats) -> Floats:
        """Bytes; nan where the law does not reach."""
        ones = np.column_stack([np.ones(len(logs)), logs])
        sizes = np.rint(np.exp(ones @ self.weights))
        total: Floats = np.max([sizes[:, list(moment)].sum(1) for moment in self.moments], 0)
        inside = np.abs(ones @ self.span - ones).max(1) < EXACT
        total[~inside | (self.spare < 1)] = np.nan
        return total


@dataclass
class _Part:
    """The networks that were followed through a part, and what they tell of others."""

    values: list[Mapping[str, Any]] = field(default_factory=list)
    logs: list[Floats] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    _laws: tuple[Sequence[str], dict[Key, _Law]] | None = None
    _known: dict[Key, int] = field(default_factory=dict)

    def learn(self, values: Mapping[str, Any], logs: Floats, held: Held) -> None:
        self._known[(*values.values(), *logs.tolist())] = held.peak
        self.values.append(values)
        self.logs.append(logs)
        self.held.append(held)
        self._laws = None

    def peak(self, values: Values, logs: Floats) -> Floats:
        if self._laws is None:
            self._laws = self._solved()
        told, laws = self._laws
        out = np.full(len(logs), np.nan)
        for key, rows in _grouped([values[name] for name in told], len(logs)).items():
            if key in laws:
                out[rows] = laws[key].peak(logs[rows])
        for k in np.flatnonzero(np.isnan(out)):
            out[k] = self._known.get((*(v[k] for v in values.values()), *logs[k].tolist()), np.nan)
        return out

    def _solved(self) -> tuple[Sequence[str], dict[Key, _Law]]:
        """The fewest choices that tell apart networks of different laws, and the laws; of as few choices those with
        most to spare."""
        values = {name: np.asarray([v[name] for v in self.values]) for name in (self.values or [{}])[0]}
        names, logs = [n for n, v in values.items() if len(np.unique(v)) > 1], np.asarray(self.logs)
        for count in range(min(len(names), MOST_TOLD) + 1 if self.held else 0):
            found = []
            for told in itertools.combinations(names, count):
                groups = _grouped([values[n] for n in told], len(logs))
                solved = {key: _Law.of(logs[rows], [self.held[k] for k in rows]) for key, rows in groups.items()}
                laws = {key: law for key, law in solved.items() if law is not None}
                if len(laws) == len(groups):
                    found.append((sum(law.spare for law in laws.values()), told, laws))
            if found:
                return max(found, key=lambda entry: entry[0])[1:]
        return (), {}


def _grouped(columns: Sequence[NDArray[Any]], n: int) -> dict[Key, Rows]:
    """The rows that have the same values."""
    groups: dict[Key, Rows] = {(): np.arange(n)}
    for c in columns:
        groups = {(*key, v): rows[c[rows] == v] for key, rows in groups.items() for v in np.unique(c[rows]).tolist()}
    return groups


# --- what may matter to a part ---


def _described(space: Space, genes: Genes, num_classes: int) -> Iterator[tuple[Rows, str, str, Values, Floats]]:
    """Of each part of each network: the rows of the population, the part, its name in the network, all values that may
    matter, and the logarithms of those that are numbers.

    As in `superformer.space.costs`: what leads into a stage depends on that stage's and the previous stage's choices, a
    block on its stage's, the end on the last stage's, and all on the network-wide ones."""
    net, n, last = skeleton(space, num_classes), len(genes), len(space.stages) - 1
    values, first = space.population(genes), space.population(np.zeros((1, genes.shape[1]), dtype=np.int64))

    def bound(*stages: int) -> dict[Axis, Any]:
        """The widths that these stages' choices set."""
        own = [(values if i in stages else first).stages[i].choices for i in range(last + 1)]
        return net.bind(values.choices, [{name: np.broadcast_to(v, n) for name, v in s.items()} for s in own])

    outside = [m for name, m in net.named_children() if name != "stages"]
    for i, stage in enumerate(values.stages):
        name, scope = f"into stage {i}", {**values.choices, **stage.choices}
        modules = [m for m in (net.stage(i).enter,) if m is not None] + (outside if i == 0 else [])
        logs = _logs(_widths(modules, bound(i - 1, i)), scope, n)
        before = values.stages[i - 1].choices if i else values.choices
        kept = {f"{name} as before": before[name] == v for name, v in stage.choices.items() if name in before}
        yield np.arange(n), name, name, {**scope, **kept, "blocks": stage.active.sum(1) > 0}, logs
        widths, order = bound(i), stage.active.cumsum(1) - 1
        for p, block in enumerate(stage.blocks):
            module, inside = net.stage(i).block(p), {**scope, **block}
            logs = _logs(_widths([module], {**widths, **module.bind(inside)}), inside, n)
            # the first, and every second block, may be special
            inside["place"] = np.where(order[:, p] == 0, 2, order[:, p] % 2)
            for k in np.unique(order[stage.active[:, p], p]):
                rows = np.flatnonzero(stage.active[:, p] & (order[:, p] == k))
                own = {name: v[rows] for name, v in inside.items()}
                yield rows, f"stage {i}", f"stage {i} block {k}", own, logs[rows]
    yield np.arange(n), END, END, values.choices, _logs(_widths(outside, bound(last)), values.choices, n)


def _widths(modules: Sequence[nn.Module], widths: Mapping[Axis, Any]) -> list[Any]:
    """Of the axes on which the weights of modules lie."""
    elastic = [m for root in modules for m in root.modules() if isinstance(m, Elastic)]
    dims = [d for m in elastic for dims in m.dims.values() for d in dims]
    axes = dict.fromkeys(d.axis if isinstance(d, Packed) else d for d in dims)
    return [widths[axis] for axis in axes if isinstance(axis, Axis) and axis in widths and axis.kind != "private"]


def _logs(widths: Sequence[Any], values: Values, n: int) -> Floats:
    columns = [*widths, *(v for v in values.values() if v.dtype.kind in "iuf")]
    if not columns:
        return np.zeros((n, 0))
    return np.log(np.stack([np.broadcast_to(np.asarray(c, dtype=np.float64), n) for c in columns], 1))
