"""Stored weights: safetensors files with facts and a checksum of everything in their header. Nothing in them can be
executed, and the same tensors and facts give the same bytes.

* a stand-alone network as a folder: ``model.safetensors`` and ``config.json``;
* a trained supernet as a file: ``supernet.safetensors``, its space and its classes in the header;
* checkpoints: tensors of every kind, the rest as JSON in the header; where they are large, each process writes a part,
  and the file itself, written last, has the checksums of the parts. What a step draws at random comes from the seed
  and the number of the step: no state of a random generator, of a sampler or of a loader is kept, on any rank."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from superformer import files
from superformer.errors import SuperformerError
from superformer.families.network import Network
from superformer.files import CHECKSUM, CONFIG, DamagedError
from superformer.runs.stored import FORMAT, SUPERNET_HOW
from superformer.space import Space
from superformer.space.arch import Arch, expect
from superformer.spaces import model, supernet

WEIGHTS = "model.safetensors"
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str] | None = None) -> str:
    """Write tensors, and facts as text beside them; returns the checksum of all. The order is ours (large elements
    first, then by name; safetensors' own writer mixes the facts), so that files can be compared by their bytes."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    facts = {**(header or {}), CHECKSUM: _checksum(ready, header or {})}
    entries: dict[str, Any] = {"__metadata__": dict(sorted(facts.items()))}
    order, end = sorted(ready, key=lambda name: (-ready[name].element_size(), name)), 0
    for name in order:
        start, end = end, end + ready[name].nbytes
        kind, shape = DTYPES[ready[name].dtype], list(ready[name].shape)
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes

    def write(partial: Path) -> None:
        with open(partial, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in order:
                file.write(_bytes(ready[name]))

    files.write_by(path, write)
    return facts[CHECKSUM]


def read_tensors(path: Path, how: str, *, sealed: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file, and the facts beside them, of which the checksum must be right if it is there; with
    ``sealed`` it must be. ``how``: what to do if the file is damaged."""
    with files.readable(path, how):
        with open(path, "rb"):  # what cannot be opened, safetensors tells in words of its own
            pass
        try:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no dict
                header = file.metadata() or {}
        except (SafetensorError, ValueError, RuntimeError) as error:
            raise DamagedError(f"{path} is damaged ({_first_line(error)}): {how}") from error
    facts = {name: text for name, text in header.items() if name != CHECKSUM}
    if header.get(CHECKSUM) != _checksum(tensors, facts) if CHECKSUM in header else sealed or "version" in header:
        raise DamagedError(f"{path} is not as it was written (its checksum differs): {how}")
    return tensors, header


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.flatten().view(torch.uint8).numpy().data


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
    config["weights"] = write_tensors(folder / WEIGHTS, _weights(net))
    files.write_object(folder / CONFIG, config)


def load_network(folder: str | Path) -> StoredNetwork:
    """The network of a folder, in eval mode."""
    folder, where = Path(folder), str(Path(folder) / CONFIG)
    if not (folder / CONFIG).exists():
        raise SuperformerError(f"{folder} holds no complete network ({CONFIG} and {WEIGHTS})")
    how = f"delete {folder}, and superformer retrain or export writes it again"
    config = files.read_object(folder / CONFIG, how)
    known = {"in_chans", "classes", "mean", "std", "crop", "interpolation", "weights"}
    known |= {"architecture", "num_features", "model_args", "pretrained_cfg", "names"}  # what an export for timm adds
    expect(config, where, {"arch", "num_classes"}, known, SuperformerError)
    tensors, header = read_tensors(folder / WEIGHTS, how)
    with files.understood(folder / CONFIG, how):
        if config.get("weights") != header.get(CHECKSUM):
            raise SuperformerError(f"these are not the weights of {WEIGHTS}")
        arch, classes = Arch.from_json(json.dumps(config["arch"])), config["num_classes"]
        net = model(arch, classes, in_chans=config.get("in_chans", 3))
        net.load_state_dict(_named(tensors, config["names"], net) if "names" in config else tensors)
        pairs = zip(("mean", "std"), IMAGENET, strict=True)
        mean, std = (tuple(map(float, config.get(name, usual))) for name, usual in pairs)
        return StoredNetwork(net.eval(), tuple(map(str, config.get("classes", ()))), mean, std, config)


def _named(tensors: Mapping[str, Tensor], names: Mapping[str, str], net: Network) -> dict[str, Tensor]:
    """Tensors of another tool by our names, in our shapes."""
    state = net.state_dict()
    return {names[name]: tensor.reshape(state[names[name]].shape) for name, tensor in tensors.items()}


def save_supernet(net: Network, path: Path, classes: Sequence[str], **facts: object) -> None:
    """Write a supernet; ``facts`` are kept beside it (the step, the normalisation of pictures)."""
    header = {"space": net.space.to_json(), "sharing": net.sharing.rule, "classes": json.dumps(list(classes))}
    header["version"] = str(FORMAT)  # with a checksum; before it, cyclic sharing had other channels
    write_tensors(path, _weights(net), {**header, "facts": json.dumps(facts)})


def load_supernet(path: Path) -> Network:
    """The supernet of a file, in eval mode."""
    tensors, header = read_tensors(path, SUPERNET_HOW)
    if "space" not in header:
        raise SuperformerError(f"{path} has no space in its header: it is not a supernet of superformer")
    rule = "cyclic-groups" if header["sharing"] == "cyclic" and "version" not in header else header["sharing"]
    with files.understood(path, SUPERNET_HOW):
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


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(folder.glob("step-*.safetensors"))


def part_file(folder: Path, step: int, k: int, parts: int) -> Path:
    return folder / f"part-{step:09d}-{k}-of-{parts}.safetensors"


def save_part(folder: Path, checkpoint: Checkpoint, k: int, parts: int) -> None:
    """Write one of so many parts of a checkpoint, which are about equally large. What is small is in the first one: the
    statistics of norms may be each process's own."""
    sizes, mine = [0] * parts, dict[str, Tensor]()
    for name in sorted(checkpoint.tensors, key=lambda name: (-checkpoint.tensors[name].nbytes, name)):
        tensor = checkpoint.tensors[name]
        owner = sizes.index(min(sizes)) if tensor.ndim > 1 else 0
        sizes[owner] += tensor.nbytes
        if owner == k:
            mine[name] = tensor
    files.make_folder(folder)
    write_tensors(part_file(folder, checkpoint.step, k, parts), mine)


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int, parts: int = 1) -> None:
    """Write a checkpoint, then let the oldest go; of several ``parts``, which are there already, what they are."""
    step, header = checkpoint.step, {"step": str(checkpoint.step), "rest": json.dumps(checkpoint.rest, sort_keys=True)}
    if parts > 1:
        header["parts"] = json.dumps([_sum_of(part_file(folder, step, k, parts)) for k in range(parts)])
    files.make_folder(folder)
    write_tensors(folder / f"step-{step:09d}.safetensors", {} if parts > 1 else checkpoint.tensors, header)
    for old in list_checkpoints(folder)[:-keep]:
        old.unlink(missing_ok=True)
    steps = {path.stem.removeprefix("step-") for path in list_checkpoints(folder)}
    for part in folder.glob("part-*.safetensors"):
        if part.name.split("-")[1] not in steps:
            part.unlink(missing_ok=True)


def _sum_of(path: Path) -> str:
    """The checksum of a part that was just written; whoever reads it, checks it."""
    with safe_open(path, "pt") as file:
        return str((file.metadata() or {})[CHECKSUM])


def load_checkpoint(path: Path) -> Checkpoint:
    """One checkpoint; `DamagedError` if its bytes are not those that were written."""
    how = "the same command goes on without it"
    tensors, header = read_tensors(path, how)
    with files.understood(path, how):
        if CHECKSUM not in header and header["digest"] != digest_tensors(tensors):  # of before: of the tensors alone
            raise SuperformerError("its checksum differs")
        step, rest = int(header["step"]), json.loads(header["rest"])
        if path.stem != f"step-{step:09d}" or not files.has_form(rest, {"optimizer": dict, "guard": dict}):
            raise SuperformerError(f"it says that it is of step {step}")
        sums = json.loads(header.get("parts", "[]"))
        for k, wanted in enumerate(sums):
            own, about = read_tensors(part_file(path.parent, step, k, len(sums)), how, sealed=True)
            if about[CHECKSUM] != wanted:
                raise SuperformerError(f"its part {k} is another one's")
            tensors |= own
        return Checkpoint(step, tensors, rest)


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint; damaged ones are told of and set aside. What a kill left half-written is removed."""
    for partial in folder.glob(f"*{files.PARTIAL}"):
        partial.unlink(missing_ok=True)
    for path in reversed(list_checkpoints(folder)):
        try:
            return load_checkpoint(path)
        except DamagedError as error:
            aside = path.with_suffix(".damaged")
            told = f"{error} (it is kept as {aside.name})"
            with files.disk_errors(aside):
                os.replace(path, aside)
            warnings.warn(told, stacklevel=2)
    return None


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Of names, kinds, shapes and bytes."""
    out = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        out.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        out.update(_bytes(tensor))
    return out.hexdigest()


def _checksum(tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> str:
    """Of the tensors, and of the facts beside them."""
    return files.checksum({**facts, "": digest_tensors(tensors)})
