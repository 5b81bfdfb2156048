"""Populations as integer arrays: which gene is which choice, and the values of a whole population at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from superformer.errors import ArchError, SuperformerError, nearest
from superformer.space.arch import Arch, StageArch, Value, Values
from superformer.space.stage import Choice, following, running

if TYPE_CHECKING:
    from superformer.space.space import Space
    from superformer.space.stage import Spec, Stage

Genes = NDArray[np.int64]
"""A population: a row an architecture, a column a gene."""

Named = Mapping[str, Value]

Columns = dict[str, int]
"""The gene of each choice; a choice with one value has none."""

Scope = dict[str, NDArray[Any]]
"""Values of many architectures by name, as arrays with an entry for each."""


@dataclass(frozen=True)
class StageLayout:
    choices: Columns
    depth: int | None
    on: dict[int, int]
    blocks: tuple[Columns, ...]


@dataclass(frozen=True)
class Layout:
    """The columns of a space's genes: network-wide choices, then for each stage its choices, its depth (or which
    skippable positions run) and its blocks' choices."""

    space: Space
    choices: Columns
    stages: tuple[StageLayout, ...]
    bounds: tuple[int, ...]
    names: tuple[str, ...]

    @staticmethod
    def of(space: Space) -> Layout:
        bounds: list[int] = []
        names: list[str] = []

        def gene(name: str, count: int) -> int:
            bounds.append(count)
            names.append(name)
            return len(bounds) - 1

        def columns(prefix: str, specs: Mapping[str, Spec]) -> Columns:
            return {name: gene(prefix + name, len(spec.values)) for name, spec in specs.items() if len(spec.values) > 1}

        top = columns("", space.choices)
        stages = []
        for i, stage in enumerate(space.stages):
            own = columns(f"stage{i}.", stage.choices)
            depth = gene(f"stage{i}.depth", len(stage.depths)) if len(stage.depths) > 1 and not stage.free else None
            on = {p: gene(f"stage{i}.block{p}.on", 2) for p in stage.free}
            if stage.tied:
                blocks = [columns(f"stage{i}.blocks.", b) for b in stage.blocks[:1]] * stage.positions
            else:
                blocks = [columns(f"stage{i}.block{p}.", b) for p, b in enumerate(stage.blocks)]
            stages.append(StageLayout(own, depth, on, tuple(blocks)))
        return Layout(space, top, tuple(stages), tuple(bounds), tuple(names))

    def population(self, genes: Genes) -> Population:
        if genes.ndim != 2 or genes.shape[1] != len(self.bounds):
            rows = f"genes of the space {self.space.name} are rows of {len(self.bounds)} numbers"
            raise ArchError(f"{rows}, not an array of shape {genes.shape}")
        if not np.issubdtype(genes.dtype, np.integer):
            raise ArchError(f"genes are whole numbers, not {genes.dtype}")
        wrong = np.argwhere((genes < 0) | (genes >= np.asarray(self.bounds, dtype=np.int64)))
        if len(wrong):
            row, column = wrong[0]
            gene = f"gene {self.names[column]} of row {row}"
            raise ArchError(f"{gene} is {genes[row, column]}; it must be from 0 to {self.bounds[column] - 1}")
        n = len(genes)
        top = chosen_values(self.space.choices, self.choices, genes, {})
        stages = []
        for stage, where in zip(self.space.stages, self.stages, strict=True):
            own = chosen_values(stage.choices, where.choices, genes, top)
            active = np.ones((n, stage.positions), dtype=bool)
            if where.depth is not None:
                active = running(stage, np.asarray(stage.depths)[genes[:, where.depth]])
            for p, column in where.on.items():
                active[:, p] = genes[:, column] > 0
            scope = {**top, **own}
            blocks = tuple(chosen_values(b, c, genes, scope) for b, c in zip(stage.blocks, where.blocks, strict=True))
            stages.append(StagePopulation(stage, own, active, blocks))
        return Population(self.space, n, top, tuple(stages))

    def row(self, arch: Arch) -> list[int]:
        """The genes of one architecture; the error says what lies outside the space and what is possible."""
        row = [0] * len(self.bounds)
        space = self.space
        top = {"resolution": arch.resolution, **arch.choices}
        self._fill(row, space.choices, self.choices, top, top, f"{space.name}:")
        for i, (stage, where, own) in enumerate(zip(space.stages, self.stages, arch.stages, strict=True)):
            label = f"{space.name}: stage {i}"
            scope: dict[str, Value] = {**top, **own.choices}
            self._fill(row, stage.choices, where.choices, own.choices, scope, label)
            at = self.placement(stage, own, label)
            if where.depth is not None:
                row[where.depth] = stage.depths.index(len(own.blocks))
            for p, column in where.on.items():
                row[column] = int(p in at)
            if stage.tied and len(set(own.blocks)) > 1:
                raise ArchError(f"{label}: all blocks of this space must be the same")
            for p, values in zip(at, own.blocks, strict=True):
                self._fill(row, stage.blocks[p], where.blocks[p], values, {**scope, **values}, f"{label}, block {p}:")
        return row

    @staticmethod
    def placement(stage: Stage, own: StageArch, label: str) -> tuple[int, ...]:
        """The positions of a stage's blocks."""
        depth = len(own.blocks)
        if depth not in stage.depths:
            raise ArchError(f"{label} has {depth} blocks; possible: {', '.join(map(str, stage.depths))}")
        if own.at is None or not stage.free:
            return stage.placement(depth)
        always = set(range(stage.positions)) - set(stage.free)
        at = own.at
        if len(at) != depth or list(at) != sorted(set(at)) or not always <= set(at) <= set(range(stage.positions)):
            among = f", among them {sorted(always)}" if always else ""
            needed = f"{depth} rising positions within 0..{stage.positions - 1} are needed{among}"
            raise ArchError(f"{label}: blocks at positions {at} do not fit: {needed}")
        return at

    @staticmethod
    def _fill(
        row: list[int], specs: Mapping[str, Spec], columns: Columns, values: Named, scope: Named, label: str
    ) -> None:
        if set(values) != set(specs):
            given, needed = (", ".join(sorted(names)) for names in (values, specs))
            raise ArchError(f"{label} has values for {given or 'nothing'}; needed: {needed or 'none'}")
        for name, spec in specs.items():
            possible = list(spec.values)
            if not isinstance(spec, Choice):
                possible = [following(spec, scope[spec.of], v) if spec.of in scope else -1 for v in spec.values]
            if values[name] not in possible:
                known = ", ".join(map(str, possible))
                raise ArchError(f"{label} {name}={values[name]} is not in the space; possible: {known}")
            if name in columns:
                row[columns[name]] = possible.index(values[name])


