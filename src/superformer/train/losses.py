"""What a sub-network is trained towards: targets, the largest network, outside teachers. Everything is computed in
float32 at least, also where the networks run in bfloat16."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superformer.errors import SuperformerError
from superformer.families.network import Network
from superformer.interop.hub import fetching
from superformer.recipes.settings import Loss
from superformer.runs.storage import IMAGENET, load_network
from superformer.train.features import Final


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy with labels or with soft targets (the last dimension: classes), the mean over everything else."""
    wanted = _float(targets).flatten(0, -2) if targets.is_floating_point() else targets.flatten()
    return F.cross_entropy(_float(logits).flatten(0, -2), wanted)


def token_labelling(
    logits: Tensor, patch_logits: Tensor, targets: Tensor, patch_targets: Tensor, weight: float = 1.0
) -> Tensor:
    """Token labelling (ViT-ResNAS, section 2.4 and 3.1): the loss of the patch tokens "is directly added to the
    classification loss". ``patch_targets``: soft ones (batch, patches, classes), as the logits, or labels (batch,
    patches)."""
    return soft_cross_entropy(logits, targets) + weight * soft_cross_entropy(patch_logits, patch_targets)


def teacher_targets(logits: Sequence[Tensor], scale: float = 1.0, hard: bool = False) -> Tensor:
    """The mean of ``softmax(scale * logits)`` over outside teachers; ``hard``: only the class where it is largest
    (DeiT, section 3, "hard-label distillation"). NASViT's paper has one teacher and no scale; its released code two,
    with a scale of 5, which sharpens."""
    soft = torch.stack([torch.softmax(scale * _float(x), -1) for x in logits]).mean(0).detach()
    return F.one_hot(soft.argmax(-1), soft.shape[-1]).to(soft.dtype) if hard else soft


def with_teachers(target: Tensor, logits: Sequence[Tensor], settings: Loss) -> Tensor:
    """Targets (batch, classes) with the teachers' share of them. Cross-entropy is linear in its targets, so with hard
    labels and a half this is DeiT's eq. 3: 1/2 CE(student, label) + 1/2 CE(student, teacher's class)."""
    hard = settings.teacher_labels == "hard"
    weight = settings.teacher_weight if settings.teacher_weight is not None else 0.5 if hard else 1.0
    return torch.lerp(target, teacher_targets(logits, settings.teacher_scale, hard).to(target.dtype), weight)


def distillation(logits: Tensor, teacher: Tensor, settings: Loss) -> Tensor:
    """In-place distillation: the loss of a sub-network towards the logits of the largest, by the settings' rule."""
    if settings.distill == "alpha":
        return alpha_divergence(logits, teacher, settings.alpha, settings.clip)
    return kl(logits, teacher)


def kl(logits: Tensor, teacher: Tensor) -> Tensor:
    """KL(teacher || student), the mean over the batch (NASViT, appendix C.1, with D the KL divergence)."""
    p, q = (_float(x).log_softmax(-1) for x in (teacher.detach(), logits))
    return F.kl_div(q, p, reduction="batchmean", log_target=True)


def alpha_divergence(
    logits: Tensor, teacher: Tensor, alpha: tuple[float, float] = (-1.0, 1.0), clip: float = 5.0
) -> Tensor:
    """Adaptive alpha-divergence (NASViT, section 2, as in AlphaNet): for each picture the larger one of two
    divergences. Returned is the batch mean of the chosen surrogates, whose gradient is the (clipped) divergence's; the
    number itself may be negative."""
    low, high = (divergence(logits, teacher, a, clip) for a in alpha)
    return torch.where(low[0] > high[0], low[1], high[1]).mean()


def divergence(logits: Tensor, teacher: Tensor, alpha: float, clip: float = 5.0) -> tuple[Tensor, Tensor]:
    """The alpha-divergence of each picture: its value, and the surrogate loss that carries the gradient.

    With w = p/q (teacher over student) and f(w) = w^alpha / (alpha (alpha - 1)) the value is sum q (f(w) - f(1)). The
    surrogate is -sum q rho log q, with rho = w^alpha / alpha + f(1), where only log q has a gradient. w^alpha is
    clipped, but at alpha = 1 (as released), where the value is KL(teacher || student) and the surrogate the
    cross-entropy. Alpha = 0 is the limit, KL(student || teacher)."""
    log_q, log_p = _float(logits).log_softmax(-1), _float(teacher).detach().log_softmax(-1)
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


