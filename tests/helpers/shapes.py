"""Tiny pictures for other tasks than classification: a red or green square each, with masks and in COCO's form; and a
tiny network to be their backbone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from helpers.training import SPACE
from superformer.runs.storage import save_network
from superformer.spaces import model

NAMES = ("red", "green")
WORDS = ("data.size=32", "data.crop=32", "data.scales=[1,1]", "data.distort=0", "data.workers=0", "head.channels=32")
"""What makes a transfer of these pictures quick."""


def shapes(root: Path, train: int = 16, test: int = 4, size: tuple[int, int] = (32, 40)) -> Path:
    """A folder that all tasks with boxes and masks can read."""
    rng = np.random.default_rng(0)
    for part, n in (("train", train), ("test", test)):
        listed: dict[str, list[dict[str, object]]] = {"images": [], "annotations": []}
        for folder in ("images", "masks"):
            (root / part / folder).mkdir(parents=True)
        for k in range(n):
            picture, mask = rng.integers(0, 60, (*size, 3), dtype=np.uint8), np.zeros(size, np.uint8)
            y, x, side, kind = *(int(v) for v in rng.integers(1, 12, 2)), int(rng.integers(12, 18)), k % 2
            picture[y : y + side, x : x + side, kind] = 230
            mask[y : y + side, x : x + side] = 1 + kind
            Image.fromarray(picture).save(root / part / "images" / f"{k}.png")
            Image.fromarray(mask).save(root / part / "masks" / f"{k}.png")
            listed["images"].append({"id": k, "file_name": f"{k}.png", "height": size[0], "width": size[1]})
            corners = [x, y, x + side, y, x + side, y + side, x, y + side]
            own = {"id": k, "image_id": k, "category_id": 1 + kind, "bbox": [x, y, side, side], "iscrowd": 0}
            listed["annotations"].append({**own, "area": side * side, "segmentation": [corners]})
        kinds = [{"id": 1 + k, "name": name} for k, name in enumerate(NAMES)]
        (root / f"instances_{part}.json").write_text(json.dumps({**listed, "categories": kinds}))
    (root / "classes.json").write_text(json.dumps({"class_names": ["nothing", *NAMES]}))
    return root


def network(folder: Path, classes: int = 10) -> Path:
    """The folder of a tiny transformer."""
    save_network(model(SPACE.largest(), classes), folder, [f"class {k}" for k in range(classes)])
    return folder
