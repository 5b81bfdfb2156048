"""Gradients of the largest network and of the others, joined: as released, as the paper defines it, and how conflict is
measured."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.released import FIXTURES
from helpers.training import SPACE
from hypothesis import assume, given
from hypothesis import strategies as st

import superformer as sf
from superformer.recipes import names, resolve
from superformer.recipes.settings import Optimizer
from superformer.train import optimizer as gradients
from superformer.train.preparation import recipe_skeleton

CASES = ("agree", "conflict", "conflict_clamped", "orth_small_sub", "sub_zero", "supnone", "subnone")


def parameter(grad: torch.Tensor | None, like: torch.Tensor | None = None) -> torch.nn.Parameter:
    p = torch.nn.Parameter(torch.zeros_like(next((t for t in (grad, like) if t is not None), torch.zeros(1))))
    p.grad = None if grad is None else grad.clone()
    return p


def join(sub: torch.Tensor | None, sup: torch.Tensor | None, *rule: object, **settings: object) -> torch.Tensor | None:
    p = parameter(sub, sup)
    gradients.combine([p], [None if sup is None else sup.clone()], *rule, **settings)
    return p.grad


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("phase", ["early", "late"])
def test_as_released(case, phase):
    """Without projection and with it, cap 2 and 1e-6. Where the others' gradient is None the released code doubles the
    largest's; ours is the largest's itself."""
    found = np.load(FIXTURES / "nasvit" / "_training" / "projection.npz")
    sub, sup = (
        torch.from_numpy(found[f"{case}_{name}"]) if f"{case}_{name}" in found.files else None
        for name in ("sub", "sup")
    )
    ours = join(sub, sup, "sum" if phase == "early" else "project", cap=2.0)
    want = found[f"{case}_{phase}"] / (2 if case == "subnone" else 1)
    np.testing.assert_allclose(ours.numpy(), want, rtol=1e-5, atol=1e-6)


def tensors(seed: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, n, dtype=torch.float64, generator=generator)
    return a, b * torch.randn((), dtype=torch.float64, generator=generator).exp()


@given(st.integers(0, 2**32), st.integers(1, 20), st.sampled_from(gradients.PRIORITIES))
def test_projection(seed, n, priority):
    """Eq. 1: what is added to the gradient with priority never works against it, and without conflict is the whole of
    the other."""
    sub, sup = tensors(seed, n)
    out = join(sub, sup, "project", priority)
    first, other = (sub, sup) if priority == "subnets" else (sup, sub)
    added = out - first
    if torch.dot(sub, sup) >= 0:
        torch.testing.assert_close(out, sub + sup)
    else:
        torch.testing.assert_close(added, other - torch.dot(other, first) / torch.dot(first, first) * first)
        assert abs(torch.dot(added, first)) < 1e-9 * (1 + first.norm() * other.norm())
    assert torch.dot(out, first) > 0


@given(st.integers(0, 2**32), st.integers(1, 20), st.floats(0, 3))
def test_the_cap_takes_out_less(seed, n, cap):
    sub, sup = tensors(seed, n)
    assume(torch.dot(sub, sup) < 0)
    share = min(-float(torch.dot(sub, sup) / (gradients.RELEASED_EPS + torch.dot(sub, sub))), cap)
    torch.testing.assert_close(join(sub, sup, "project", cap=cap), sup + (1 + share) * sub)
    torch.testing.assert_close(join(sub, sup, "project", cap=math.inf, eps=0.0), join(sub, sup, "project"))


def test_only_one_side():
    a = torch.randn(3)
    for rule in gradients.RULES:
        for priority in gradients.PRIORITIES:
            assert torch.equal(join(a, None, rule, priority), a)
            assert torch.equal(join(None, a, rule, priority), a)
            assert join(None, None, rule, priority) is None
            assert torch.equal(join(a, torch.zeros(3), rule, priority), a)
            assert torch.equal(join(torch.zeros(3), a, rule, priority), a)


def test_words():
    with pytest.raises(sf.SuperformerError, match="did you mean 'project'"):
        join(torch.ones(1), torch.ones(1), "projekt")
    with pytest.raises(sf.SuperformerError, match="subnets"):
        join(torch.ones(1), torch.ones(1), "project", "subnet")


# --- on a network ---


def backward(net: sf.supernet, arch: sf.Arch, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = net(torch.randn(4, 3, 32, 32, generator=generator), arch)
    (logits * torch.randn(4, 5, generator=generator)).sum().backward()


def test_kept_gradients_outlive_the_step_and_memory_is_used_again():
    """A supernet writes the next gradients into the same memory: what is kept must be a copy, and in the same place at
    every step."""
    net = sf.supernet(SPACE, 5)
    kept, before = gradients.GradientMemory(), None
    for seed in range(3):
        net.zero_grad()
        backward(net, SPACE.largest(), seed)
        want = [p.grad.clone() for p in net.parameters()]
        own = kept.keep(net)
        net.zero_grad()
        backward(net, SPACE.smallest(), seed + 10)
        assert all(torch.equal(a, b) for a, b in zip(own, want, strict=True))
        if before is not None:
            assert [g.data_ptr() for g in own] == before
        before = [g.data_ptr() for g in own]
        params = gradients.trainable(net)
        subs = [None if p.grad is None else p.grad.clone() for p in params]
        gradients.combine(params, own, "project")
        for p, sub, sup in zip(params, subs, want, strict=True):
            torch.testing.assert_close(p.grad, join(sub, sup, "project"))


def test_a_clean_slate_after_parameters_that_kept_the_largest_s():
    """Where only the largest has a gradient, ``.grad`` is the kept tensor; the next step starts from nothing all the
    same."""
    net = sf.supernet(SPACE, 5)
    kept = gradients.GradientMemory()
    grads = []
    for _ in range(2):
        net.zero_grad()
        backward(net, SPACE.largest(), 0)
        own = kept.keep(net)
        net.zero_grad()
        backward(net, SPACE.smallest(), 1)
        assert any(p.grad is None for p in net.parameters())
        gradients.combine(gradients.trainable(net), own, "project")
        grads.append([p.grad.clone() for p in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_frozen_parameters_are_left_out():
    net = sf.supernet(SPACE, 5)
    net.head.requires_grad_(False)
    backward(net, SPACE.largest(), 0)
    params, own = gradients.trainable(net), gradients.GradientMemory().keep(net)
    assert len(params) == len(own) == len(list(net.parameters())) - 2
    gradients.combine(params, own)
    assert "head" not in gradients.conflict(net, own)["layers"]


@pytest.mark.parametrize("limit", [None, 1e-3, 1e3])
def test_clipping(limit):
    net = sf.supernet(SPACE, 5)
    backward(net, SPACE.largest(), 0)
    grads = [p.grad.clone() for p in net.parameters()]
    norm = gradients.clip(net.parameters(), limit)
    assert norm == pytest.approx(float(torch.cat([g.flatten() for g in grads]).norm()), rel=1e-5)
    ours = [p.grad.clone() for p in net.parameters()]
    for p, g in zip(net.parameters(), grads, strict=True):
        p.grad.copy_(g)
    torch.nn.utils.clip_grad_norm_(net.parameters(), limit or math.inf)
    for a, p in zip(ours, net.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)


def test_clipping_nothing():
    assert gradients.clip([parameter(None)], 1.0) == 0


# --- conflict ---


class Toy(torch.nn.Module):
    """Two blocks and a head, with gradients given by hand."""

    def __init__(self) -> None:
        super().__init__()
        stage = torch.nn.Module()
        stage.blocks = torch.nn.ModuleList(torch.nn.Linear(2, 1) for _ in range(2))
        self.stages = torch.nn.ModuleList([stage])
        self.head = torch.nn.Linear(2, 1)


def test_conflict_by_hand():
    net = Toy()
    sub = [[1.0, 0.0], [1.0], [1.0, 0.0], [1.0], [1.0, 1.0], None]
    sup = [[-1.0, 0.0], [0.5], [-1.0, 1.0], [3.0], [1.0, 1.0], [1.0]]
    for p, g in zip(net.parameters(), sub, strict=True):
        p.grad = None if g is None else torch.tensor(g).view(p.shape)
    kept = [torch.tensor(g).view(p.shape) for p, g in zip(net.parameters(), sup, strict=True)]
    found = gradients.conflict(net, kept)
    assert found["layers"] == pytest.approx(
        {"stages.0.blocks.0": -0.5 / math.sqrt(2 * 1.25), "stages.0.blocks.1": 2 / math.sqrt(2 * 11), "head": 1}
    )
    assert found["ratio"] == pytest.approx(1 / 3)
    assert found["tensors"] == pytest.approx(2 / 5)
    assert found["negative"] == pytest.approx(-0.5 / math.sqrt(2.5))
    assert found["cosine"] == pytest.approx(3.5 / math.sqrt(6 * 14.25))
    known = gradients.products(gradients.trainable(net), kept)
    assert gradients.conflict(net, kept, known) == found
    gradients.combine(gradients.trainable(net), kept, "project", known=known)
    assert [p.grad.flatten().tolist() for p in net.parameters()] == [[1, 0], [1.5], [1, 1], [4], [2, 2], [1]]


def test_projection_ends_conflict():
    """Table 7: with projection the ratio is 0: what is added no longer works against the others, in any tensor."""
    torch.manual_seed(0)
    net = sf.supernet(SPACE, 5).double()
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    sub = [p.grad.clone() for p in net.parameters()]
    sup = [torch.randn_like(p) for p in net.parameters()]
    assert gradients.conflict(net, sup)["ratio"] > 0
    gradients.combine(gradients.trainable(net), [g.clone() for g in sup], "project")
    added = [p.grad - g for p, g in zip(net.parameters(), sub, strict=True)]
    for p, g in zip(net.parameters(), sub, strict=True):
        p.grad = g
    after = gradients.conflict(net, added)
    assert all(c > -1e-9 for c in after["layers"].values())


CONVOLUTIONS = ("alphanet", "vitas-resnet50")  # they have nothing of their own to spare


@pytest.mark.parametrize("name", [name for name in names() if not name.startswith(CONVOLUTIONS)])
def test_what_a_family_names_does_not_decay(name):
    """S3's tables of relative positions, DeiT's tokens and positions, Twins' position encodings, NASViT's scales."""
    recipe = resolve(name)
    net, settings = recipe_skeleton(recipe, 10), Optimizer(weight_decay=0.05)
    own = {name: p for name, p in net.named_parameters() if name in net.no_weight_decay()}
    assert own
    for spared in (True, False):
        made = gradients.build(net, settings.model_copy(update={"own_no_decay": spared, "name": "sgd"}))
        rates = {id(p): group["weight_decay"] for group in made.param_groups for p in group["params"]}
        assert len(rates) == len(list(net.parameters()))
        assert {rates[id(p)] for p in own.values() if p.ndim > 1} == ({0.0} if spared else {0.05})
        assert rates[id(net.head.weight)] == 0.05


def test_no_gradients_no_conflict():
    assert gradients.conflict(Toy(), [None] * 6) == {"ratio": 0, "tensors": 0, "negative": 0, "cosine": 0, "layers": {}}


def test_layers():
    names = ("stages.1.blocks.3.attn.qkv.weight", "stages.1.enter.norm.bias", "head.weight", "stem_norm.weight")
    assert list(map(gradients.layer_of, names)) == ["stages.1.blocks.3", "stages.1.enter", "head", "stem_norm"]
