"""Outside teachers: pretrained networks whose predictions are targets (NASViT, section 2: an EfficientNet-B5 teaches the largest network;
released: the mean of two ResNeXt-101)."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superformer.errors import SuperformerError
from superformer.stored import IMAGENET, load_network


class Teacher(nn.Module):
    """A network in eval mode, on pictures that were normalised for another one.

    Networks with a fixed input size get the pictures resized; others see them as they are, as NASViT's do.
    """

    def __init__(self, net: nn.Module, scale: Tensor, shift: Tensor, size: tuple[int, int] | None):
        super().__init__()
        self.net, self.size = net.eval().requires_grad_(False), size
        self.scale: Tensor
        self.shift: Tensor
        self.register_buffer("scale", scale.view(-1, 1, 1))
        self.register_buffer("shift", shift.view(-1, 1, 1))
        self.same = bool(torch.allclose(scale, torch.ones(()))) and bool(torch.allclose(shift, torch.zeros(()), atol=1e-6))

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        if not self.same:
            x = x * self.scale + self.shift
        if self.size is not None and tuple(x.shape[-2:]) != self.size:
            x = F.interpolate(x, self.size, mode="bicubic", align_corners=False)
        out: Tensor = self.net(x)
        return out

    def train(self, mode: bool = True) -> Teacher:
        """Teachers stay in eval mode."""
        return super().train(False)


def load(
    names: Sequence[str],
    num_classes: int,
    mean: Sequence[float] = IMAGENET[0],
    std: Sequence[float] = IMAGENET[1],
    classes: Sequence[str] = (),
) -> list[Teacher]:
    """Teachers by name: timm models with published weights, or folders with a network of ours (`superformer.stored`).

    ``mean`` and ``std`` are those that the pictures were normalised with; ``classes`` the names of the data's classes, compared with
    those that a folder tells.
    """
    return [(_folder if Path(n).is_dir() or os.sep in n else _timm)(n, num_classes, tuple(mean), tuple(std), tuple(classes)) for n in names]


def _folder(name: str, num_classes: int, mean: tuple[float, ...], std: tuple[float, ...], classes: tuple[str, ...]) -> Teacher:
    found = load_network(name)
    _check(name, found.net.num_classes, num_classes)
    if classes and found.classes and classes != found.classes:
        a, b = next((a, b) for a, b in zip(classes, found.classes, strict=True) if a != b)
        raise SuperformerError(
            f"the teacher {name} knows other classes than the data, or in another order: {b!r} where the data have {a!r}"
        )
    return Teacher(found.net, *_normalisation((mean, std), (found.mean, found.std)), None)


def _timm(name: str, num_classes: int, mean: tuple[float, ...], std: tuple[float, ...], classes: tuple[str, ...]) -> Teacher:
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=1)
        hint = f": did you mean {near[0]!r}?" if near else "; timm.list_models(pretrained=True) names all"
        raise SuperformerError(f"unknown teacher {name!r}, neither a folder nor a model of timm{hint}")
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None or not cfg.has_weights:
        raise SuperformerError(f"the teacher {name} has no published weights; timm.list_models(pretrained=True) names those that have")
    _check(name, cfg.num_classes, num_classes)
    try:
        net = timm.create_model(name, pretrained=True)
    except Exception as error:  # what a download may raise is the affair of several libraries
        raise SuperformerError(f"the weights of the teacher {name} could not be loaded ({type(error).__name__}: {error})") from error
    size = (cfg.input_size[-2], cfg.input_size[-1]) if cfg.fixed_input_size else None
    return Teacher(net, *_normalisation((mean, std), (cfg.mean, cfg.std)), size)


def _check(name: str, has: int, needed: int) -> None:
    if has != needed:
        raise SuperformerError(f"the teacher {name} knows {has} classes, the data have {needed}: a teacher must know the same classes")


def _normalisation(
    given: tuple[Sequence[float], Sequence[float]], wanted: tuple[Sequence[float], Sequence[float]]
) -> tuple[Tensor, Tensor]:
    """The scale and the shift that lead from one normalisation to another."""
    (m, s), (mean, std) = (tuple(torch.tensor(v, dtype=torch.float32) for v in pair) for pair in (given, wanted))
    if m.shape != mean.shape:
        raise SuperformerError(f"a teacher for pictures of {len(mean)} channels cannot see pictures of {len(m)}")
    return s / std, (m - mean) / std
