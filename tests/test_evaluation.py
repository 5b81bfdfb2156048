"""Candidates evaluated together are what they are one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import sharings, spaces
from test_laws import double, pictures

import superformer as sf
from superformer.elastic.conv import BatchNorm
from superformer.errors import SuperformerError
from superformer.evaluation.evaluator import Evaluator, needs_recalibration
from superformer.evaluation.tree import grow, walk
from superformer.recipes import space_of
from superformer.space.variation import mutate


@given(spaces, sharings, st.integers(0, 99))
def test_a_tree_gives_the_logits_of_separate_networks(space, sharing, seed):
    """Of every family, with mutants that share a beginning; batch norms estimated for each network by itself."""
    rule, side = sharing
    net = double(space, rule)
    for norm in (m for m in net.modules() if isinstance(m, BatchNorm)):
        norm.momentum = None
    parents = space.encode(space.sample(2, seed=seed))
    children = mutate(space, np.repeat(parents, 3, 0), np.random.default_rng(seed), p=0.1)
    archs = space.decode(np.concatenate([parents, children]))
    batches, calibration = ([pictures(3, space, seed=k) for k in some] for some in (range(2), range(10, 12)))
    calibration = calibration if needs_recalibration(net) else []
    models = [net.extract(arch, side=side) for arch in archs]
    models = [sf.recalibrate(m, calibration) if calibration else m for m in models]
    root = grow(net, archs, (space.img_size, space.img_size), side)
    for n, x in enumerate(batches):
        for k, logits in walk(root, x, calibration if n == 0 else ()):
            torch.testing.assert_close(logits, models[k](x), rtol=1e-9, atol=1e-9)


def test_equal_beginnings_run_once() -> None:
    space = sf.space("autoformer-tiny").narrow(depth=12, width=192)
    net = sf.supernet(space, 5)
    first = space.smallest()
    genes = space.encode([first])
    late = genes.copy()
    late[0, -2] = 1  # a choice of the last block
    early = genes.copy()
    early[0, next(n for n, name in enumerate(space.gene_names) if "heads" in name)] = 1
    alone = len(grow(net, [first], (224, 224)))
    assert len(grow(net, [first, *space.decode(late)], (224, 224))) <= alone + 4
    assert len(grow(net, [first, *space.decode(early)], (224, 224))) == 2 * alone - 1


def test_the_supernet_stays_as_it_is() -> None:
    space = space_of(sf.recipe("nasvit-laptop"))
    net = sf.supernet(space, 5)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    x = torch.randn(8, 3, 32, 32)
    batches = [(x, torch.arange(8) % 5)]
    found = Evaluator(net, lambda: batches, [x, x])(space.sample(5, seed=0))
    assert len(found) == 5
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in before.items())
    with pytest.raises(SuperformerError, match="calibration"):
        Evaluator(net, lambda: batches)
