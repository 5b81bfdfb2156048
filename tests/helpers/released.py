"""The fixtures: released architectures, weights by name, and the logits that they give."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from helpers.fill import fill

FIXTURES = Path(__file__).parents[1] / "fixtures"


def load(family: str, name: str) -> tuple[dict, dict[str, torch.Tensor], dict[str, np.ndarray]]:
    folder = FIXTURES / family / name
    meta = json.loads((folder / "meta.json").read_text())
    names = json.loads((FIXTURES / family / meta.get("state_of", name) / "meta.json").read_text())["state"]
    state = {key: fill(key, tuple(shape), kind) for key, shape, _, kind in names}
    return (
        meta,
        {k: torch.from_numpy(v) for k, v in state.items() if v is not None},
        {p.stem: np.load(p) for p in folder.glob("*.npy")},
    )


def pictures(size: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3, size, size), dtype=np.float32))


def agree(ours: torch.Tensor, theirs: np.ndarray) -> None:
    assert np.abs(ours.numpy() - theirs).max() / theirs.std() < 2e-4