def _float(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


class Teacher(nn.Module):
    """An outside teacher: a pretrained network whose predictions are targets (NASViT, section 2: an EfficientNet-B5
    teaches the largest network; released: the mean of two ResNeXt-101), in eval mode, on pictures that were cut and
    normalised for another network: it gets them normalised and, if it has a ``size``, resized as it was made for."""

    def __init__(self, net: nn.Module, scale: Sequence[float], shift: Sequence[float], size: tuple[int, int] | None):
        super().__init__()
        self.net, self.size = net.eval().requires_grad_(False), size
        self.scale: Tensor
        self.shift: Tensor
        self.register_buffer("scale", torch.tensor(scale).view(-1, 1, 1))
        self.register_buffer("shift", torch.tensor(shift).view(-1, 1, 1))
        self.same = all(abs(s - 1) < 1e-5 for s in scale) and all(abs(s) < 1e-6 for s in shift)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        out: Tensor = self.net(self._prepared(x))
        return out

    @torch.no_grad()
    def both(self, x: Tensor) -> tuple[Tensor, Final]:
        """Logits and final tokens, of a network of ours."""
        assert isinstance(self.net, Network)
        ((tokens, at),) = self.net.passes(self._prepared(x))
        return self.net.classify(tokens, at), Final.of(self.net, tokens, at)

    def _prepared(self, x: Tensor) -> Tensor:
        if not self.same:
            x = x * self.scale + self.shift
        if self.size is not None and tuple(x.shape[-2:]) != self.size:
            x = F.interpolate(x, self.size, mode="bicubic", align_corners=False, antialias=True)
        return x

    def train(self, mode: bool = True) -> Teacher:
        """Teachers stay in eval mode."""
        return super().train(False)


def load_teachers(
    names: Sequence[str], num_classes: int, mean: Sequence[float] = IMAGENET[0], std: Sequence[float] = IMAGENET[1],
    classes: Sequence[str] = (), own_size: bool = True,
) -> list[Teacher]:  # fmt: skip
    """Teachers by name: timm models with published weights, or folders of `superformer.runs.storage`, for pictures that
    were normalised with ``mean`` and ``std``; ``classes``, the data's, are compared with those that a folder tells.
    Without ``own_size`` teachers see pictures of the student's size, if they can."""
    out = []
    for name in names:
        if Path(name).is_dir() or os.sep in name:
            stored = load_network(name)
            _check_classes(name, stored.net.num_classes, num_classes)
            if classes and stored.classes and tuple(classes) != stored.classes:
                ours, theirs = next((a, b) for a, b in zip(classes, stored.classes, strict=True) if a != b)
                what = f"the teacher {name} knows other classes than the data, or in another order"
                raise SuperformerError(f"{what}: {theirs!r} where the data have {ours!r}")
            net: nn.Module = stored.net
            own: Any = (stored.mean, stored.std)
            size = (stored.net.space.smallest().resolution,) * 2 if own_size else None
        else:
            net, cfg = _timm_network(name, num_classes)
            own = (cfg.mean, cfg.std)
            size = (cfg.input_size[-2], cfg.input_size[-1]) if own_size or cfg.fixed_input_size else None
        # the scale and the shift that lead from the pictures' normalisation to the teacher's
        (m, s), (to_m, to_s) = (tuple(torch.tensor(v, dtype=torch.float32) for v in p) for p in ((mean, std), own))
        if m.shape != to_m.shape:
            raise SuperformerError(f"a teacher for pictures of {len(to_m)} channels cannot see pictures of {len(m)}")
        out.append(Teacher(net, (s / to_s).tolist(), ((m - to_m) / to_s).tolist(), size))
    return out


def untrained_teachers(names: Sequence[str], num_classes: int, sizes: str) -> list[Teacher]:
    """The same networks, of timm without their weights: to count what they take."""
    out = []
    for name in names:
        folder = Path(name).is_dir()
        net: Any = load_network(name).net if folder else timm.create_model(name, num_classes=num_classes)
        side = net.space.img_size if folder else net.default_cfg["input_size"][-1]
        out.append(Teacher(net, (1.0,) * 3, (0.0,) * 3, None if sizes == "student" else (side, side)))
    return out


def _timm_network(name: str, num_classes: int) -> tuple[nn.Module, Any]:
    """A network of timm with its published weights, and what timm says of them."""
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=1)
        hint = f": did you mean {near[0]!r}?" if near else "; timm.list_models(pretrained=True) names all"
        raise SuperformerError(f"unknown teacher {name!r}, neither a folder nor a model of timm{hint}")
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None or not cfg.has_weights:
        how = "timm.list_models(pretrained=True) names those that have"
        raise SuperformerError(f"the teacher {name} has no published weights; {how}")
    _check_classes(name, cfg.num_classes, num_classes)
    with fetching(f"the weights of the teacher {name}", "name a folder with a network instead (loss.teachers=[DIR])"):
        return timm.create_model(name, pretrained=True), cfg


def _check_classes(name: str, has: int, needed: int) -> None:
    if has != needed:
        what = f"the teacher {name} knows {has} classes, the data have {needed}"
        raise SuperformerError(f"{what}: a teacher must know the same classes")
