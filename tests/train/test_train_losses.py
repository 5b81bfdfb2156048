"""Losses: the released values and gradients, and what holds by definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.released import FIXTURES
from hypothesis import given
from hypothesis import strategies as st

from superformer.recipes.settings import Loss
from superformer.train import losses


@pytest.fixture(scope="module")
def released() -> dict[str, torch.Tensor]:
    """What NASViT's released loss computes."""
    found = np.load(FIXTURES / "nasvit" / "_training" / "kd_loss.npz")
    return {name: torch.from_numpy(found[name]) for name in found.files}


@pytest.mark.parametrize("case", ["a", "b", "c"])
def test_alpha_divergence_as_released(released, case):
    q, p = released[f"{case}_q_logits"].requires_grad_(), released[f"{case}_p_logits"]
    ours = {"left": losses.divergence(q, p, -1.0, 5.0), "right": losses.divergence(q, p, 1.0, 5.0)}
    for side, (value, surrogate) in ours.items():
        torch.testing.assert_close(value, released[f"{case}_div_{side}"], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(surrogate.detach(), released[f"{case}_surr_{side}"], rtol=1e-5, atol=1e-6)
    theirs = released[f"{case}_div_left"] > released[f"{case}_div_right"]
    assert torch.equal(ours["left"][0] > ours["right"][0], theirs)
    loss = losses.distillation(q, p, Loss(distill="alpha"))
    torch.testing.assert_close(loss.detach(), released[f"{case}_loss"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.autograd.grad(loss, q)[0], released[f"{case}_grad_q"], rtol=1e-5, atol=1e-8)


def test_released_cases_choose_both_divergences(released):
    chosen = torch.cat([released[f"{c}_div_left"] > released[f"{c}_div_right"] for c in "abc"])
    assert chosen.any()
    assert not chosen.all()


def test_two_teachers_as_released(released):
    logits = released["sup_logits"].requires_grad_()
    targets = losses.teacher_targets([released["sup_teacher0_logits"], released["sup_teacher1_logits"]], scale=5.0)
    loss = losses.soft_cross_entropy(logits, targets)
    torch.testing.assert_close(loss.detach(), released["sup_loss"], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], released["sup_grad"], rtol=1e-5, atol=1e-8)


def logits(seed: int, *shape: int, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 2**32), st.integers(2, 9), st.floats(0, 0.3))
def test_hard_labels_of_a_teacher_are_deit_s(seed, classes, smoothing):
    """DeiT, eq. 3: half the cross-entropy with the (smoothed) label, half that with the teacher's class; value and
    gradient."""
    student, teacher = logits(seed, 4, classes).requires_grad_(), logits(seed + 1, 4, classes)
    labels = torch.randint(classes, (4,), generator=torch.Generator().manual_seed(seed))
    smooth = torch.full((4, classes), smoothing / classes, dtype=torch.float64)
    smooth[torch.arange(4), labels] += 1 - smoothing
    ours = losses.soft_cross_entropy(student, losses.with_teachers(smooth, [teacher], Loss(teacher_labels="hard")))
    first = F.cross_entropy(student, labels, label_smoothing=smoothing)
    theirs = 0.5 * first + 0.5 * F.cross_entropy(student, teacher.argmax(1))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, student, retain_graph=True)[0] for loss in (ours, theirs)))


def test_the_share_of_teachers():
    """All of soft targets, half of hard ones, or what is asked for; several teachers decide together."""
    label, one, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([[9.0, 0.0]])
    torch.testing.assert_close(losses.with_teachers(label, [one], Loss()), one.softmax(-1))
    hard = Loss(teacher_labels="hard")
    assert losses.with_teachers(label, [one], hard).tolist() == [[0.5, 0.5]]
    assert losses.with_teachers(label, [one], Loss(teacher_labels="hard", teacher_weight=1)).tolist() == [[0.0, 1.0]]
    assert losses.with_teachers(label, [one, other], hard).tolist() == [[1.0, 0.0]]


@given(st.integers(0, 2**32), st.integers(2, 9))
def test_alpha_one_is_kl(seed, classes):
    """With +1 at both ends the adaptive divergence has the gradient of the KL divergence, and the same value."""
    q, p = logits(seed, 4, classes).requires_grad_(), logits(seed + 1, 4, classes)
    expected = losses.kl(q, p)
    torch.testing.assert_close(losses.divergence(q, p, 1.0)[0].mean(), expected.detach())
    grads = (torch.autograd.grad(x, q)[0] for x in (losses.alpha_divergence(q, p, (1.0, 1.0)), expected))
    torch.testing.assert_close(*grads)


