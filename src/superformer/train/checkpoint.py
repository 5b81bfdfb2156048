"""Checkpoints: one safetensors file each, with tensors of every kind and the rest as JSON in its header; never a pickle.

What a step draws at random comes from the seed and the number of the step, so the number is all there is to keep of it: no state of a
random generator, of a sampler or of a loader, on any rank.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from superformer import files


@dataclass(frozen=True)
class Checkpoint:
    """The state after ``step`` steps."""

    step: int
    tensors: Mapping[str, Tensor]
    rest: Mapping[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin so, without it."""
        return {k.removeprefix(prefix): v for k, v in self.tensors.items() if k.startswith(prefix)}


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Of names, kinds, shapes and bytes."""
    out = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        out.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        out.update(tensor.flatten().view(torch.uint8).numpy().data)
    return out.hexdigest()


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> None:
    """Write a checkpoint, then let the oldest go."""
    tensors = {k: v.detach().cpu().contiguous() for k, v in checkpoint.tensors.items()}
    header = {"step": str(checkpoint.step), "rest": json.dumps(checkpoint.rest), "digest": _digest(tensors)}
    with files.storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files.write_by(folder / f"step-{checkpoint.step:09d}.safetensors", lambda partial: save_file(tensors, partial, header))
    for old in listed(folder)[:-keep]:
        old.unlink(missing_ok=True)


def listed(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(folder.glob("step-*.safetensors"))


def load(path: Path) -> Checkpoint:
    """One checkpoint; `DamagedError` if its bytes are not those that were written."""
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
        if _digest(tensors) != header["digest"]:
            raise DamagedError(f"{path.name} is not as it was written")
        return Checkpoint(int(header["step"]), tensors, json.loads(header["rest"]))
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DamagedError(f"{path.name} is damaged ({error})") from error


class DamagedError(Exception):
    """A file whose bytes are not those that were written."""


def latest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are told of and set aside. What a kill left half-written is removed."""
    for partial in folder.glob(f"*{files.PARTIAL}"):
        partial.unlink(missing_ok=True)
    for path in reversed(listed(folder)):
        try:
            return load(path)
        except DamagedError as error:
            aside = path.with_suffix(".damaged")
            path.rename(aside)
            warnings.warn(f"{error}: going on from the checkpoint before it (the file is kept as {aside.name})", stacklevel=2)
    return None