def chosen_values(specs: Mapping[str, Spec], columns: Columns, genes: Genes, scope: Scope) -> Scope:
    """The values behind the genes of some choices, for a population; ``scope`` has those they may be multiples of."""
    found: Scope = {}
    for name, spec in sorted(specs.items(), key=lambda item: not isinstance(item[1], Choice)):
        index = genes[:, columns[name]] if name in columns else np.zeros(len(genes), dtype=np.int64)
        found[name] = np.asarray(spec.values)[index]
        if not isinstance(spec, Choice):
            found[name] = following(spec, {**scope, **found}[spec.of], found[name])
    return found


@dataclass(frozen=True)
class StagePopulation:
    """One stage of a population: its values, which positions run, and the values of each position."""

    stage: Stage
    choices: Scope
    active: NDArray[np.bool_]
    blocks: tuple[Scope, ...]


@dataclass(frozen=True)
class Population:
    """The values of many architectures, as arrays with an entry for each."""

    space: Space
    n: int
    choices: Scope
    stages: tuple[StagePopulation, ...]

    def arch(self, k: int) -> Arch:
        def values(scope: Scope) -> Values:
            return Values({name: v[k] for name, v in scope.items()})

        stages = []
        for s in self.stages:
            at = tuple(int(p) for p in np.flatnonzero(s.active[k]))
            blocks = tuple(values(s.blocks[p]) for p in at)
            stages.append(StageArch(blocks, values(s.choices), None if at == s.stage.placement(len(at)) else at))
        top = dict(values(self.choices))
        resolution, options = int(top.pop("resolution")), Values(self.space.options)
        return Arch(self.space.family, resolution, Values(top), tuple(stages), options)


def clear(space: Space, genes: Genes) -> Genes:
    """Zero the genes of blocks that do not run, in place: one architecture at one placement is one row."""
    for stage, where in zip(space.population(genes).stages, space.layout.stages, strict=True):
        for p, columns in enumerate(where.blocks):
            idle = ~stage.active.any(1) if stage.stage.tied else ~stage.active[:, p]
            for column in columns.values():
                genes[idle, column] = 0
    return genes


# --- mutation and crossover ---

FORMS = ("parameters", "blocks")
"""``"parameters"`` is ViT-ResNAS's (section 2.3), every architectural parameter by itself; ``"blocks"`` is S3's
(appendix A, algorithm 3), depth and embedding of each stage first, then whole blocks."""


