"""Trained networks for other tools: ONNX Runtime, timm, Hugging Face's transformers.

Every export ends with a proof: the tool reads what was written, and must compute the logits that the network computes,
to 1e-4. Until then nothing lies under the name that was asked for."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from superformer import files
from superformer.cost.runtimes import evaluating
from superformer.errors import StoppedError, SuperformerError
from superformer.files import CONFIG
from superformer.interop import format_module
from superformer.progress import doing
from superformer.runs.storage import StoredNetwork

TOOLS = {"onnx": "ONNX Runtime", "timm": "timm", "hf": "transformers without superformer"}
MARKS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "timm": lambda config: {"arch", "architecture"} <= set(config),
    "hf": lambda config: str(config.get("model_type")).startswith("superformer"),
}
"""By what the configuration of an export is known."""
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
    note: str = ""
    """What else is to be told of the export."""
    value: str = "a logit"
    kind: str = "random"
    """What differs, and in which pictures."""

    def __str__(self) -> str:
        largest = f"the largest difference of {self.value} is {self.difference:.1e}"
        return f"{self.what}: {largest}, in {self.pictures} {self.kind} pictures" + (self.note and f"\n{self.note}")


def export(stored: StoredNetwork, out: str | Path, to: str, console: Console | None = None, seed: int = 0) -> Proof:
    """Write a stored network into a folder (``to``: ``"onnx"``, ``"timm"`` or ``"hf"``) and prove that it works there.

    An earlier export of the same format in that folder is replaced; beside any other network it is an error. ``seed``:
    of the random pictures that the proof compares."""
    module, out = format_module(to), Path(out)
    if (size := stored.net.space.size) > 1:
        raise SuperformerError(f"this is a supernet of {size:.3g} architectures: export net.extract(arch)")
    form = importlib.import_module(module)

    def prove(partial: Path) -> Proof:
        batches = random_batches(stored, seed)
        with on_cpu(stored):
            ours = [stored.net(x).float().numpy() for x in batches]
        return proof_of(ours, form.logits_of(partial, batches), f"superformer and {TOOLS[to]}")

    return write_proved(out, to, lambda partial: form.write(stored, partial) or "", prove, console)


def write_proved(
    out: Path, to: str, write: Callable[[Path], str], prove: Callable[[Path], Proof], console: Console | None = None
) -> Proof:
    """Let an export be written and proved in a folder of its own, then give that its name."""
    _check_folder(out, to)
    partial = out / f"export{files.PARTIAL}" if out.is_dir() else out.with_name(out.name + files.PARTIAL)
    with files.disk_errors(partial):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    try:
        with doing(console, f"writing the {to} export"):
            note = write(partial)
        with doing(console, f"proving it: read back by {TOOLS[to]}"):
            proof = prove(partial)
        return replace(proof, files=_placed(partial, out), note=note or proof.note)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_folder(out: Path, to: str) -> None:
    """Whether an export may be written there."""
    if out.exists() and not out.is_dir():
        raise SuperformerError(f"{out} is a file: an export is a folder, choose another name")
    if to not in MARKS or not (out / CONFIG).exists():
        return
    try:
        same = MARKS[to](json.loads((out / CONFIG).read_text()))
    except (OSError, ValueError, AttributeError, TypeError):
        same = False
    if not same:
        other = f"another network ({CONFIG}), which an export would overwrite"
        raise SuperformerError(f"{out} holds {other}: choose another folder")


def proof_of(ours: list[Floats], theirs: list[Floats], what: str) -> Proof:
    """The proof, or an error if the logits differ."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape:
            raise StoppedError(f"{what}: the logits have the shapes {a.shape} and {b.shape}; nothing was exported")
        worst = max(worst, float(np.nan_to_num(np.abs(a - b), nan=np.inf).max(initial=0.0)))
    if worst > TOLERANCE:
        raise StoppedError(f"{what}: logits differ by up to {worst:.2g}, more than {TOLERANCE:g}; nothing was exported")
    return Proof((), worst, sum(len(a) for a in ours), what)


def _placed(partial: Path, out: Path) -> tuple[Path, ...]:
    """Give the files their own folder. Where there is one, its configuration goes first and the new one comes last."""
    names = sorted((f.name for f in partial.iterdir()), key=lambda name: (name == CONFIG, name))
    with files.disk_errors(out):
        if not out.exists():
            os.replace(partial, out)
        else:
            if CONFIG in names:
                (out / CONFIG).unlink(missing_ok=True)
            for name in names:
                os.replace(partial / name, out / name)
    return tuple(out / name for name in names)


@dataclass(frozen=True)
class Preparation:
    """How pictures become inputs: the shorter side made ``resize``, the centre cut to ``size``, then mean and std."""

    channels: int
    size: int
    crop: float
    interpolation: str

    @property
    def resize(self) -> int:
        return int(self.size / self.crop)


def preparation(stored: StoredNetwork) -> Preparation:
    """What a stored network says of it; the defaults are those of `superformer.data.augment.EvalTransform`."""
    crop, interpolation = stored.config.get("crop", 0.875), str(stored.config.get("interpolation", "bicubic"))
    interpolation = "bilinear" if interpolation == "random" else interpolation
    return Preparation(stored.net.in_chans, stored.net.space.smallest().resolution, float(crop), interpolation)


def random_batches(stored: StoredNetwork, seed: int) -> list[Tensor]:
    """Random pictures, normalised, in batches of several sizes."""
    of, rng = preparation(stored), torch.Generator().manual_seed(seed)
    return [torch.randn(n, of.channels, of.size, of.size, generator=rng) for n in BATCHES]


@contextmanager
def on_cpu(stored: StoredNetwork) -> Iterator[None]:
    """The network in eval mode on the CPU, without gradients; everything is as before afterwards."""
    home = next((p.device for p in stored.net.parameters()), torch.device("cpu"))
    with evaluating(stored.net), torch.no_grad():
        stored.net.to("cpu")
        try:
            yield
        finally:
            stored.net.to(home)


def require(extra: str, *packages: str) -> None:
    """An error that says what to install, if one of these packages is missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        needs = f"this export needs {', '.join(missing)}, not installed here"
        raise SuperformerError(f"{needs}: pip install 'superformer[{extra}]'")
