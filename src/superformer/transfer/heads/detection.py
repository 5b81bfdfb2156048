"""torchvision's RetinaNet, Faster R-CNN and Mask R-CNN on any backbone.

Between the two is a feature pyramid, torchvision's as well. RetinaNet uses the levels from stride 8 on and makes two
more of the backbone's last map (Lin et al. 2017, section 4: "P6 is obtained via a 3x3 stride-2 conv on C5"), as
MMDetection does; torchvision's first ResNet-50 made them of P5. Pictures come as the network reads them: torchvision's
own resizing and normalising are left out."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.models.detection.rpn import RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelMaxPool, LastLevelP6P7

from superformer.transfer.backbone import Backbone
from superformer.transfer.heads.settings import HeadSettings
from superformer.transfer.task import Batch, Prediction, Target

RATIOS = (0.5, 1.0, 2.0)
"""Height by width of the anchors of each place."""
OCTAVE = tuple(2 ** (k / 3) for k in range(3))
"""Sizes of RetinaNet's anchors, of each level's own."""
PREDICTORS = (RPNHead, FastRCNNPredictor, MaskRCNNPredictor, RetinaNetHead)
"""Layers that give boxes, masks and their classes."""


class Pyramid(nn.Module):
    """A backbone and its feature pyramid, as torchvision's detectors want one."""

    def __init__(self, body: Backbone, channels: int, retina: bool):
        super().__init__()
        self.body, self.first, self.out_channels = body, int(retina), channels
        if retina:
            body.only(range(1, len(body.channels)))
        taken = list(body.channels[self.first :])
        extra = LastLevelP6P7(taken[-1], channels) if retina else LastLevelMaxPool()
        if retina:
            cast(Any, extra).use_P5 = False  # else of P5 where both have as many channels
        self.fpn = FeaturePyramidNetwork(taken, channels, extra)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = self.body(x)[self.first :]
        return cast("dict[str, Tensor]", self.fpn(OrderedDict((str(k), y) for k, y in enumerate(maps))))


class AsGiven(GeneralizedRCNNTransform):
    """Pictures as they are, padded to one size."""

    def __init__(self, divisible: int):
        super().__init__(0, 0, [0.0], [1.0], size_divisible=divisible)

    def normalize(self, image: Tensor) -> Tensor:
        return image

    def resize(self, image: Tensor, target: Any = None) -> tuple[Tensor, Any]:
        return image, target


def widened(module: nn.Module, given: Any, out: Any) -> Any:
    """What a layer gives in single precision at least: in half precision boxes would be pixels off."""
    if isinstance(out, Tensor):
        return out.to(torch.promote_types(out.dtype, torch.float32))
    if isinstance(out, dict):
        return {name: widened(module, given, y) for name, y in out.items()}
    return type(out)(widened(module, given, y) for y in out)


class Detector(nn.Module):
    """A detector of torchvision's (``detector``) as a model of a task. ``first``: the label that is its class 0."""

    def __init__(self, detector: nn.Module, first: int, keys: tuple[str, ...]):
        super().__init__()
        self.detector, self.first, self.keys = detector, first, keys
        detector.transform = AsGiven(32)
        for module in detector.modules():
            if isinstance(module, PREDICTORS):
                module.register_forward_hook(widened)

    @property
    def backbone(self) -> Backbone:
        return cast(Backbone, cast(Any, self.detector).backbone.body)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        targets = [{key: target[key] for key in self.keys} for target in batch.targets]
        for target in targets:
            target["labels"] = target["labels"] - self.first
        return cast("dict[str, Tensor]", self.detector(list(batch.pictures), targets))

    def predict(self, pictures: Sequence[Tensor], targets: Sequence[Target]) -> list[Prediction]:
        found: list[dict[str, Tensor]] = self.detector(list(pictures))
        for one in found:
            one["labels"] = one["labels"] + self.first
            if "masks" in one:
                one["masks"] = one["masks"][:, 0]  # (n, 1, height, width)
        return list(found)