def mutate(
    space: Space,
    genes: Genes,
    rng: np.random.Generator,
    form: str = "parameters",
    p: float = 0.3,
    p_depth: float = 0.2,
    p_embed: float = 0.2,
    p_block: float = 0.4,
) -> Genes:
    """A mutant of each row.

    ``"parameters"``: each gene is drawn anew with probability ``p``; whether a skippable block exists is flipped with
    probability ``p``. ``"blocks"``: depths are drawn anew with ``p_depth``, other choices of the network and its stages
    with ``p_embed``, then each block, all of its choices at once, with ``p_block``. Blocks that come to run are drawn
    anew: their genes meant nothing before."""
    _check(form)
    fresh = rng.integers(0, np.asarray(space.bounds, dtype=np.int64), genes.shape)
    flips, depth, embed, blocks = _kinds(space)
    fresh[:, flips] = 1 - genes[:, flips]
    if form == "parameters":
        change = rng.random(genes.shape) < p
    else:
        change = np.zeros(genes.shape, dtype=bool)
        change[:, depth] = rng.random((len(genes), len(depth))) < p_depth
        change[:, embed] = rng.random((len(genes), len(embed))) < p_embed
        for columns in blocks:
            change[:, columns] = rng.random((len(genes), 1)) < p_block
    after = np.where(change, fresh, genes)
    fresh = rng.integers(0, np.asarray(space.bounds, dtype=np.int64), genes.shape)
    new = _running(space, after) & ~_running(space, genes)
    for columns, rows in zip(blocks, new.T, strict=True):
        index = np.ix_(np.flatnonzero(rows), columns)
        after[index] = fresh[index]
    return clear(space, after)


def cross(space: Space, first: Genes, second: Genes, rng: np.random.Generator, form: str = "parameters") -> Genes:
    """A child of each pair of rows.

    ``"parameters"``: each gene from either parent. ``"blocks"``: the choices of the network and of each stage from
    either parent, then in each layer one whole block of either; a block only one parent has comes from that one."""
    _check(form)
    if first.shape != second.shape:
        raise SuperformerError(f"parents must come in pairs: {len(first)} and {len(second)} rows were given")
    other = rng.random(first.shape) < 0.5
    *_, blocks = _kinds(space)
    if form == "blocks":
        for columns in blocks:
            other[:, columns] = rng.random((len(first), 1)) < 0.5
    mine, theirs = _running(space, first), _running(space, second)
    for columns, a, b in zip(blocks, mine.T, theirs.T, strict=True):  # a block that only one of them has
        other[np.ix_(np.flatnonzero(a & ~b), columns)] = False
        other[np.ix_(np.flatnonzero(b & ~a), columns)] = True
    return clear(space, np.where(other, second, first))


def coarse(space: Space) -> NDArray[np.bool_]:
    """Which genes say how deep a network is and how large its pictures are; all others are of its widths, heads,
    windows and the like."""
    found = np.zeros(len(space.bounds), dtype=bool)
    found[_kinds(space)[1]] = True
    if "resolution" in space.layout.choices:
        found[space.layout.choices["resolution"]] = True
    return found


def widest(space: Space, genes: Genes) -> Genes:
    """The same depths and sizes of pictures, with all else as large as it can be."""
    return clear(space, np.where(coarse(space), genes, np.asarray(space.bounds, dtype=np.int64) - 1))


def _check(form: str) -> None:
    if form not in FORMS:
        raise SuperformerError(f"unknown form {form!r}: {nearest(form, FORMS)}")


def _kinds(space: Space) -> tuple[list[int], list[int], list[int], list[NDArray[np.int64]]]:
    """The genes that switch a block on, all that set depths, those of network-wide and stage-wide choices, and those of
    each block (equal blocks are one)."""
    layout = space.layout
    flips = [column for where in layout.stages for column in where.on.values()]
    depth = [where.depth for where in layout.stages if where.depth is not None] + flips
    embed = list(layout.choices.values()) + [c for where in layout.stages for c in where.choices.values()]
    stages = zip(space.stages, layout.stages, strict=True)
    own = [columns for s, where in stages for columns in where.blocks[: 1 if s.tied else None]]
    return flips, depth, embed, [np.asarray(list(columns.values()), dtype=np.int64) for columns in own]


def _running(space: Space, genes: Genes) -> NDArray[np.bool_]:
    """Which blocks of the whole network run (equal blocks are one)."""
    return np.concatenate([s.active[:, :1] if s.stage.tied else s.active for s in space.population(genes).stages], 1)
