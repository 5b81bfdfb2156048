"""The exact costs of all terms of all networks of a space, and the range their sums reach.

Relies on what every family keeps: what leads into a stage depends on that stage's and the previous stage's choices, a block on its stage's,
the end on the last stage's, and all on the network-wide ones.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from superformer.cost.population import Terms, skeleton
from superformer.space.depths import Ints
from superformer.space.genes import Columns, resolve
from superformer.space.space import Space
from superformer.space.stage import Spec


@dataclass(frozen=True)
class Net:
    """The terms for one setting of the network-wide choices; the last axis of all arrays is the quantity.

    ``enters[i]``: into stage i, by the previous stage's and its own choices, and by those of its entry alone. ``blocks[i][p]``: by the
    stage's choices and the block's combination. ``ended``: by the last stage's choices. ``low`` and ``high``: the range of the total.
    """

    enters: list[Ints]
    blocks: list[list[Ints]]
    ended: Ints
    low: list[int]
    high: list[int]


class Exact:
    """Exact costs of a space's terms: `nets` has an entry for each setting of the network-wide choices."""

    def __init__(self, space: Space, names: tuple[str, ...], num_classes: int, img_size: int | None):
        self.space, self.names = space, names
        self.terms = Terms(skeleton(space, num_classes), img_size)
        self.tops = combos(space.choices, space.layout.choices)
        self.columns = [_split(w.choices, self.terms.net.schema.entry) for w in space.layout.stages]
        self.owns = [combos(s.choices, c[0]) for s, c in zip(space.stages, self.columns, strict=True)]
        self.ways = [combos(s.choices, c[1]) for s, c in zip(space.stages, self.columns, strict=True)]
        self.nets = [self._net(top) for top in range(len(self.tops))]
        self.range = {name: (min(n.low[q] for n in self.nets), max(n.high[q] for n in self.nets)) for q, name in enumerate(names)}

    @staticmethod
    @functools.lru_cache(maxsize=32)
    def of(space: Space, names: tuple[str, ...], num_classes: int = 1000, img_size: int | None = None) -> Exact:
        return Exact(space, names, num_classes, img_size)

    def _values(self, specs: Mapping[str, Spec], columns: Mapping[str, int], chosen: Ints, scope: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, spec in sorted(specs.items(), key=lambda item: hasattr(item[1], "of")):
            index = chosen[:, list(columns).index(name)] if name in columns else np.zeros(len(chosen), dtype=np.int64)
            found[name] = resolve(spec, index, {**scope, **found})
        return found

    def _pick(self, counted: Any, size: int) -> Ints:
        """A term's cost as an array of (size, quantities)."""
        return np.stack([np.broadcast_to(np.asarray(getattr(counted, n), dtype=np.int64), (size,)) for n in self.names], -1)

    def _net(self, top: int) -> Net:
        """Exact costs of all terms, and the reachable range, for one setting of the network-wide choices."""
        space, layout = self.space, self.space.layout
        one = self._values(space.choices, layout.choices, self.tops[top : top + 1], {})

        def repeat(values: Mapping[str, Any], k: int) -> dict[str, Any]:
            return {name: np.repeat(v, k) for name, v in values.items()}

        owns = [self._own(i, one, self.ways[i][:1]) for i in range(len(space.stages))]
        first = [{name: v[:1] for name, v in own.items()} for own in owns]
        low = high = np.zeros((1, len(self.names)), dtype=np.int64)
        enters, blocks = [], []
        for i, stage in enumerate(space.stages):
            size, ways, before = len(self.owns[i]), len(self.ways[i]), len(self.owns[i - 1]) if i else 1
            total = before * size * ways
            pair = [repeat(f, total) for f in first]
            pair[i] = {name: np.tile(v, before) for name, v in self._own(i, one, self.ways[i]).items()}
            if i:
                pair[i - 1] = repeat(owns[i - 1], size * ways)
            scope = repeat(one, total)
            widths = self.terms.net.bind(scope, pair)
            entered = self._pick(self.terms.enter(i, widths, {**scope, **pair[i]}), total).reshape(before, size, ways, -1)
            mine = [self._block(i, p, one, owns, first) for p in range(stage.positions)]
            enters.append(entered)
            blocks.append(mine)
            least = np.stack([b.min(1) for b in mine]) if mine else np.zeros((0, size, len(self.names)), dtype=np.int64)
            most = np.stack([b.max(1) for b in mine]) if mine else least
            low = (low[:, None] + entered.min(2)).min(0) + least[: stage.depths[0]].sum(0)
            high = (high[:, None] + entered.max(2)).max(0) + most[: stage.depths[-1]].sum(0)
        size = len(self.owns[-1])
        last = [repeat(f, size) for f in first]
        last[-1] = owns[-1]
        scope = repeat(one, size)
        ended = self._pick(self.terms.exit(self.terms.net.bind(scope, last), scope), size)
        return Net(enters, blocks, ended, [int(v) for v in (low + ended).min(0)], [int(v) for v in (high + ended).max(0)])

    def _own(self, i: int, one: Mapping[str, Any], ways: Ints) -> dict[str, Any]:
        """The values of a stage's choices: each setting with each of these settings of the entry."""
        kept, entry = self.columns[i]
        chosen = np.hstack([np.repeat(self.owns[i], len(ways), 0), np.tile(ways, (len(self.owns[i]), 1))])
        scope = {name: np.repeat(v, len(chosen)) for name, v in one.items()}
        return self._values(self.space.stages[i].choices, {**kept, **entry}, chosen, scope)

    def _block(self, i: int, p: int, one: Mapping[str, Any], owns: list[dict[str, Any]], first: list[dict[str, Any]]) -> Ints:
        """Costs of a position: (stage settings, combinations, quantities)."""
        stage, where = self.space.stages[i], self.space.layout.stages[i]
        size, all_ = len(self.owns[i]), combos(stage.blocks[p], where.blocks[p])
        total = size * len(all_)
        choices = [{name: np.repeat(v, total) for name, v in f.items()} for f in first]
        choices[i] = {name: np.repeat(v, len(all_)) for name, v in owns[i].items()}
        scope = {**{name: np.repeat(v, total) for name, v in one.items()}, **choices[i]}
        values = {**scope, **self._values(stage.blocks[p], where.blocks[p], np.tile(all_, (size, 1)), scope)}
        widths = self.terms.net.bind(scope, choices)
        return self._pick(self.terms.block(i, p, widths, values), total).reshape(size, len(all_), -1)


def _split(columns: Columns, entry: frozenset[str]) -> tuple[Columns, Columns]:
    """The genes of a stage's choices: those that all of the stage may depend on, and those of its entry alone."""
    return {n: c for n, c in columns.items() if n not in entry}, {n: c for n, c in columns.items() if n in entry}


def combos(specs: Mapping[str, Spec], columns: Mapping[str, int]) -> Ints:
    """All combinations of the choices that have genes, as indices."""
    ranges = [range(len(specs[name].values)) for name in columns]
    return np.asarray(list(itertools.product(*ranges)), dtype=np.int64).reshape(math.prod(map(len, ranges)), len(ranges))
