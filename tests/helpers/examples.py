"""Tiny data sets of boxes, masks and questions: coloured rectangles on grey."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COLOURS = {"red": (220, 40, 40), "blue": (40, 60, 220)}
SIZE = (24, 32)


def rectangle(rng: np.random.Generator, size: tuple[int, int] = SIZE) -> tuple[np.ndarray, tuple[int, ...], str]:
    """A picture with one coloured rectangle, its x, y, width, height and its colour."""
    height, width = size
    w, h = int(rng.integers(8, width // 2)), int(rng.integers(8, height // 2))
    x, y = int(rng.integers(0, width - w)), int(rng.integers(0, height - h))
    colour = str(rng.choice(list(COLOURS)))
    picture = rng.integers(110, 140, (height, width, 3), dtype=np.uint8)
    picture[y : y + h, x : x + w] = COLOURS[colour]
    return picture, (x, y, w, h), colour


def coco_part(root: Path, part: str, n: int, seed: int = 0) -> dict[str, Any]:
    """``n`` pictures in ROOT/PART and ROOT/instances_PART.json; the content of the json."""
    rng, ids = np.random.default_rng(seed), {name: k for k, name in enumerate(COLOURS, 3)}
    (root / part).mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for k in range(n):
        picture, (x, y, w, h), colour = rectangle(rng)
        Image.fromarray(picture).save(root / part / f"{k}.png")
        images.append({"id": 10 + k, "file_name": f"{k}.png", "height": SIZE[0], "width": SIZE[1]})
        outline = [[x, y, x + w, y, x + w, y + h, x, y + h]]
        own = {"id": k, "image_id": 10 + k, "category_id": ids[colour], "bbox": [x, y, w, h], "area": w * h}
        annotations.append(own | {"iscrowd": 0, "segmentation": outline})
    categories = [{"id": k, "name": name} for name, k in ids.items()]
    content = {"images": images, "annotations": annotations, "categories": categories}
    write_json(root / f"instances_{part}.json", content)
    return content


def coco_folder(root: Path, n: int = 12) -> Path:
    coco_part(root, "train", n)
    coco_part(root, "test", n // 2, seed=1)
    return root


def mask_part(root: Path, n: int, seed: int = 0) -> None:
    """``n`` pictures and masks: 0 background, 1 red, 2 blue, 9 the rectangle's upper edge."""
    rng = np.random.default_rng(seed)
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for k in range(n):
        picture, (x, y, w, h), colour = rectangle(rng)
        mask = np.zeros(SIZE, dtype=np.uint8)
        mask[y : y + h, x : x + w] = 1 + list(COLOURS).index(colour)
        mask[y, x : x + w] = 9
        Image.fromarray(picture).save(root / "images" / f"{k}.png")
        Image.fromarray(mask).save(root / "masks" / f"{k}.png")


def mask_folder(root: Path, n: int = 12, names: bool = True) -> Path:
    mask_part(root / "train", n)
    mask_part(root / "val", n // 2, seed=1)
    if names:
        write_json(root / "classes.json", {"class_names": ["grey", *COLOURS], "ignore_index": 9})
    return root


def questions_part(root: Path, part: str, n: int, seed: int = 0) -> list[dict[str, Any]]:
    """``n`` pictures in ROOT/PART/images and two questions about each in ROOT/questions_PART.json."""
    rng = np.random.default_rng(seed)
    (root / part / "images").mkdir(parents=True, exist_ok=True)
    questions = []
    for k in range(n):
        picture, (x, _, w, _), colour = rectangle(rng)
        Image.fromarray(picture).save(root / part / "images" / f"{k}.png")
        side = "left" if x + w / 2 < SIZE[1] / 2 else "right"
        questions += [{"image": f"{k}.png", "question": "What colour is it?", "answer": colour}]
        questions += [{"image": f"{k}.png", "question": f"Is anything {side}?", "answers": ["Yes", "of course"]}]
    write_json(root / f"questions_{part}.json", {"questions": questions})
    return questions


def questions_folder(root: Path, n: int = 12) -> Path:
    questions_part(root, "train", n)
    questions_part(root, "test", n // 2, seed=1)
    return root


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))