class Fixed(nn.Module):
    """A backbone as a graph for one size of pictures. It is no part of the module: torch's tracer, which sets the mode
    of all parts, takes its weights for constants."""

    def __init__(self, body: Backbone, size: tuple[int, int]):
        super().__init__()
        like = next(body.parameters())
        picture = torch.zeros(1, 3, *size, device=like.device, dtype=like.dtype)
        graph = torch.export.export(body.eval(), (picture,), strict=False).module(check_guards=False)
        self.graph = (graph.requires_grad_(False),)

    def forward(self, x: Tensor) -> list[Tensor]:
        return list(self.graph[0](x))


def traceable(model: Detector, size: tuple[int, int]) -> Detector:
    """A copy that torchvision's way to ONNX can trace (``torch.onnx.export(..., dynamo=False)``), for pictures of this
    height and width, multiples of 32: there the sizes of maps are numbers, which our networks compute with."""
    out = copy.deepcopy(model).eval()
    pyramid: Any = out.detector.backbone
    pyramid.body = Fixed(pyramid.body, size)
    return out


def retinanet(backbone: Backbone, classes: int, settings: HeadSettings) -> Detector:
    sizes = tuple(tuple(int(size * part) for part in OCTAVE) for size in settings.anchors)
    net = RetinaNet(
        Pyramid(backbone, settings.channels or 256, retina=True), classes,
        anchor_generator=AnchorGenerator(sizes, (RATIOS,) * len(sizes)),
        score_thresh=settings.score, nms_thresh=settings.nms, detections_per_img=settings.detections,
    )  # fmt: skip
    return Detector(net, 1, ("boxes", "labels"))


def rcnn_words(backbone: Backbone, settings: HeadSettings) -> dict[str, Any]:
    """What torchvision's R-CNNs are made with."""
    anchors = AnchorGenerator(tuple((int(size),) for size in settings.anchors), (RATIOS,) * len(settings.anchors))
    proposals = {"train": 2 * settings.proposals, "test": settings.proposals}
    return {
        "backbone": Pyramid(backbone, settings.channels or 256, retina=False),
        "rpn_anchor_generator": anchors,
        **{f"rpn_{when}_nms_top_n_{split}": n for split, n in proposals.items() for when in ("pre", "post")},
        "box_batch_size_per_image": settings.samples,
        "box_score_thresh": settings.score,
        "box_nms_thresh": settings.nms,
        "box_detections_per_img": settings.detections,
    }


def box_parts(channels: int, classes: int, settings: HeadSettings) -> dict[str, nn.Module]:
    """torchvision's box head, as its own default but for the sizes."""
    head = TwoMLPHead(channels * 7 * 7, settings.hidden)
    return {"box_head": head, "box_predictor": FastRCNNPredictor(settings.hidden, classes + 1)}


def mask_parts(channels: int, classes: int) -> dict[str, nn.Module]:
    """torchvision's mask head, likewise."""
    head = MaskRCNNHeads(channels, (channels,) * 4, 1)
    return {"mask_head": head, "mask_predictor": MaskRCNNPredictor(channels, channels, classes + 1)}


def faster_rcnn(backbone: Backbone, classes: int, settings: HeadSettings) -> Detector:
    words = rcnn_words(backbone, settings)
    parts = box_parts(words["backbone"].out_channels, classes, settings)
    return Detector(FasterRCNN(**words, **parts), 0, ("boxes", "labels"))


def mask_rcnn(backbone: Backbone, classes: int, settings: HeadSettings) -> Detector:
    words = rcnn_words(backbone, settings)
    channels = words["backbone"].out_channels
    parts = box_parts(channels, classes, settings) | mask_parts(channels, classes)
    return Detector(MaskRCNN(**words, **parts), 0, ("boxes", "labels", "masks"))
