"""The proof that ends an export: what was written is read back by the tool it is for, and must compute what the network computes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from superformer.errors import StoppedError, SuperformerError
from superformer.stored import Stored

TOLERANCE = 1e-4
"""The largest difference of two logits that passes."""
BATCHES = (1, 3, 8)
"""Pictures of each batch that is compared."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Proof:
    """What an export wrote, and how far its logits are from the network's."""

    files: tuple[Path, ...]
    difference: float
    pictures: int
    what: str
    """What was compared with what."""

    def __str__(self) -> str:
        return f"{self.what}: the largest difference of a logit is {self.difference:.1e}, in {self.pictures} random pictures"


@dataclass(frozen=True)
class Preparation:
    """How pictures become inputs: the shorter side resized to ``resize``, the centre cut to ``size``, then mean and std."""

    channels: int
    size: int
    crop: float
    interpolation: str

    @property
    def resize(self) -> int:
        return int(self.size / self.crop)


def preparation(stored: Stored) -> Preparation:
    """What a stored network says of it; the defaults are those of `superformer.data.frames.Frame`."""
    config = stored.config
    interpolation = str(config.get("interpolation", "bicubic"))
    return Preparation(
        stored.net.in_chans,
        stored.net.space.smallest().resolution,
        float(config.get("crop", 0.875)),
        "bilinear" if interpolation == "random" else interpolation,
    )


def random_batches(stored: Stored, seed: int) -> list[Tensor]:
    """Random pictures, normalised, in batches of several sizes."""
    of, rng = preparation(stored), torch.Generator().manual_seed(seed)
    return [torch.randn(n, of.channels, of.size, of.size, generator=rng) for n in BATCHES]


@contextmanager
def on_cpu(stored: Stored) -> Iterator[None]:
    """The network in eval mode on the CPU, without gradients; everything is as before afterwards."""
    from superformer.cost.runtimes import evaluating

    home = next((p.device for p in stored.net.parameters()), torch.device("cpu"))
    with evaluating(stored.net), torch.no_grad():
        stored.net.to("cpu")
        try:
            yield
        finally:
            stored.net.to(home)


def logits(stored: Stored, batches: list[Tensor]) -> list[Floats]:
    """What the network itself computes."""
    with on_cpu(stored):
        return [stored.net(x).float().numpy() for x in batches]


def prove(files: list[Path], ours: list[Floats], theirs: list[Floats], what: str) -> Proof:
    """The proof, or an error if the logits differ."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape:
            raise StoppedError(f"{what}: the logits have the shapes {a.shape} and {b.shape}; nothing was exported")
        worst = max(worst, float(np.nan_to_num(np.abs(a - b), nan=np.inf).max(initial=0.0)))
    if worst > TOLERANCE:
        raise StoppedError(f"{what}: logits differ by up to {worst:.2g}, more than {TOLERANCE:g}; nothing was exported")
    return Proof(tuple(files), worst, sum(len(a) for a in ours), what)


def need(extra: str, *packages: str) -> None:
    """An error that says what to install, if one of these packages is missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise SuperformerError(f"this export needs {', '.join(missing)}, not installed here: pip install 'superformer[{extra}]'")
