"""What holds for every family, space, sharing rule and architecture."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.strategies import sharings, spaces, spaces_with_archs
from helpers.supernets import double, pictures
from hypothesis import assume, given, settings
from torch.utils.flop_counter import FlopCounterMode

import superformer as sf
from superformer.families.weights import absorb, pieces
from superformer.kernels.slices import gather


@pytest.fixture(params=["plain", "fast"], autouse=True)
def chosen_kernels(request):
    """Every law holds with the plain twins and with the kernels, to the same bounds."""
    with sf.kernels.using(request.param):
        yield


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@given(spaces_with_archs(2), sharings)
def test_extracted_network_equals_supernet(case, sharing):
    (space, archs), (rule, side) = case, sharing
    net, x = double(space, rule), pictures(2, space)
    for arch in archs:
        model = net.extract(arch, side=side)
        close(model(x), net(x, arch, side=side))
        assert model.space.size == 1
        assert not model.training


@given(spaces_with_archs(3), sharings)
def test_many_archs_in_one_batch_equal_separate_passes(case, sharing):
    (space, archs), (rule, side) = case, sharing
    net, x = double(space, rule), pictures(6, space)
    weights = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def gradients(logits: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
        for p in net.parameters():
            p.grad = None
        (logits * weights).sum().backward()
        return logits.detach(), {n: None if p.grad is None else p.grad.clone() for n, p in net.named_parameters()}

    logits, grads = gradients(
        torch.cat([net(part, arch, side=side) for part, arch in zip(x.chunk(3), archs, strict=True)])
    )
    for mode in ("sliced", "masked", None):
        other, others = gradients(net(x, archs, side=side, mode=mode))
        close(logits, other)
        for name, grad in grads.items():
            mine = torch.zeros(()) if grad is None else grad
            theirs = others[name]
            close(
                mine.double().expand_as(theirs) if theirs is not None else mine.double(),
                torch.zeros_like(mine.double()) if theirs is None else theirs,
            )


@given(spaces_with_archs(1), sharings)
def test_gradients_through_the_supernet_are_those_of_the_extracted_network(case, sharing):
    (space, (arch,)), (rule, side) = case, sharing
    net, x = double(space, rule), pictures(2, space)
    model = net.extract(arch, side=side)
    net(x, arch, side=side).square().sum().backward()
    model(x).square().sum().backward()
    for name, parts in pieces(net, arch, side).items():
        own = dict(model.named_parameters()).get(name)
        if own is None:
            continue
        grad = torch.cat([gather(p.tensor.grad, p.index) for p in parts])
        close(grad, own.grad)
    used = sum(p.grad.count_nonzero() for p in net.parameters() if p.grad is not None)
    assert used <= sum(p.numel() for p in model.parameters()), "a gradient lies outside the slice"


@given(spaces_with_archs(3))
def test_cost_equals_what_torch_counts(case):
    space, archs = case
    net = sf.supernet(space, 5).eval()
    for size in (None, (space.img_size * 2, space.img_size)):
        cost = sf.cost(space, archs, num_classes=5, img_size=size)
        for k, arch in enumerate(archs):
            model = net.extract(arch)
            x = torch.zeros(1, 3, *(size or (space.img_size,) * 2))
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                model(x)
            assert cost.macs[k] * 2 == counter.get_total_flops()
            assert cost.params[k] == sum(p.numel() for p in model.parameters())


@given(spaces_with_archs(1))
def test_an_extracted_network_has_no_unused_parameter(case):
    space, (arch,) = case
    model = sf.supernet(space, 5).extract(arch).train()
    model(pictures(4, space).float()).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


@given(spaces)
@settings(max_examples=12)
def test_every_parameter_of_a_supernet_is_reached(space):
    """Some architecture gives each number of each weight a gradient (relative tables: each table)."""
    assume(all(len(s.blocks) for s in space.largest().stages))  # without a block, a class token sees no patch
    net, x = double(space).train(), pictures(2, space)  # by its batch, a norm leaves no ReLU after it dead
    (full,) = space.encode([space.largest()])
    other = [0 if name.endswith(".type") else n - 1 for name, n in zip(space.gene_names, space.bounds, strict=True)]
    rows = [
        np.where(np.arange(len(full)) == gene, value, base)
        for base in (full, other) for gene, n in enumerate(space.bounds) for value in range(n)
    ]  # fmt: skip
    archs = [*space.decode(np.asarray(rows, dtype=np.int64)), *space.sample(15, seed=0)]
    reached = {n: torch.zeros_like(p, dtype=torch.bool) for n, p in net.named_parameters()}
    for arch in archs:
        for p in net.parameters():
            p.grad = None
        net(x, arch).square().sum().backward()
        for n, p in net.named_parameters():
            if p.grad is not None:
                reached[n] |= p.grad != 0
    for name, where in reached.items():
        if name.endswith("talk1.bias"):  # NASViT's: a softmax does not see it
            continue
        private = any(
            part in name for part in ("attn.qk.", "attn.v.", ".scales.", ".excite.", ".positions.", ".shortcut.")
        )
        # tables of far distances and kernels wider than the last, tiny map have entries that no picture of this size
        # reaches; a shortcut is not used between equal widths, the largest among them
        assert where.any() if "relative" in name or "reduce" in name or private else where.double().mean() > 0.95, name


@given(spaces_with_archs(2))
def test_equal_keys_exactly_when_equal_networks(case):
    space, (a, b) = case
    assert (a == b) == (a.key == b.key)
    assert sf.Arch.from_json(a.to_json()) == a
    assert sf.Arch.from_json(a.to_json()).to_json() == a.to_json()
    c = sf.Arch.from_json(b.canonical().to_json())
    assert c == b
    assert c.key == b.key
    empty = any(not s.blocks for x in (a, b) for s in x.stages)  # nothing there reads the MLPs' width of NASViT
    if a != b and not empty:  # different networks differ in shape or in what cannot be seen in shapes: their heads
        net = sf.supernet(space, 5)
        shapes = [{n: p.shape for n, p in net.extract(x).named_parameters()} for x in (a, b)]
        heads = [[[v.get("heads") for v in s.blocks] for s in x.stages] for x in (a, b)]
        assert shapes[0] != shapes[1] or heads[0] != heads[1]


@given(spaces)
def test_spaces_survive_json(space):
    again = sf.Space.from_json(space.to_json())
    assert again == space
    assert again.size == space.size
    assert again.to_json() == space.to_json()


@given(spaces_with_archs(4))
def test_genes_and_archs_are_the_same_thing(case):
    space, archs = case
    genes = space.encode(archs)
    assert genes.shape == (4, len(space.bounds))
    back = space.decode(genes)
    assert back == archs
    assert [a.to_json() for a in back] == [a.to_json() for a in archs], "placements are kept"
    assert all(a in space for a in archs)


@given(spaces_with_archs(1), sharings)
def test_weights_go_back_where_they_came_from(case, sharing):
    (space, (arch,)), (rule, side) = case, sharing
    net, other = double(space, rule), sf.supernet(space, 5, rule, seed=9).double().eval()
    absorb(other, arch, net.extract(arch, side=side).state_dict(), side)
    x = pictures(2, space)
    close(other(x, arch, side=side), net(x, arch, side=side))


@given(spaces_with_archs(1))
def test_other_input_sizes(case):
    space, (arch,) = case
    net = double(space)
    model = net.extract(arch)
    x = torch.randn(1, 3, space.img_size * 2, space.img_size, dtype=torch.float64)
    close(model(x), net(x, arch))
    bad = torch.zeros(1, 3, space.img_size + 1, space.img_size, dtype=torch.float64)
    if net.any_size:
        close(model(bad), net(bad, arch))
        return
    with pytest.raises(sf.SuperformerError, match="does not divide"):
        model(bad)


def test_batch_norm_of_the_shared_stem_sees_the_whole_batch():
    """In training mode both ways of running a mixed batch normalise the stem over all of it, as the released code
    does."""
    space = sf.Space(
        "s",
        "vit_res",
        (sf.Stage({"heads": (1, 2), "attn": sf.times(4, of="heads"), "mlp": (5, 8)}, 2, {"width": (6, 8)}),),
        img_size=56,
        options={"stem": 4},
    )
    net, x = double(space).train(), pictures(4, space)
    archs = [space.smallest(), space.largest()]
    close(net(x, archs, mode="sliced"), net(x, archs, mode="masked"))
