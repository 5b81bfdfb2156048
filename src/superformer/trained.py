"""A trained supernet as a file: ``supernet.safetensors``, with its space and its classes in the header."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from superformer import files
from superformer.build import supernet
from superformer.errors import SuperformerError
from superformer.families.base import Network
from superformer.space import Space


def save_supernet(net: Network, path: Path, classes: Sequence[str], **facts: object) -> None:
    """Write a supernet; ``facts`` are kept beside it (the step, the normalisation of pictures)."""
    tensors = {k: v.detach().cpu().contiguous() for k, v in net.state_dict().items() if not k.startswith(net.training_only)}
    header = {"space": net.space.to_json(), "sharing": net.sharing.rule, "classes": json.dumps(list(classes)), "facts": json.dumps(facts)}
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
