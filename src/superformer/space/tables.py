"""The weights of all total costs of a space, by dynamic programming over rounded costs, and draws from them.

A network's cost is a sum of terms: what leads into each stage, each block that runs, and the end. Each term is rounded
to whole bins, so there are few different totals. Forwards, block by block, the weight of every total is the sum over
the block's choices of the weight of what was there before (a knapsack that counts with the probabilities of the
unlimited draw). Backwards, a draw starts from a total within the limits and takes the depth, each block and each
stage's choices with the weights of what they leave. Its probability is then the unlimited one, conditioned on the
rounded total.

Rounding moves a total by at most half a bin for each term. Limits are widened by that, so that nothing within them is
lost; what only rounding let in is removed by an exact check afterwards (`superformer.space.sampling.sample_within`)."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from superformer.errors import InfeasibleError
from superformer.machine import require_memory
from superformer.space.costs import Exact, Net, combos
from superformer.space.genes import Genes
from superformer.space.stage import Floats, Ints, depth_weights, place

if TYPE_CHECKING:
    from superformer.space.space import Space

BINS = {1: 16384, 2: 256}
"""Bins for each limited quantity, when one or two are limited."""

ROWS = 10_000
"""Draws at once: their choices of one term are all weighed at the same time."""


KEPT = 2**29
"""Bytes of all tables that are kept; those of a large space are gigabytes, and one process may see many spaces."""
_kept: dict[tuple[object, ...], Tables] = {}


def say(limits: Mapping[str, tuple[float, float]]) -> str:
    """Limits in words."""
    return " and ".join(f"{low:,.0f} to {high:,.0f} {name}" for name, (low, high) in limits.items())


@dataclass(frozen=True)
class Blocks:
    """The choices of one position of a stage: for each setting of the stage's choices the rounded cost (last axis:
    quantities) of each combination."""

    costs: Ints
    combos: Ints
    columns: tuple[int, ...]

    @functools.cached_property
    def grouped(self) -> list[list[tuple[Ints, float]]]:
        """For each setting the different rounded costs and their share of the combinations."""
        return [_shares(row) for row in self.costs]


def _shares(row: Ints) -> list[tuple[Ints, float]]:
    """The different costs, and the share that each has."""
    if len(row) == 1:
        return [(row[0], 1.0)]
    costs, counts = np.unique(row, axis=0, return_counts=True)
    return [(c, float(k) / len(row)) for c, k in zip(costs, counts, strict=True)]


class Tables:
    """The weight of every rounded total cost, stage by stage and block by block, for one setting of the network-wide
    choices after another. Relies on what `Exact` relies on."""

    def __init__(self, exact: Exact, over: str, caps: tuple[float, ...]):
        self.space, self.over, self.names, self.range = exact.space, over, exact.names, exact.range
        self.tops, self.owns, self.ways, self.columns = exact.tops, exact.owns, exact.ways, exact.columns
        self.count = 1 + sum(1 + s.positions for s in self.space.stages)
        most = [int(min(high, cap)) for (_, high), cap in zip(self.range.values(), caps, strict=True)]
        self.step = [max(-(-high // BINS[len(self.names)]), 1) for high in most]
        self.sides = tuple(high // step + self.count + 2 for high, step in zip(most, self.step, strict=True))
        self.strides = np.asarray([math.prod(self.sides[q + 1 :]) for q in range(len(self.names))])
        self.bins = math.prod(self.sides)
        deep = [
            len(own) * (1 if s.tied else s.positions + 1) for s, own in zip(self.space.stages, self.owns, strict=True)
        ]
        self.bytes = 8 * self.bins * len(self.tops) * (sum(deep) + sum(map(len, self.owns)))
        require_memory(self.bytes, f"drawing networks of {self.space.name} within limits")
        self.nets = [self._forward(net) for net in exact.nets]

    @staticmethod
    def of(
        space: Space, over: str, names: tuple[str, ...], caps: tuple[float, ...], num_classes: int, img_size: int | None
    ) -> Tables:
        """The tables, kept for the next draw; the oldest go where all would be larger than `KEPT`."""
        key = space, over, names, caps, num_classes, img_size
        found = _kept.pop(key, None) or Tables(Exact.of(space, names, num_classes, img_size), over, caps)
        _kept[key] = found
        while len(_kept) > 1 and (len(_kept) > 8 or sum(t.bytes for t in _kept.values()) > KEPT):
            del _kept[next(iter(_kept))]
        return found

    def _round(self, exact: Ints) -> Ints:
        """A cost in steps, to the nearest; what is above every cap stays just above."""
        steps: Ints = np.minimum(np.rint(exact / np.asarray(self.step)).astype(np.int64), np.asarray(self.sides))
        return steps

    def _add(self, target: Floats, source: Floats, shift: Ints, weight: float) -> None:
        """target += weight * source, moved up by ``shift`` bins; what leaves the table is above a cap."""
        if (shift < np.asarray(self.sides)).all():
            there = tuple(slice(k, None) for k in shift)
            here = tuple(slice(0, side - k) for side, k in zip(self.sides, shift, strict=True))
            target.reshape(self.sides)[there] += weight * source.reshape(self.sides)[here]

    def _before(self, total: Ints, spent: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """The flat bin of what was there before a cost was spent, and whether there was."""
        before: Ints = total - spent
        ok: NDArray[np.bool_] = np.all(before >= 0, axis=-1)
        return np.where(ok[..., None], before, 0) @ self.strides, ok

    # --- weights of totals ---

    def _forward(self, exact: Net) -> dict[str, Any]:
        """tables[i][s, j]: the weight of each total after j blocks of stage i, with its choices at s; sums[i][s]:
        before stage i, with the choices of the one before it at s."""
        tables, enters, blocks = [], [], []
        before = np.zeros((1, self.bins))
        before[0, 0] = 1.0
        sums = [before]
        for i, (stage, where) in enumerate(zip(self.space.stages, self.space.layout.stages, strict=True)):
            enter, size = self._round(exact.enters[i]), len(self.owns[i])
            weights = depth_weights(stage, self.over)
            table = np.zeros((size, 1 if stage.tied else stage.positions + 1, self.bins))
            for s, own in np.ndindex(len(before), size):
                for c, share in _shares(enter[s, own]):
                    self._add(table[own, 0], before[s], c, share / size)
            mine = [
                Blocks(self._round(b), combos(stage.blocks[p], where.blocks[p]), tuple(where.blocks[p].values()))
                for p, b in ((p, exact.blocks[i][p]) for p in stage.ranked)
            ]
            if stage.tied:
                after = np.zeros((size, self.bins))
                for s, (depth, weight) in itertools.product(range(size), zip(stage.depths, weights, strict=True)):
                    for c, share in mine[0].grouped[s]:
                        self._add(after[s], table[s, 0], depth * c, weight * share)
            else:
                for p, choice in enumerate(mine):
                    for s in range(size):
                        for c, share in choice.grouped[s]:
                            self._add(table[s, p + 1], table[s, p], c, share)
                after = np.einsum("d,sdb->sb", weights, table[:, list(stage.depths)])
            tables.append(table)
            sums.append(after)
            enters.append(enter)
            blocks.append(mine)
            before = after
        return {"tables": tables, "sums": sums, "enters": enters, "blocks": blocks, "exit": self._round(exact.ended)}

    # --- drawing ---

    def check_reachable(self, limits: Mapping[str, tuple[float, float]]) -> None:
        possible = all(limits[n][0] <= self.range[n][1] and limits[n][1] >= self.range[n][0] for n in self.names)
        if not possible or not self._window(limits)[2].sum() > 0:
            together = "" if not possible or len(limits) == 1 else " together"
            wanted, reachable = f"{say(limits)}{together}", say(self.range)
            raise InfeasibleError(f"no architecture of {self.space.name} has {wanted}; reachable: {reachable}")

    def _window(self, limits: Mapping[str, tuple[float, float]]) -> tuple[Ints, Ints, Floats]:
        """The end points (network-wide setting, last stage's setting) and total bins that limits, widened by the
        rounding, leave, and their weights."""
        axes, slack = [], self.count / 2 + 1
        for q, name in enumerate(self.names):
            low, high = limits[name]
            first = max(math.floor(low / self.step[q] - slack), 0)
            last = min(math.ceil(min(high, self.range[name][1]) / self.step[q] + slack), self.sides[q] - 1)
            axes.append(np.arange(first, max(last, first - 1) + 1))
        bins = np.stack([g.ravel() for g in np.meshgrid(*axes, indexing="ij")], -1)
        ends, weights = [], []
        for top, net in enumerate(self.nets):
            for own, exit_ in enumerate(net["exit"]):
                before, ok = self._before(bins, exit_)
                weights.append(np.where(ok, net["sums"][-1][own][before], 0.0) / len(self.nets))
                ends.append((top, own))
        return np.asarray(ends), bins, np.stack(weights)

    def draw(self, n: int, rng: Generator, limits: Mapping[str, tuple[float, float]]) -> Genes:
        """Draw from the distribution conditioned on the rounded total."""
        ends, bins, weights = self._window(limits)
        chosen = _choose(weights.ravel()[None], rng, n)
        end, column = chosen // len(bins), chosen % len(bins)
        genes = np.zeros((n, len(self.space.bounds)), dtype=np.int64)
        for top in np.unique(ends[end, 0]):
            mine = np.flatnonzero(ends[end, 0] == top)
            genes[np.ix_(mine, _index(self.space.layout.choices.values()))] = self.tops[top]
            for rows in np.array_split(mine, -(-len(mine) // ROWS)):
                own = ends[end[rows], 1]
                self._walk(genes, rows, own, bins[column[rows]] - self.nets[top]["exit"][own], self.nets[top], rng)
        return genes

    def _walk(self, genes: Genes, rows: Ints, own: Ints, total: Ints, net: Mapping[str, Any], rng: Generator) -> None:
        """Backwards through the stages: the depth, the blocks from the last, then the previous stage's choices."""
        for i in reversed(range(len(self.space.stages))):
            stage, where = self.space.stages[i], self.space.layout.stages[i]
            table, blocks, weights = net["tables"][i], net["blocks"][i], depth_weights(stage, self.over)
            genes[np.ix_(rows, _index(self.columns[i][0].values()))] = self.owns[i][own]
            if stage.tied:
                choice = blocks[0]
                spent = np.asarray(stage.depths)[None, :, None, None] * choice.costs[own][:, None]
                before, ok = self._before(total[:, None, None], spent)
                likely = np.where(ok, table[own[:, None, None], 0, before], 0.0) * weights[None, :, None]
                depth, combo = np.divmod(_choose(likely.reshape(len(rows), -1), rng), choice.costs.shape[1])
                place(genes, rows, stage, where, np.asarray(stage.depths)[depth], self.over, rng)
                genes[np.ix_(rows, _index(choice.columns))] = choice.combos[combo]
                total = total - spent[np.arange(len(rows)), depth, combo]
            else:
                likely = weights * table[own[:, None], np.asarray(stage.depths)[None], (total @ self.strides)[:, None]]
                depth = np.asarray(stage.depths)[_choose(likely, rng)]
                active = place(genes, rows, stage, where, depth, self.over, rng)
                nth = np.cumsum(active, 1) if stage.free else np.argsort(stage.ranked)[None].repeat(len(rows), 0) + 1
                columns = np.asarray([list(c.values()) for c in where.blocks], dtype=np.int64)
                for j in range(stage.positions, 0, -1):
                    now, choice = np.flatnonzero(depth >= j), blocks[j - 1]
                    if not len(now):
                        continue
                    before, ok = self._before(total[now, None], choice.costs[own[now]])
                    pick = _choose(np.where(ok, table[own[now, None], j - 1, before], 0.0), rng)
                    total[now] -= choice.costs[own[now], pick]
                    genes[rows[now, None], columns[(nth[now] == j).argmax(1)]] = choice.combos[pick]
            ways = len(self.ways[i])
            if i or ways > 1:
                before, ok = self._before(total[:, None, None], net["enters"][i][:, own].swapaxes(0, 1))
                weight = np.where(ok, net["sums"][i][np.arange(before.shape[1])[None, :, None], before], 0.0)
                previous, way = np.divmod(_choose(weight.reshape(len(rows), -1), rng), ways)
                genes[np.ix_(rows, _index(self.columns[i][1].values()))] = self.ways[i][way]
                total = total - net["enters"][i][previous, own, way]
                own = previous


def _index(columns: Iterable[int]) -> Ints:
    """Columns for ``np.ix_``, which needs to be told the type where there are none."""
    return np.asarray(list(columns), dtype=np.int64)


def _choose(weights: Floats, rng: Generator, n: int | None = None) -> Ints:
    """One column of each row, with these weights; or ``n`` columns of one row."""
    sums = np.cumsum(weights, 1)
    if n is not None:
        found: Ints = np.searchsorted(sums[0], rng.random(n) * sums[0, -1], side="right")
    else:
        found = (sums <= rng.random(len(weights))[:, None] * sums[:, -1:]).sum(1)
    return found.clip(max=weights.shape[1] - 1)
