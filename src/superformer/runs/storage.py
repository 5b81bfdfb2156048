"""A trained stand-alone network as a folder: ``model.safetensors`` and ``config.json``. Nothing in it can be executed."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from superformer import files
from superformer.errors import SuperformerError
from superformer.families.network import Network
from superformer.files import CONFIG
from superformer.space import Space
from superformer.space.arch import Arch, expect, load_json
from superformer.spaces import model, supernet

WEIGHTS = "model.safetensors"
PREPARED = ("crop", "interpolation")
"""How pictures are cut and resized (`superformer.data.augment.EvalTransform`)."""
TIMM = ("architecture", "num_features", "model_args", "pretrained_cfg")
"""What an export for timm adds."""
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Stored:
    """A network, the names of its classes and how its pictures are normalised."""

    net: Network
    classes: tuple[str, ...] = ()
    mean: tuple[float, ...] = IMAGENET[0]
    std: tuple[float, ...] = IMAGENET[1]
    config: dict[str, Any] = field(default_factory=dict)


def save_network(
    net: Network,
    folder: str | Path,
    classes: Sequence[str] = (),
    mean: Sequence[float] = IMAGENET[0],
    std: Sequence[float] = IMAGENET[1],
    **prepared: float | str,
) -> None:
    """Write a stand-alone network. What only training uses (a patch head) is left out. ``prepared``: ``crop`` and ``interpolation``.

    The configuration is written last and a former one removed first: a folder with a configuration is complete.
    """
    if net.space.size > 1:
        raise SuperformerError(f"this is a supernet of {net.space.size:.3g} architectures: store net.extract(arch)")
    if classes and len(classes) != net.num_classes:
        raise SuperformerError(f"{len(classes)} names were given for the {net.num_classes} classes of the network")
    arch = net.space.smallest()
    config = {
        "arch": json.loads(arch.to_json()),
        "num_classes": net.num_classes,
        "in_chans": net.in_chans,
        "classes": list(classes),
        "mean": list(mean),
        "std": list(std),
        **prepared,
    }
    folder = Path(folder)
    with files.storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).unlink(missing_ok=True)
    tensors = {
        k: v.detach().cpu().contiguous() for k, v in net.state_dict().items() if not k.startswith(net.training_only)
    }
    files.write_by(folder / WEIGHTS, lambda partial: save_file(tensors, partial))
    files.write(folder / CONFIG, json.dumps(config, indent=1) + "\n")


def load_network(folder: str | Path) -> Stored:
    """The network of a folder, in eval mode."""
    folder = Path(folder)
    try:
        config = load_json((folder / CONFIG).read_text(), f"{folder / CONFIG}", SuperformerError)
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise SuperformerError(f"{folder} holds no complete network ({CONFIG} and {WEIGHTS}): {error}") from error
    expect(
        config,
        f"{folder / CONFIG}",
        {"arch", "num_classes"},
        {"in_chans", "classes", "mean", "std", *PREPARED, *TIMM},
        SuperformerError,
    )
    arch = Arch.from_json(json.dumps(config["arch"]))
    net = model(arch, config["num_classes"], in_chans=config.get("in_chans", 3))
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        raise SuperformerError(f"{folder / WEIGHTS} are not the weights of the network in {CONFIG}: {error}") from error
    mean, std = (
        tuple(map(float, config.get(name, default))) for name, default in zip(("mean", "std"), IMAGENET, strict=True)
    )
    return Stored(net.eval(), tuple(map(str, config.get("classes", ()))), mean, std, config)


# A trained supernet as a file: ``supernet.safetensors``, with its space and its classes in the header.


def save_supernet(net: Network, path: Path, classes: Sequence[str], **facts: object) -> None:
    """Write a supernet; ``facts`` are kept beside it (the step, the normalisation of pictures)."""
    tensors = {
        k: v.detach().cpu().contiguous() for k, v in net.state_dict().items() if not k.startswith(net.training_only)
    }
    header = {
        "space": net.space.to_json(),
        "sharing": net.sharing.rule,
        "classes": json.dumps(list(classes)),
        "facts": json.dumps(facts),
    }
    files.write_by(path, lambda partial: save_file(tensors, partial, header))


def load_supernet(path: Path) -> Network:
    """The supernet of a file, in eval mode."""
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    except (OSError, SafetensorError) as error:
        raise SuperformerError(f"the supernet {path} cannot be read: {error}") from error
    if "space" not in header:
        raise SuperformerError(f"{path} has no space in its header: it is not a supernet of superformer")
    net = supernet(Space.from_json(header["space"]), len(json.loads(header["classes"])), header["sharing"])
    net.load_state_dict(tensors)
    return net.eval()


# Checkpoints: one safetensors file each, with tensors of every kind and the rest as JSON in its header; never a
# pickle.
#
# What a step draws at random comes from the seed and the number of the step, so the number is all there is to keep of
# it: no state of a random generator, of a sampler or of a loader, on any rank.


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
    files.write_by(
        folder / f"step-{checkpoint.step:09d}.safetensors", lambda partial: save_file(tensors, partial, header)
    )
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
            warnings.warn(
                f"{error}: going on from the checkpoint before it (the file is kept as {aside.name})", stacklevel=2
            )
    return None
