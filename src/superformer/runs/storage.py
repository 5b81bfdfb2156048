"""Stored weights: safetensors files with facts in their header. Nothing in them can be executed.

* a stand-alone network as a folder: ``model.safetensors`` and ``config.json``;
* a trained supernet as a file: ``supernet.safetensors``, its space and its classes in the header;
* checkpoints: tensors of every kind, the rest as JSON in the header. What a step draws at random comes from the seed
  and the number of the step: no state of a random generator, of a sampler or of a loader is kept, on any rank."""

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
from safetensors.torch import save_file
from torch import Tensor

from superformer import files
from superformer.errors import SuperformerError
from superformer.families.network import Network
from superformer.files import CONFIG
from superformer.space import Space
from superformer.space.arch import Arch, expect, load_json
from superformer.spaces import model, supernet

WEIGHTS = "model.safetensors"
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: dict[str, str] | None = None) -> None:
    """Write tensors, and facts as text beside them."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    files.write_by(path, lambda partial: save_file(ready, partial, header))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file, and the facts beside them; what cannot be read is an `OSError` or a `SafetensorError`."""
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118  # no dict


def _weights(net: Network) -> dict[str, Tensor]:
    """All but what only training uses (a patch head)."""
    return {name: tensor for name, tensor in net.state_dict().items() if not name.startswith(net.training_only)}


@dataclass(frozen=True)
class StoredNetwork:
    """A network, the names of its classes and how its pictures are normalised."""

    net: Network
    classes: tuple[str, ...] = ()
    mean: tuple[float, ...] = IMAGENET[0]
    std: tuple[float, ...] = IMAGENET[1]
    config: dict[str, Any] = field(default_factory=dict)


def save_network(
    net: Network, folder: str | Path, classes: Sequence[str] = (), mean: Sequence[float] = IMAGENET[0],
    std: Sequence[float] = IMAGENET[1], **prepared: float | str,
) -> None:  # fmt: skip
    """Write a stand-alone network. ``prepared``: ``crop`` and ``interpolation``. The configuration is written last and
    a former one removed first: a folder with a configuration is complete."""
    if net.space.size > 1:
        raise SuperformerError(f"this is a supernet of {net.space.size:.3g} architectures: store net.extract(arch)")
    if classes and len(classes) != net.num_classes:
        raise SuperformerError(f"{len(classes)} names were given for the {net.num_classes} classes of the network")
    arch = json.loads(net.space.smallest().to_json())
    config = {"arch": arch, "num_classes": net.num_classes, "in_chans": net.in_chans, "classes": list(classes)}
    config |= {"mean": list(mean), "std": list(std), **prepared}
    folder = Path(folder)
    files.make_folder(folder)
    with files.disk_errors(folder):
        (folder / CONFIG).unlink(missing_ok=True)
    write_tensors(folder / WEIGHTS, _weights(net))
    files.write(folder / CONFIG, json.dumps(config, indent=1) + "\n")


def load_network(folder: str | Path) -> StoredNetwork:
    """The network of a folder, in eval mode."""
    folder, where = Path(folder), str(Path(folder) / CONFIG)
    try:
        config = load_json((folder / CONFIG).read_text(), where, SuperformerError)
        tensors, _ = read_tensors(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise SuperformerError(f"{folder} holds no complete network ({CONFIG} and {WEIGHTS}): {error}") from error
    known = {"in_chans", "classes", "mean", "std", "crop", "interpolation"}
    known |= {"architecture", "num_features", "model_args", "pretrained_cfg"}  # what an export for timm adds
    expect(config, where, {"arch", "num_classes"}, known, SuperformerError)
    net = model(Arch.from_json(json.dumps(config["arch"])), config["num_classes"], in_chans=config.get("in_chans", 3))
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        raise SuperformerError(f"{folder / WEIGHTS} are not the weights of the network in {CONFIG}: {error}") from error
    mean, std = (tuple(map(float, config.get(k, usual))) for k, usual in zip(("mean", "std"), IMAGENET, strict=True))
    return StoredNetwork(net.eval(), tuple(map(str, config.get("classes", ()))), mean, std, config)


def save_supernet(net: Network, path: Path, classes: Sequence[str], **facts: object) -> None:
    """Write a supernet; ``facts`` are kept beside it (the step, the normalisation of pictures)."""
    header = {"space": net.space.to_json(), "sharing": net.sharing.rule, "classes": json.dumps(list(classes))}
    header["version"] = "2"  # without it, cyclic sharing had other channels
    write_tensors(path, _weights(net), {**header, "facts": json.dumps(facts)})


def load_supernet(path: Path) -> Network:
    """The supernet of a file, in eval mode."""
    try:
        tensors, header = read_tensors(path)
    except (OSError, SafetensorError) as error:
        raise SuperformerError(f"the supernet {path} cannot be read: {error}") from error
    if "space" not in header:
        raise SuperformerError(f"{path} has no space in its header: it is not a supernet of superformer")
    rule = "cyclic-groups" if header["sharing"] == "cyclic" and "version" not in header else header["sharing"]
    net = supernet(Space.from_json(header["space"]), len(json.loads(header["classes"])), rule)
    net.load_state_dict(tensors)
    return net.eval()


@dataclass(frozen=True)
class Checkpoint:
    """The state after ``step`` steps."""

    step: int
    tensors: Mapping[str, Tensor]
    rest: Mapping[str, Any]

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin so, without it."""
        return {k.removeprefix(prefix): v for k, v in self.tensors.items() if k.startswith(prefix)}


class DamagedError(Exception):
    """A file whose bytes are not those that were written."""


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(folder.glob("step-*.safetensors"))


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int) -> None:
    """Write a checkpoint, then let the oldest go."""
    header = {"step": str(checkpoint.step), "rest": json.dumps(checkpoint.rest), "digest": _digest(checkpoint.tensors)}
    files.make_folder(folder)
    write_tensors(folder / f"step-{checkpoint.step:09d}.safetensors", checkpoint.tensors, header)
    for old in list_checkpoints(folder)[:-keep]:
        old.unlink(missing_ok=True)


def load_checkpoint(path: Path) -> Checkpoint:
    """One checkpoint; `DamagedError` if its bytes are not those that were written."""
    try:
        tensors, header = read_tensors(path)
        if _digest(tensors) != header["digest"]:
            raise DamagedError(f"{path.name} is not as it was written")
        return Checkpoint(int(header["step"]), tensors, json.loads(header["rest"]))
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DamagedError(f"{path.name} is damaged ({error})") from error


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint; damaged ones are told of and set aside. What a kill left half-written is removed."""
    for partial in folder.glob(f"*{files.PARTIAL}"):
        partial.unlink(missing_ok=True)
    for path in reversed(list_checkpoints(folder)):
        try:
            return load_checkpoint(path)
        except DamagedError as error:
            aside = path.rename(path.with_suffix(".damaged"))
            told = f"{error}: going on from the checkpoint before it (the file is kept as {aside.name})"
            warnings.warn(told, stacklevel=2)
    return None


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Of names, kinds, shapes and bytes."""
    out = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        out.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        out.update(tensor.flatten().view(torch.uint8).numpy().data)
    return out.hexdigest()
