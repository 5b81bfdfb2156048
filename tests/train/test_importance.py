"""What may go first: the order of units keeps the function, and finds what is of no use."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.strategies import spaces
from helpers.supernets import double, pictures
from hypothesis import given, settings
from hypothesis import strategies as st

import superformer as sf
from superformer.families.network import Network
from superformer.spaces.around import around
from superformer.train.channel_sort import groups, token_groups
from superformer.train.importance import Orders, block_order, measure, unit_effects
from superformer.train.warm_start import from_network

BLOCK = {"heads": (4,), "attn": sf.times(8, of="heads"), "mlp": (64,)}


def vit(depth: int = 3) -> Network:
    space = sf.Space("one", "vit", (sf.Stage(BLOCK, depth=depth),), {"patch_size": 8, "width": 48}, 32)
    return double(space)


@given(spaces, st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_every_order_keeps_the_function(space, seed):
    net = double(space).extract(space.largest())
    rng = np.random.default_rng(seed)
    units = {name: tuple(rng.permutation(n).tolist()) for name, n, _ in (*groups(net), *token_groups(net))}
    other = copy.deepcopy(net)
    Orders(units).apply(other)
    x = pictures(2, space)
    torch.testing.assert_close(other(x), net(x), rtol=1e-9, atol=1e-9)


def test_the_effect_is_that_of_a_gate():
    """The derivative of the loss by a factor on what a unit gives, squared; here by finite differences."""
    net, x = vit(), torch.rand(1, 3, 32, 32).double()
    effects, pictures = unit_effects(net, [x])
    assert pictures == 1
    label = torch.multinomial(F.softmax(net(x).detach(), -1), 1, generator=torch.Generator().manual_seed(0))[:, 0]

    def loss(change: dict[str, tuple[int, slice | int]], factor: float) -> float:
        other = copy.deepcopy(net)
        with torch.no_grad():
            for name, (dim, where) in change.items():
                other.get_parameter(name).select(dim, where).mul_(factor) if isinstance(where, int) else (
                    other.get_parameter(name).narrow(dim, where.start, where.stop - where.start).mul_(factor)
                )
            return float(F.cross_entropy(other(x), label).detach())

    cases = {
        "stages.0.blocks.1.mlp.mlp": (7, {"stages.0.blocks.1.mlp.fc2.weight": (1, 7)}),
        "stages.0.blocks.2.attn.attn": (3, {"stages.0.blocks.2.attn.proj.weight": (1, slice(24, 32))}),
    }
    stream = dict.fromkeys(("stems.8.proj.weight", "stems.8.proj.bias"), (0, 5))
    stream |= {f"stems.8.{n}.weight": (1, 5) for n in ("cls_token", "pos_embed")}
    for k in range(3):
        stream |= {f"stages.0.blocks.{k}.{n}": (0, 5) for n in ("mlp.fc2.weight", "mlp.fc2.bias")}
        stream |= {f"stages.0.blocks.{k}.{n}": (0, 5) for n in ("attn.proj.weight", "attn.proj.bias")}
    for name, (unit, change) in (cases | {"width": (5, stream)}).items():
        slope = (loss(change, 1 + 1e-5) - loss(change, 1 - 1e-5)) / 2e-5
        assert float(effects[name][unit]) == pytest.approx(slope**2, rel=1e-3, abs=1e-12), name


def test_what_is_of_no_use_goes_first(tmp_path: Path):
    net, x = vit(), torch.rand(8, 3, 32, 32).double()
    with torch.no_grad():
        net.stages[0].blocks[0].mlp.fc2.weight[:, 11] = 0
        for p in (*net.stages[0].blocks[1].mlp.fc2.parameters(), *net.stages[0].blocks[1].attn.proj.parameters()):
            p.zero_()
    orders = measure(net, [x], x)
    assert orders.units["stages.0.blocks.0.mlp.mlp"][-1] == 11
    assert orders.blocks[0][-1] == 1
    assert orders.moved[0][-1] == pytest.approx(0, abs=1e-9)
    orders.save(tmp_path / "orders.json")
    again = Orders.load(tmp_path / "orders.json")
    assert (again.units, again.blocks, again.pictures) == (orders.units, orders.blocks, 8)
    assert "blocks 2, " in orders.text()
    # the sub-network without that block is the network itself
    space = around(net.space.smallest(), 2, order=orders.blocks)
    supernet = sf.supernet(space, 5).double()
    from_network(supernet, net, orders)
    less = space.largest()
    blocks = less.stages[0].blocks[:2]
    two = sf.Arch(less.family, less.resolution, less.choices, (type(less.stages[0])(blocks),), less.options)
    torch.testing.assert_close(supernet.eval()(x, two), net(x))


def test_an_order_of_another_network():
    with pytest.raises(sf.SuperformerError, match="another network"):
        Orders({"stages.0.blocks.7.mlp.mlp": (0, 1)}).apply(vit())
    with pytest.raises(sf.SuperformerError, match="another network"):
        around(vit().space.smallest(), order=((0, 1),))


def test_blocks_in_their_order():
    """Of equal blocks the last that is left is whichever; each is named once."""
    blocks, moved = block_order(vit(4), torch.rand(4, 3, 32, 32).double())
    assert sorted(blocks[0]) == [0, 1, 2, 3]
    assert len(moved[0]) == 3
