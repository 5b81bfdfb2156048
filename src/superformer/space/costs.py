"""Exact MACs and parameters: of layers and whole populations, and of all terms of all networks of a space.

A network's cost is a sum: what leads into each stage, each block that runs, and what follows the last. Every term is
computed by the very modules that run (each layer knows its own cost), on numbers or on arrays with an entry for each
architecture. MACs are multiply-accumulates of convolutions and matrix products, what ``torch.utils.flop_counter``
counts divided by two. They do not include biases, norms, activations, softmax, pooling and interpolation."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from superformer.errors import SuperformerError
from superformer.space.arch import Arch
from superformer.space.genes import Columns, Genes, chosen_values
from superformer.space.schema import family
from superformer.space.stage import Ints, Spec

if TYPE_CHECKING:
    from superformer.elastic.axis import Axis
    from superformer.families.network import Network
    from superformer.space.space import Space

Count = Any
"""A Python int, or an int64 array with an entry for each architecture of a population."""


class Cost(NamedTuple):
    """Multiply-accumulates for one picture, and parameters."""

    macs: Count
    params: Count

    def __add__(self, other: object) -> Cost:
        assert isinstance(other, tuple)
        return Cost(self.macs + other[0], self.params + other[1])

    def times(self, active: Count) -> Cost:
        """So many times the cost: where ``active`` is zero, nothing."""
        return Cost(self.macs * active, self.params * active)


NOTHING = Cost(0, 0)


# --- whole populations ---

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
    return family(space.family).skeleton(space, num_classes, **dict(settings))


@dataclass(frozen=True)
class Terms:
    """The terms of the cost of a space's networks; ``img_size`` None is each architecture's own resolution."""

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

    For one picture at each architecture's own resolution, or of ``img_size``. Parameters are those of the stand-alone
    networks; ``patch_head=True`` counts ViT-ResNAS's second classifier too, as the paper does."""
    if isinstance(archs, Arch):
        archs = [archs]
    genes = archs if isinstance(archs, np.ndarray) else space.encode(archs)
    if img_size is None and len(sizes := space.widths("resolution")) == 1:
        img_size = sizes[0]
    terms = Terms(skeleton(space, num_classes, tuple(sorted(settings.items()))), img_size)
    sums = [_sums(space, genes[at : at + AT_ONCE], terms) for at in range(0, max(len(genes), 1), AT_ONCE)]
    macs, params = np.concatenate(sums, 1)
    return Costs(macs, params)


def _sums(space: Space, genes: Genes, terms: Terms) -> Ints:
    """MACs and parameters of rows that fit into the cache."""
    values = space.population(genes)
    widths = terms.net.bind(values.choices, [s.choices for s in values.stages])
    total = NOTHING
    for i, stage in enumerate(values.stages):
        scope = {**values.choices, **stage.choices}
        total += terms.enter(i, widths, scope)
        if terms.net.equal_blocks and stage.blocks and not stage.blocks[0]:
            total += terms.block(i, 0, widths, scope).times(stage.active.sum(1))
            continue
        for p, block in enumerate(stage.blocks):
            total += terms.block(i, p, widths, {**scope, **block}).times(stage.active[:, p])
    total += terms.exit(widths, values.choices)
    return np.stack([np.broadcast_to(np.asarray(c, dtype=np.int64), (values.n,)) for c in total])


# --- all networks of a space ---


@dataclass(frozen=True)
class Net:
    """The terms for one setting of the network-wide choices; the last axis of all arrays is the quantity.

    ``enters[i]``: into stage i, by the previous stage's and its own choices, and by those of its entry alone.
    ``blocks[i][p]``: by the stage's choices and the block's combination. ``ended``: by the last stage's choices.
    ``low`` and ``high``: the range of the total."""

    enters: list[Ints]
    blocks: list[list[Ints]]
    ended: Ints
    low: list[int]
    high: list[int]


MOST_TERMS = 5_000_000
"""Combinations of choices whose costs are kept at once; vitas-resnet50, the most of the published, has 560,000."""


