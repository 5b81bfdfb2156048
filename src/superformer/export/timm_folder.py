"""A folder for timm: ``timm.create_model("local-dir:FOLDER", pretrained=True)``, once superformer is imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from superformer import files
from superformer.export.proof import Floats, preparation
from superformer.export.timm_entry import ENTRY
from superformer.files import CONFIG
from superformer.stored import Stored, save_network


def write(stored: Stored, folder: Path) -> None:
    """The files of `superformer.stored`, with timm's words added to the configuration: both read the folder."""
    save_network(stored.net, folder, stored.classes, stored.mean, stored.std)
    own = json.loads((folder / CONFIG).read_text())
    kept = {key: stored.config[key] for key in ("crop", "interpolation") if key in stored.config}
    files.write(folder / CONFIG, json.dumps(own | kept | config(stored), indent=1) + "\n")


def config(stored: Stored) -> dict[str, Any]:
    """What timm reads."""
    of = preparation(stored)
    return {
        "architecture": ENTRY,
        "num_classes": stored.net.num_classes,
        "num_features": stored.net.num_features,
        "model_args": {"arch": json.loads(stored.net.space.smallest().to_json())},
        "pretrained_cfg": {
            "input_size": [of.channels, of.size, of.size],
            "interpolation": of.interpolation,
            "crop_pct": of.crop,
            "crop_mode": "center",
            "mean": list(stored.mean),
            "std": list(stored.std),
            "num_classes": stored.net.num_classes,
            "label_names": list(stored.classes) or None,
            "classifier": "head",
        },
    }


def answers(folder: Path, batches: list[Any]) -> list[Floats]:
    """What the network computes that timm makes of the folder."""
    import timm

    net = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    with torch.no_grad():
        return [net(x).numpy() for x in batches]
