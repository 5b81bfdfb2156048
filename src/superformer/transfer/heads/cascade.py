"""Cascade Mask R-CNN (Cai and Vasconcelos, "Cascade R-CNN", 2018 and 2019), on torchvision's parts.

Three box heads in a row, each trained with boxes that overlap an object by 0.5, 0.6 and 0.7 at least; a head's boxes
are where the next one looks. Every head has a mask head. A detection's score and mask are the mean of the three, its
box is the last one's.

As in Swin's experiments, whose settings S3 took over (S3, section 4.4): box heads of four convolutions with batch norms
and one matrix, boxes for each class, the generalised IoU of decoded boxes as their loss, ten times; the losses of the
heads count 1, 0.5 and 0.25."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead
from torchvision.models.detection.roi_heads import RoIHeads, maskrcnn_loss
from torchvision.ops import MultiScaleRoIAlign, clip_boxes_to_image, generalized_box_iou_loss

from superformer.transfer.backbone import Backbone
from superformer.transfer.heads.detection import Detector, box_parts, mask_parts, rcnn_words
from superformer.transfer.heads.settings import HeadSettings

OVERLAPS = (0.5, 0.6, 0.7)
WEIGHTS = (1.0, 0.5, 0.25)
CODES = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))
"""By what the corrections of a box are multiplied: they become smaller from head to head."""
BOX_WEIGHT = 10.0
"""Of the boxes' loss."""
Boxes = list[Tensor]
Shapes = list[tuple[int, int]]


