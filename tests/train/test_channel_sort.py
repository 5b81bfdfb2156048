"""Channel sorting: what holds for every family."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from helpers.stirred import close, little, pictures, same, state, supernet
from helpers.strategies import spaces, spaces_with_archs
from hypothesis import given, settings

import superformer as sf
from superformer.train.channel_sort import importances, sort_channels


def descends(net: torch.nn.Module) -> bool:
    return all((norms.diff() <= 1e-9 * norms[0]).all() for norms in importances(net).values())


@given(spaces)
@settings(max_examples=15)
@torch.no_grad()
def test_sorting_keeps_the_largest_network_and_puts_the_important_first(space):
    net, x = supernet(space), pictures(2, space.img_size)
    before = net(x, space.largest())
    old, averaged = state(net), state(net)
    order = sort_channels(net)
    close(net(x, space.largest()), before)
    assert descends(net)
    order.apply(averaged)
    assert same(averaged, state(net)), "a copy follows"
    assert {k for k, v in state(net).items() if not torch.equal(v, old[k])} == set(order.moves)
    assert not sort_channels(net).moves


@given(spaces_with_archs(1))
@settings(max_examples=15)
@torch.no_grad()
def test_sorting_keeps_a_network(case):
    space, (arch,) = case
    model, x = supernet(space).extract(arch), pictures(2, space.img_size)
    before = model(x)
    sort_channels(model)
    close(model(x), before)
    assert descends(model)


def test_importance_is_the_l1_norm_of_all_that_belongs_to_a_unit():
    net = supernet(little())
    block = net.stage(0).block(1)
    fc1, fc2, qkv, proj = block.mlp.fc1, block.mlp.fc2, block.attn.qkv, block.attn.proj
    hidden = fc1.weight.abs().sum(1) + fc1.bias.abs() + fc2.weight.abs().sum(0)
    rows = (qkv.weight.abs().sum(1) + qkv.bias.abs()).view(3, 4, 3).sum((0, 2))
    heads = rows + proj.weight.abs().sum(0).view(4, 3).sum(1)
    found = importances(net)
    close(found["stages.0.blocks.1.mlp.mlp"], hidden.detach())
    close(found["stages.0.blocks.1.attn.attn"], heads.detach())


@pytest.mark.parametrize("shared", ["qkv", "v", "none"])
@torch.no_grad()
def test_every_network_of_full_attention_width_is_kept(shared):
    """Where 2, 4 and 6 heads divide one matrix, only halves of it are whole heads for all of them."""
    space = replace(little(heads=(2, 4, 6), attn=(12, 24)), weights={"shared": shared})
    net, x = supernet(space), pictures(2, 16)
    net.stage(0).block(0).attn.proj.weight[:, 12:] *= 5
    archs = [a for a in space.sample(80, seed=0) if all(b["attn"] == 24 and b["mlp"] == 8 for b in a.stages[0].blocks)]
    assert len({b["heads"] for a in archs for b in a.stages[0].blocks}) == 3
    before = [net(x, a) for a in archs]
    assert any("attn" in name for name in sort_channels(net).moves)
    for arch, y in zip(archs, before, strict=True):
        close(net(x, arch), y)


@given(spaces)
@settings(max_examples=8)
def test_training_goes_on_as_if_nothing_was_sorted(space):
    """With the moments moved along, the next step of the largest network is the same step."""
    net, x = supernet(space).train(), pictures(4, space.img_size)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)

    def step(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        net.zero_grad()
        net(x, space.largest()).square().sum().backward()
        optimizer.step()

    step(net, optimizer)
    twin = copy.deepcopy(net)
    other = torch.optim.AdamW(twin.parameters(), 1e-2)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    sort_channels(twin).follow(other, twin)
    step(net, optimizer)
    step(twin, other)
    with torch.no_grad():
        torch.testing.assert_close(
            twin.eval()(x, space.largest()), net.eval()(x, space.largest()), rtol=1e-7, atol=1e-8
        )


@pytest.mark.parametrize("rule", ["cyclic", "bilateral"])
def test_sorting_is_refused_where_no_channels_come_first(rule):
    net = supernet(little(), rule)
    before = state(net)
    with pytest.raises(sf.SuperformerError, match=f"ordinal sharing.*{rule}"):
        sort_channels(net)
    assert same(state(net), before)
    sort_channels(net.extract(net.space.largest()))
