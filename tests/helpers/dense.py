"""Tiny networks of every family with the stages of their published ones, and tiny pictures with things to find."""

from __future__ import annotations

import torch

import superformer as sf
from superformer.space import Space, Stage
from superformer.transfer.backbone import Backbone
from superformer.transfer.networks import backbone
from superformer.transfer.task import Batch

WIDTHS = (8, 12, 16, 24)
ATTENTION = {"heads": 2, "attn": 8, "mlp": 16}
CONVOLUTION = {"kernel": 3, "expand": 2}


def _pyramid(family: str, block: dict, size: int = 64, stages: int = 4, **more: object) -> Space:
    body = tuple(Stage(block, depth=1, choices={"width": w}) for w in WIDTHS[:stages])
    return Space("tiny", family, body, img_size=size, **more)


def _resnet() -> Space:
    body = (Stage({"mid1": 4, "mid2": 4}, depth=1, choices={"width": w, "entry1": 4, "entry2": 4}) for w in WIDTHS)
    return Space("tiny", "resnet", tuple(body), {"stem": 8}, img_size=64)


def _nasvit() -> Space:
    convs = [Stage({}, 1, {"width": 8, **CONVOLUTION}) for _ in range(3)]
    tokens = [Stage({}, 1, {"width": w, "mlp": 16, "windows": 1}) for w in (8, 12, 16, 24)]
    top = {"stem": 8, "head": 8, "resolution": 64}
    return Space("tiny", "nasvit", (*convs, *tokens), top, img_size=64, options={"head_dim": 4})


SPACES = {
    "swin": lambda: _pyramid("swin", {**ATTENTION, "window": 2}),
    "twins": lambda: _pyramid("twins", {**ATTENTION, "type": "local"}, options={"ws": 7, "sr": 4}),
    "vit_res": lambda: _pyramid("vit_res", ATTENTION, 56, 3),
    "vit": lambda: Space("tiny", "vit", (Stage(ATTENTION, 4),), {"patch_size": 16, "width": 16}, img_size=64),
    "nasvit": _nasvit,
    "resnet": _resnet,
}


def network(family: str) -> sf.families.network.Network:
    return sf.supernet(SPACES[family](), 5, seed=1)


def tiny(family: str = "resnet", **settings: object) -> Backbone:
    return backbone(network(family), **settings)


def scene(size: tuple[int, int] = (64, 96), seed: int = 0) -> tuple[torch.Tensor, dict]:
    """A picture with two bright rectangles on noise, and where they are: boxes, classes 1 and 2, masks; and the class
    of each pixel, with a stripe that does not count."""
    picture = 0.1 * torch.randn(3, *size, generator=torch.Generator().manual_seed(seed))
    boxes = torch.tensor([[8.0, 8.0, 40.0, 40.0], [48.0, 16.0, 80.0, 56.0]])
    masks = torch.zeros(2, *size, dtype=torch.uint8)
    for k, (x1, y1, x2, y2) in enumerate(boxes.int().tolist()):
        picture[k, y1:y2, x1:x2] += 2.0
        masks[k, y1:y2, x1:x2] = 1
    pixels = masks[0].long() + 2 * masks[1].long()
    pixels[:, -8:] = 255
    return picture, {"boxes": boxes, "labels": torch.tensor([1, 2]), "masks": masks, "mask": pixels}


def batch(copies: int = 2) -> Batch:
    """The same picture so many times."""
    picture, target = scene()
    return Batch([picture] * copies, [target] * copies)