class Exact:
    """Exact costs of a space's terms, and the `range` of their sums: `nets` has an entry for each setting of the
    network-wide choices.

    Relies on what every family keeps: what leads into a stage depends on that stage's and the previous stage's choices,
    a block on its stage's, the end on the last stage's, and all on the network-wide ones."""

    def __init__(self, space: Space, names: tuple[str, ...], num_classes: int, img_size: int | None):
        self.space, self.names = space, names
        self.terms = Terms(skeleton(space, num_classes), img_size)
        for specs in (space.choices, *(s.choices for s in space.stages), *(b for s in space.stages for b in s.blocks)):
            if (count := math.prod(len(spec.values) for spec in specs.values())) > MOST_TERMS:
                what = f"{space.name} has {count:,} combinations of {', '.join(specs)}; at most {MOST_TERMS:,}"
                raise SuperformerError(f"{what} are possible where networks are drawn within limits: narrow the space")
        self.tops = combos(space.choices, space.layout.choices)
        self.columns = [_split(w.choices, self.terms.net.schema.entry) for w in space.layout.stages]
        self.owns = [combos(s.choices, c[0]) for s, c in zip(space.stages, self.columns, strict=True)]
        self.ways = [combos(s.choices, c[1]) for s, c in zip(space.stages, self.columns, strict=True)]
        if (terms := self._count()) > MOST_TERMS:
            what = f"{space.name} has {terms:,} combinations of choices to weigh; at most {MOST_TERMS:,} are possible"
            raise SuperformerError(f"{what} where networks are drawn within limits: narrow the space")
        self.nets = [self._net(top) for top in range(len(self.tops))]
        nets = self.nets
        self.range = {n: (min(t.low[q] for t in nets), max(t.high[q] for t in nets)) for q, n in enumerate(names)}

    def _count(self) -> int:
        """Entries of all terms, for all settings of the network-wide choices."""
        pairs = [(1, *map(len, self.owns))[i] * len(self.owns[i]) * len(self.ways[i]) for i in range(len(self.owns))]
        stages = zip(self.space.stages, self.owns, strict=True)
        blocks = [len(own) * sum(map(s.options, range(s.positions))) for s, own in stages]
        return len(self.tops) * (sum(pairs) + sum(blocks))

    @staticmethod
    @functools.lru_cache(maxsize=8)  # arrays of millions of numbers, in large spaces
    def of(space: Space, names: tuple[str, ...], num_classes: int = 1000, img_size: int | None = None) -> Exact:
        return Exact(space, names, num_classes, img_size)

    def _pick(self, counted: Cost, *shape: int) -> Ints:
        """A term's cost as an array of (shape, quantities)."""
        picked = [np.asarray(getattr(counted, n), dtype=np.int64) for n in self.names]
        return np.stack([np.broadcast_to(c, (math.prod(shape),)).reshape(shape) for c in picked], -1)

    def _net(self, top: int) -> Net:
        """Exact costs of all terms, and the reachable range, for one setting of the network-wide choices."""
        space, layout = self.space, self.space.layout
        one = chosen_values(space.choices, _numbered(layout.choices), self.tops[top : top + 1], {})
        owns = [self._own(i, one, self.ways[i][:1]) for i in range(len(space.stages))]
        first = [{name: v[:1] for name, v in own.items()} for own in owns]
        low = high = np.zeros((1, len(self.names)), dtype=np.int64)
        enters, blocks = [], []
        for i, stage in enumerate(space.stages):
            size, ways, before = len(self.owns[i]), len(self.ways[i]), len(self.owns[i - 1]) if i else 1
            total = before * size * ways
            pair = [_repeat(f, total) for f in first]
            pair[i] = {name: np.tile(v, before) for name, v in self._own(i, one, self.ways[i]).items()}
            if i:
                pair[i - 1] = _repeat(owns[i - 1], size * ways)
            scope = _repeat(one, total)
            enter = self.terms.enter(i, self.terms.net.bind(scope, pair), {**scope, **pair[i]})
            entered = self._pick(enter, before, size, ways)
            mine = [self._block(i, p, one, owns, first) for p in range(stage.positions)]
            enters.append(entered)
            blocks.append(mine)
            least = np.stack([b.min(1) for b in mine]) if mine else np.zeros((0, size, len(self.names)), dtype=np.int64)
            most = np.stack([b.max(1) for b in mine]) if mine else least
            low = (low[:, None] + entered.min(2)).min(0) + least[list(stage.ranked[: stage.depths[0]])].sum(0)
            high = (high[:, None] + entered.max(2)).max(0) + most.sum(0)
        size = len(self.owns[-1])
        last = [*(_repeat(f, size) for f in first[:-1]), owns[-1]]
        scope = _repeat(one, size)
        ended = self._pick(self.terms.exit(self.terms.net.bind(scope, last), scope), size)
        return Net(enters, blocks, ended, (low + ended).min(0).tolist(), (high + ended).max(0).tolist())

    def _own(self, i: int, one: Mapping[str, Any], ways: Ints) -> dict[str, Any]:
        """The values of a stage's choices: each setting with each of these settings of the entry."""
        kept, entry = self.columns[i]
        chosen = np.hstack([np.repeat(self.owns[i], len(ways), 0), np.tile(ways, (len(self.owns[i]), 1))])
        return chosen_values(
            self.space.stages[i].choices, _numbered([*kept, *entry]), chosen, _repeat(one, len(chosen))
        )

    def _block(
        self, i: int, p: int, one: Mapping[str, Any], owns: list[dict[str, Any]], first: list[dict[str, Any]]
    ) -> Ints:
        """Costs of a position: (stage settings, combinations, quantities)."""
        stage, where = self.space.stages[i], self.space.layout.stages[i]
        size, all_ = len(self.owns[i]), combos(stage.blocks[p], where.blocks[p])
        choices = [_repeat(f, size * len(all_)) for f in first]
        choices[i] = _repeat(owns[i], len(all_))
        scope = {**_repeat(one, size * len(all_)), **choices[i]}
        values = {
            **scope,
            **chosen_values(stage.blocks[p], _numbered(where.blocks[p]), np.tile(all_, (size, 1)), scope),
        }
        return self._pick(self.terms.block(i, p, self.terms.net.bind(scope, choices), values), size, len(all_))


def _numbered(names: Iterable[str]) -> Columns:
    return {name: column for column, name in enumerate(names)}


def _repeat(values: Mapping[str, Any], k: int) -> dict[str, Any]:
    return {name: np.repeat(v, k) for name, v in values.items()}


def _split(columns: Columns, entry: frozenset[str]) -> tuple[Columns, Columns]:
    """The genes of a stage's choices: those that all of the stage may depend on, and those of its entry alone."""
    return {n: c for n, c in columns.items() if n not in entry}, {n: c for n, c in columns.items() if n in entry}


def combos(specs: Mapping[str, Spec], columns: Mapping[str, int]) -> Ints:
    """All combinations of the choices that have genes, as indices."""
    ranges = [range(len(specs[name].values)) for name in columns]
    shape = math.prod(map(len, ranges)), len(ranges)
    return np.asarray(list(itertools.product(*ranges)), dtype=np.int64).reshape(shape)