class CascadeHeads(nn.Module):
    """What comes after the proposals; takes the place of torchvision's RoIHeads."""

    def __init__(self, channels: int, classes: int, settings: HeadSettings):
        super().__init__()
        self.stages = nn.ModuleList(_stage(k, channels, classes, settings) for k in range(len(OVERLAPS)))

    def forward(
        self, features: dict[str, Tensor], proposals: Boxes, shapes: Shapes, targets: Any = None
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        if self.training:
            return [], self._losses(features, proposals, shapes, targets)
        return self._detections(features, proposals, shapes), {}

    def _losses(self, features: dict[str, Tensor], proposals: Boxes, shapes: Shapes, targets: Any) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        for k, (stage, weight) in enumerate(zip(self.stages, WEIGHTS, strict=True)):
            heads: Any = stage
            proposals, matched, labels, _ = heads.select_training_samples(proposals, targets)
            logits, deltas = boxes_of(heads, features, proposals, shapes)
            truth = [_matched(t["boxes"], at, p) for t, at, p in zip(targets, matched, proposals, strict=True)]
            found = box_losses(heads, logits, deltas, proposals, labels, truth)
            found["mask"] = self._mask_loss(heads, features, proposals, shapes, targets, matched, labels)
            losses |= {f"loss_{name}_{k}": weight * loss for name, loss in found.items()}
            known = torch.cat(labels)
            # an object's class where it is known, else the likeliest
            chosen = torch.where(known > 0, known, logits[:, 1:].argmax(1) + 1)
            refined = refine(heads, deltas, proposals, chosen, shapes)
            objects = [t["boxes"] for t in targets]  # which the next head gets anyway
            triples = zip(refined, proposals, objects, strict=True)
            proposals = [new[~_among(old, own)] for new, old, own in triples]
        return losses

    def _mask_loss(
        self, heads: Any, features: dict[str, Tensor], proposals: Boxes, shapes: Shapes, targets: Any,
        matched: Boxes, labels: Boxes,
    ) -> Tensor:  # fmt: skip
        where = [torch.where(own > 0)[0] for own in labels]
        boxes = [p[at] for p, at in zip(proposals, where, strict=True)]
        logits = masks_of(heads, features, boxes, shapes)
        kept = [m[at] for m, at in zip(matched, where, strict=True)]
        masks, classes = [t["masks"] for t in targets], [t["labels"] for t in targets]
        return cast(Tensor, maskrcnn_loss(logits, boxes, masks, classes, kept))

    def _detections(self, features: dict[str, Tensor], proposals: Boxes, shapes: Shapes) -> list[dict[str, Tensor]]:
        scores = []
        for k, stage in enumerate(self.stages):
            logits, deltas = boxes_of(stage, features, proposals, shapes)
            scores.append(logits.softmax(-1))
            if k < len(self.stages) - 1:
                proposals = refine(stage, deltas, proposals, logits[:, 1:].argmax(1) + 1, shapes)
        last: Any = self.stages[-1]
        mean = torch.stack(scores).mean(0).clamp_min(torch.finfo(scores[0].dtype).tiny).log()  # softmax gives the mean
        found = zip(*last.postprocess_detections(mean, deltas, proposals, shapes), strict=True)
        out = [dict(zip(("boxes", "scores", "labels"), one, strict=True)) for one in found]
        boxes = [one["boxes"] for one in out]
        masks = torch.stack([masks_of(stage, features, boxes, shapes).sigmoid() for stage in self.stages]).mean(0)
        # (detections, classes, rows, columns), of which each detection's own class: (detections, 1, rows, columns)
        for one, mask in zip(out, _split(masks, boxes), strict=True):
            one["masks"] = mask[torch.arange(mask.shape[0], device=mask.device), one["labels"]][:, None]
        return out


def _stage(k: int, channels: int, classes: int, settings: HeadSettings) -> RoIHeads:
    """One head of the cascade: torchvision's holder of a box head, a mask head and their targets."""
    boxes, masks = box_parts(channels, classes, settings), mask_parts(channels, classes)
    if settings.box_head == "4conv1fc":
        size = (channels, 7, 7)
        boxes["box_head"] = FastRCNNConvFCHead(size, [channels] * 4, [settings.hidden], norm_layer=nn.BatchNorm2d)
    levels, overlap = ["0", "1", "2", "3"], OVERLAPS[k]
    return RoIHeads(
        MultiScaleRoIAlign(levels, 7, 2), boxes["box_head"], boxes["box_predictor"],
        overlap, overlap, settings.samples, 0.25, CODES[k], settings.score, settings.nms, settings.detections,
        MultiScaleRoIAlign(levels, 14, 2), masks["mask_head"], masks["mask_predictor"],
    )  # fmt: skip


def boxes_of(heads: Any, features: dict[str, Tensor], proposals: Boxes, shapes: Shapes) -> tuple[Tensor, Tensor]:
    """Logits (boxes, classes) and corrections (boxes, 4 * classes)."""
    logits, deltas = heads.box_predictor(heads.box_head(heads.box_roi_pool(features, proposals, shapes)))
    return logits, deltas


def masks_of(heads: Any, features: dict[str, Tensor], boxes: Boxes, shapes: Shapes) -> Tensor:
    """Logits (boxes, classes, 28, 28)."""
    return cast(Tensor, heads.mask_predictor(heads.mask_head(heads.mask_roi_pool(features, boxes, shapes))))


def _own(deltas: Tensor, labels: Tensor) -> Tensor:
    """Of each box the corrections for its class, (boxes, 4)."""
    each = deltas.reshape(deltas.shape[0], -1, 4)
    return each[torch.arange(each.shape[0], device=deltas.device), labels]


def _split(of_all: Tensor, boxes: Boxes) -> Sequence[Tensor]:
    """What belongs to the boxes of each picture. One needs no numbers, which torch's tracer would take for fixed."""
    return [of_all] if len(boxes) == 1 else torch.split(of_all, [len(b) for b in boxes])


def box_losses(
    heads: Any, logits: Tensor, deltas: Tensor, proposals: Boxes, labels: Boxes, truth: Boxes
) -> dict[str, Tensor]:
    """Cross entropy of the classes; generalised IoU of the boxes of objects, over all boxes."""
    known = torch.cat(labels)
    at = torch.where(known > 0)[0]
    boxes = heads.box_coder.decode_single(_own(deltas, known)[at], torch.cat(proposals)[at])
    apart = generalized_box_iou_loss(boxes, torch.cat(truth)[at], reduction="sum")
    classes = nn.functional.cross_entropy(logits, known)
    return {"classifier": classes, "box_reg": BOX_WEIGHT * apart / max(len(known), 1)}


@torch.no_grad()
def refine(heads: Any, deltas: Tensor, proposals: Boxes, labels: Tensor, shapes: Shapes) -> Boxes:
    """Where the next head looks."""
    boxes = heads.box_coder.decode_single(_own(deltas, labels), torch.cat(proposals))
    return [clip_boxes_to_image(p, shape) for p, shape in zip(_split(boxes, proposals), shapes, strict=True)]


def _matched(boxes: Tensor, at: Tensor, like: Tensor) -> Tensor:
    """The object of each proposal; anything where a picture has none."""
    return boxes.to(like.dtype)[at] if len(boxes) else torch.zeros_like(like)


def _among(boxes: Tensor, others: Tensor) -> Tensor:
    """Which boxes are one of the others."""
    return (boxes[:, None] == others[None].to(boxes.dtype)).all(-1).any(1)


def cascade_mask_rcnn(backbone: Backbone, classes: int, settings: HeadSettings) -> Detector:
    words = rcnn_words(backbone, settings)
    channels = words["backbone"].out_channels
    net = FasterRCNN(**words, **box_parts(channels, classes, settings))
    net.roi_heads = CascadeHeads(channels, classes, settings)
    return Detector(net, 0, ("boxes", "labels", "masks"))
