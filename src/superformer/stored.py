"""A trained stand-alone network as a folder: ``model.safetensors`` and ``config.json``. Nothing in it can be executed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from superformer import files
from superformer.build import model
from superformer.errors import SuperformerError
from superformer.families.base import Network
from superformer.files import CONFIG
from superformer.space.arch import Arch, expect, load_json

WEIGHTS = "model.safetensors"
PREPARED = ("crop", "interpolation")
"""How pictures are cut and resized (`superformer.data.frames.Frame`)."""
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
    tensors = {k: v.detach().cpu().contiguous() for k, v in net.state_dict().items() if not k.startswith(net.training_only)}
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
        config, f"{folder / CONFIG}", {"arch", "num_classes"}, {"in_chans", "classes", "mean", "std", *PREPARED, *TIMM}, SuperformerError
    )
    arch = Arch.from_json(json.dumps(config["arch"]))
    net = model(arch, config["num_classes"], in_chans=config.get("in_chans", 3))
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        raise SuperformerError(f"{folder / WEIGHTS} are not the weights of the network in {CONFIG}: {error}") from error
    mean, std = (tuple(map(float, config.get(name, default))) for name, default in zip(("mean", "std"), IMAGENET, strict=True))
    return Stored(net.eval(), tuple(map(str, config.get("classes", ()))), mean, std, config)
