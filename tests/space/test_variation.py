from __future__ import annotations

import numpy as np
import pytest
from helpers.strategies import spaces
from hypothesis import given
from hypothesis import strategies as st

import superformer as sf
from superformer.space.genes import cross, mutate
from superformer.space.sampling import clear

forms = st.sampled_from(("parameters", "blocks"))


@given(spaces, forms, st.integers(0, 99))
def test_mutants_and_children_are_architectures_in_canonical_genes(space, form, seed):
    rng = np.random.default_rng(seed)
    first, second = space.sample_genes(20, rng), space.sample_genes(20, rng)
    for genes in (mutate(space, first, rng, form, p=0.5), cross(space, first, second, rng, form)):
        assert (space.encode(space.decode(genes)) == clear(space, genes.copy())).all()


@given(spaces, forms)
def test_nothing_changes_without_probability_and_children_of_one_parent_are_that_parent(space, form):
    rng = np.random.default_rng(0)
    genes = space.sample_genes(10, rng)
    assert (mutate(space, genes, rng, form, p=0, p_depth=0, p_embed=0, p_block=0) == genes).all()
    assert (cross(space, genes, genes, rng, form) == genes).all()


def test_parameters_change_as_often_as_asked_and_existence_is_flipped():
    space = sf.space("vit-resnas-tiny")
    rng = np.random.default_rng(0)
    genes = np.repeat(space.sample_genes(1, rng), 20_000, 0)
    mutants = mutate(space, genes, rng, p=0.3)
    names = space.gene_names
    on = [k for k, n in enumerate(names) if n.endswith(".on")]
    assert abs((mutants[:, on] != genes[:, on]).mean() - 0.3) < 0.01
    width = names.index("stage0.width")
    assert abs((mutants[:, width] != genes[:, width]).mean() - 0.3 * 4 / 5) < 0.01


def test_blocks_are_taken_whole():
    space = sf.space("autoformer-small").narrow(depth=12)
    rng = np.random.default_rng(0)
    first, second = space.sample_genes(200, rng), space.sample_genes(200, rng)
    child = space.population(cross(space, first, second, rng, "blocks")).stages[0]
    mine, theirs = (space.population(g).stages[0] for g in (first, second))
    for p in range(12):
        same = [np.all([child.blocks[p][n] == other.blocks[p][n] for n in ("heads",)], 0) for other in (mine, theirs)]
        assert (same[0] | same[1]).all()
    genes = cross(space, first, second, rng, "blocks")
    pairs = [
        (space.gene_names.index(f"stage0.block{p}.heads"), space.gene_names.index(f"stage0.block{p}.mlp"))
        for p in range(12)
    ]
    for pair in pairs:
        block = genes[:, pair]
        assert ((block == first[:, pair]).all(1) | (block == second[:, pair]).all(1)).all()


def test_a_block_that_only_one_parent_has_comes_from_it():
    space = sf.space("autoformer-small")
    rng = np.random.default_rng(0)
    deep, flat = (space.narrow(depth=d) for d in (14, 12))
    first, second = space.encode(deep.sample(300)), space.encode(flat.sample(300, seed=1))
    child = cross(space, first, second, rng)
    stage = space.population(child).stages[0]
    columns = list(space.layout.stages[0].blocks[13].values())
    runs = stage.active[:, 13]
    assert (child[runs][:, columns] == first[runs][:, columns]).all()


def test_blocks_that_come_to_run_are_drawn_anew():
    space = sf.space("vitas-deit-tiny")
    rng = np.random.default_rng(0)
    flat = space.encode([space.smallest()]).repeat(2000, 0)
    mutants = mutate(space, flat, rng, "blocks", p_depth=1.0, p_embed=0, p_block=0)
    stage = space.population(mutants).stages[0]
    widths = stage.blocks[0]["mlp"][stage.active[:, 0]]
    assert len(set(widths.tolist())) == 10
    assert abs(widths.mean() - 792) < 30


def test_mistakes():
    space, rng = sf.space("vitas-block"), np.random.default_rng(0)
    with pytest.raises(sf.SuperformerError, match="did you mean 'blocks'"):
        mutate(space, space.sample_genes(1), rng, "block")
    with pytest.raises(sf.SuperformerError, match="pairs"):
        cross(space, space.sample_genes(1), space.sample_genes(2), rng)