@given(st.integers(0, 2**32), st.sampled_from((-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)))
def test_the_surrogate_has_the_divergence_s_gradient(seed, alpha):
    """Without clipping: the gradient of sum q (f(p/q) - f(1)) through q."""
    q, p = logits(seed, 3, 5, scale=1.0).requires_grad_(), logits(seed + 1, 3, 5, scale=1.0).softmax(-1)
    value, surrogate = losses.divergence(q, p.log(), alpha, clip=1e12)
    prob = q.softmax(-1)
    w = p / prob
    if alpha == 0:
        exact = -(prob * w.log()).sum(-1)
    elif alpha == 1:
        exact = (prob * w * w.log()).sum(-1)
    else:
        exact = (prob * (w**alpha - 1)).sum(-1) / (alpha * (alpha - 1))
    torch.testing.assert_close(value, exact.detach())
    assert (value > -1e-9).all()
    torch.testing.assert_close(torch.autograd.grad(surrogate.sum(), q)[0], torch.autograd.grad(exact.sum(), q)[0])


@pytest.mark.parametrize("alpha", [(-1.0, 1.0), (0.0, 1.0), (-4.0, 0.5)])
def test_certain_networks_give_finite_losses(alpha):
    """Logits so far apart that probabilities are 0 in float32."""
    q = torch.tensor([[0.0, 300.0, -300.0], [500.0, 0.0, 0.0]], requires_grad=True)
    p = torch.tensor([[300.0, 0.0, -300.0], [500.0, 0.0, 0.0]])
    for loss in (losses.alpha_divergence(q, p, alpha), losses.kl(q, p)):
        assert torch.isfinite(loss)
        assert torch.isfinite(torch.autograd.grad(loss, q)[0]).all()


def test_the_teacher_learns_nothing():
    q, p = logits(0, 2, 3).requires_grad_(), logits(1, 2, 3).requires_grad_()
    for loss in (
        losses.alpha_divergence(q, p),
        losses.kl(q, p),
        losses.soft_cross_entropy(q, losses.teacher_targets([p])),
    ):
        assert torch.autograd.grad(loss, p, allow_unused=True)[0] is None


def test_cross_entropy_of_labels_and_of_tokens():
    x, patches = logits(0, 4, 5), logits(1, 4, 6, 5)
    labels, patch_labels = torch.tensor([0, 4, 2, 2]), torch.arange(24).view(4, 6) % 5
    soft, patch_soft = (torch.nn.functional.one_hot(y, 5).double() for y in (labels, patch_labels))
    by_hand = -(x.log_softmax(-1) * soft).sum(-1).mean()
    by_hand_patches = -(patches.log_softmax(-1) * patch_soft).sum(-1).mean()
    torch.testing.assert_close(losses.soft_cross_entropy(x, labels), by_hand)
    torch.testing.assert_close(losses.soft_cross_entropy(x, soft), by_hand)
    for targets, patch_targets in ((labels, patch_labels), (soft, patch_soft)):
        torch.testing.assert_close(
            losses.token_labelling(x, patches, targets, patch_targets, 0.5), by_hand + 0.5 * by_hand_patches
        )


@pytest.mark.parametrize("kind", ["cross", "tokens", "kl", "alpha", "teachers"])
def test_losses_are_computed_in_float32(kind):
    """Logits in bfloat16, under autocast, give what the same numbers give in float32."""
    x, y = logits(0, 4, 50).bfloat16(), logits(1, 4, 50).bfloat16()
    soft = y.float().softmax(-1)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if kind == "tokens":
            return losses.token_labelling(x, x[:, None], soft, soft[:, None])
        if kind == "teachers":
            return losses.teacher_targets([x, y], 5.0)
        return {"cross": losses.soft_cross_entropy, "kl": losses.kl, "alpha": losses.alpha_divergence}[kind](
            x, soft if kind == "cross" else y
        )

    with torch.autocast("cpu", torch.bfloat16):
        ours = loss(x, y)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, loss(x.float(), y.float()), rtol=0, atol=0)
