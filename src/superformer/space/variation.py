"""Mutation and crossover, as the papers define them, on whole populations of genes.

Two forms: ``"parameters"`` is ViT-ResNAS's (section 2.3), every architectural parameter by itself; ``"blocks"`` is S3's (appendix B.3,
algorithm 3), depth and embedding of each stage first, then whole blocks. Blocks that come to run are drawn anew: their genes meant nothing
before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from superformer.errors import SuperformerError, nearest
from superformer.space.sampling import clear
from superformer.space.space import Genes, Space

FORMS = ("parameters", "blocks")


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

    ``"parameters"``: each gene is drawn anew with probability ``p``; whether a skippable block exists is flipped with probability ``p``.
    ``"blocks"``: depths are drawn anew with ``p_depth``, other choices of the network and its stages with ``p_embed``, then each block,
    all of its choices at once, with ``p_block``.
    """
    _check(form)
    fresh = rng.integers(0, np.asarray(space.bounds, dtype=np.int64), genes.shape)
    depth, embed, blocks = _kinds(space)
    for column in _flips(space):
        fresh[:, column] = 1 - genes[:, column]
    if form == "parameters":
        change = rng.random(genes.shape) < p
    else:
        change = np.zeros(genes.shape, dtype=bool)
        change[:, depth] = rng.random((len(genes), len(depth))) < p_depth
        change[:, embed] = rng.random((len(genes), len(embed))) < p_embed
        for columns in blocks:
            change[:, columns] = rng.random((len(genes), 1)) < p_block
    return _renew(space, genes, np.where(change, fresh, genes), rng)


def cross(space: Space, first: Genes, second: Genes, rng: np.random.Generator, form: str = "parameters") -> Genes:
    """A child of each pair of rows.

    ``"parameters"``: each gene from either parent. ``"blocks"``: the choices of the network and of each stage from either parent, then in
    each layer one whole block of either; a block only one parent has comes from that one.
    """
    _check(form)
    if first.shape != second.shape:
        raise SuperformerError(f"parents must come in pairs: {len(first)} and {len(second)} rows were given")
    other = rng.random(first.shape) < 0.5
    if form == "blocks":
        for columns in _kinds(space)[2]:
            other[:, columns] = rng.random((len(first), 1)) < 0.5
    mine, theirs = _running(space, first), _running(space, second)
    for columns, a, b in zip(_kinds(space)[2], mine.T, theirs.T, strict=True):  # a block that only one of them has
        other[np.ix_(np.flatnonzero(a & ~b), columns)] = False
        other[np.ix_(np.flatnonzero(b & ~a), columns)] = True
    return clear(space, np.where(other, second, first))


def _check(form: str) -> None:
    if form not in FORMS:
        raise SuperformerError(f"unknown form {form!r}: {nearest(form, FORMS)}")


def _flips(space: Space) -> list[int]:
    return [column for where in space.layout.stages for column in where.on.values()]


def _kinds(space: Space) -> tuple[list[int], list[int], list[NDArray[np.int64]]]:
    """The genes that set depths, those of network-wide and stage-wide choices, and those of each block (equal blocks are one)."""
    layout = space.layout
    depth = [where.depth for where in layout.stages if where.depth is not None] + _flips(space)
    embed = list(layout.choices.values()) + [c for where in layout.stages for c in where.choices.values()]
    own = [columns for s, where in zip(space.stages, layout.stages, strict=True) for columns in where.blocks[: 1 if s.tied else None]]
    blocks = [np.asarray(list(columns.values()), dtype=np.int64) for columns in own]
    return depth, embed, blocks


def _running(space: Space, genes: Genes) -> NDArray[np.bool_]:
    """Which blocks of the whole network run (equal blocks are one)."""
    return np.concatenate([s.active[:, :1] if s.stage.tied else s.active for s in space.population(genes).stages], 1)


def _renew(space: Space, before: Genes, after: Genes, rng: np.random.Generator) -> Genes:
    fresh = rng.integers(0, np.asarray(space.bounds, dtype=np.int64), after.shape)
    new = _running(space, after) & ~_running(space, before)
    for columns, rows in zip(_kinds(space)[2], new.T, strict=True):
        index = np.ix_(np.flatnonzero(rows), columns)
        after[index] = fresh[index]
    return clear(space, after)
