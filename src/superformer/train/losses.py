"""What a sub-network is trained towards.

Everything is computed in float32 at least, also where the networks run in bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from superformer.recipes.settings import Loss


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy with labels or with soft targets (the last dimension: classes), the mean over everything else."""
    logits = _full(logits)
    soft = targets.is_floating_point()
    return F.cross_entropy(logits.flatten(0, -2), (_full(targets).flatten(0, -2) if soft else targets.flatten()))


def token_labelling(logits: Tensor, patch_logits: Tensor, targets: Tensor, patch_targets: Tensor, weight: float = 1.0) -> Tensor:
    """Token labelling (ViT-ResNAS, section 2.4 and 3.1): the loss of the patch tokens "is directly added to the classification loss".

    ``patch_logits`` (batch, patches, classes); ``patch_targets`` soft targets of the same shape, or labels (batch, patches).
    """
    return soft_cross_entropy(logits, targets) + weight * soft_cross_entropy(patch_logits, patch_targets)


# --- teachers ---


def teacher_targets(logits: Sequence[Tensor], scale: float = 1.0) -> Tensor:
    """The mean of ``softmax(scale * logits)`` over outside teachers.

    NASViT's paper has one teacher and no scale; its released code two, with a scale of 5, which sharpens.
    """
    return torch.stack([torch.softmax(scale * _full(x), -1) for x in logits]).mean(0).detach()


# --- in-place distillation: the largest teaches the others ---


def distillation(logits: Tensor, teacher: Tensor, settings: Loss) -> Tensor:
    """The loss of a sub-network towards the logits of the largest, by the rule of the settings."""
    if settings.distill == "alpha":
        return alpha_divergence(logits, teacher, settings.alpha, settings.clip)
    return kl(logits, teacher)


def kl(logits: Tensor, teacher: Tensor) -> Tensor:
    """KL(teacher || student), the mean over the batch (NASViT, appendix C.1, with D the Kullback-Leibler divergence)."""
    p, q = (_full(x).log_softmax(-1) for x in (teacher.detach(), logits))
    return F.kl_div(q, p, reduction="batchmean", log_target=True)


def alpha_divergence(logits: Tensor, teacher: Tensor, alpha: tuple[float, float] = (-1.0, 1.0), clip: float = 5.0) -> Tensor:
    """Adaptive alpha-divergence (NASViT, section 2, as in AlphaNet): for each picture the larger one of two divergences.

    Returned is the batch mean of the chosen surrogates, whose gradient is the (clipped) divergence's; the number itself may be negative.
    """
    low, high = (divergence(logits, teacher, a, clip) for a in alpha)
    return torch.where(low[0] > high[0], low[1], high[1]).mean()


def divergence(logits: Tensor, teacher: Tensor, alpha: float, clip: float = 5.0) -> tuple[Tensor, Tensor]:
    """The alpha-divergence of each picture: its value, and the surrogate loss that carries the gradient.

    With w = p/q (teacher over student) and f(w) = w^alpha / (alpha (alpha - 1)) the value is sum q (f(w) - f(1)). The surrogate is -sum q
    rho log q, with rho = w^alpha / alpha + f(1), where only log q has a gradient. w^alpha is clipped, but at alpha = 1 (as released),
    where the value is KL(teacher || student) and the surrogate the cross-entropy. Alpha = 0 is the limit, KL(student || teacher).
    """
    log_q, log_p = _full(logits).log_softmax(-1), _full(teacher).detach().log_softmax(-1)
    q, log_w = log_q.detach().exp(), log_p - log_q.detach()
    if abs(alpha - 1) < 1e-3:
        p = log_p.exp()
        return (p * log_w).sum(-1), -(p * log_q).sum(-1)
    if abs(alpha) < 1e-3:
        log_w = log_w.clamp(max=torch.tensor(clip).log().item())
        return -(q * log_w).sum(-1), -(q * (log_w - 1) * log_q).sum(-1)
    power = (alpha * log_w).exp().clamp(max=clip)
    base = 1 / (alpha * (alpha - 1))
    return (q * (power * base - base)).sum(-1), -(q * (power / alpha + base) * log_q).sum(-1)


def _full(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
