"""Heads of detection and segmentation on a backbone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import nn

from superformer.errors import SuperformerError, nearest
from superformer.transfer.backbone import Backbone
from superformer.transfer.heads import detection, segmentation
from superformer.transfer.heads.cascade import cascade_mask_rcnn
from superformer.transfer.heads.settings import HeadSettings
from superformer.transfer.task import HEADS, TaskModel

Build = Callable[[Backbone, int, HeadSettings], nn.Module]
BUILDS: Mapping[str, Build] = {
    "retinanet": detection.retinanet,
    "faster-rcnn": detection.faster_rcnn,
    "mask-rcnn": detection.mask_rcnn,
    "cascade-mask-rcnn": cascade_mask_rcnn,
    "semantic-fpn": segmentation.semantic_fpn,
    "upernet": segmentation.upernet,
    "segformer": segmentation.segformer,
    "dpt": segmentation.dpt,
}


def wants_blocks(head: str) -> bool:
    """Whether a head reads several blocks of a plain transformer rather than a pyramid of its last map."""
    return head == "dpt"


def build(
    task: str, head: str, backbone: Backbone, classes: int, settings: HeadSettings | None = None, seed: int = 0
) -> TaskModel:
    """A model of a task: the backbone with a head of so many classes (the background is none of them), with initial
    weights drawn from ``seed``."""
    if task not in HEADS:
        raise SuperformerError(f"unknown task {task!r}: {nearest(task, list(HEADS))}")
    known = [name for name in HEADS[task] if name in BUILDS]
    if head not in known:
        raise SuperformerError(f"{task} has no head {head!r}: {nearest(head, known)}")
    if classes < 1:
        raise SuperformerError(f"a head needs one class or more, not {classes}")
    if wants_blocks(head) != (backbone.plain and len(set(backbone.strides)) == 1) and backbone.plain:
        which = "True" if wants_blocks(head) else "False"
        raise SuperformerError(f"{head} on a plain transformer needs backbone(..., blocks={which})")
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return cast(TaskModel, BUILDS[head](backbone, classes, settings or HeadSettings()))
