"""What predictions are worth: COCO's average precision of boxes and masks, the mean intersection over union of
segmentation at one scale or at several with flips, the share of questions that are answered. All are shares.

Predictions come one at a time, in the order of the split, and only what counts is kept of each: masks of a whole test
set would fit no memory. Everything is scored at the size of the pictures as they are stored."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from superformer.data.stores import Ints
from superformer.errors import SuperformerError, nearest
from superformer.transfer.examples.coco import Boxes, encoded
from superformer.transfer.examples.masks import Segments
from superformer.transfer.examples.questions import Questions
from superformer.transfer.examples.variation import IGNORED
from superformer.transfer.task import Prediction, Split, Target, TaskData, TaskName

SPLITS = ("train", "choice", "test")
SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
"""Of the multi-scale test (MMSegmentation's, which Swin and S3 use)."""
MASK_FROM = 0.5
"""The probability from which on a pixel belongs to an instance."""
FIGURES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
"""The first six numbers of COCO's summary."""
Scores = dict[str, dict[str, Any]]


def score(task: TaskName, data: TaskData, split: Split | str, predictions: Iterable[Prediction]) -> Scores:
    """``metrics`` of predictions, one a picture (vqa: a question) in the order of the split, and the same
    ``by_class``. ``split``: a part of the data or its name."""
    part = _part(data, split)
    if isinstance(part, Boxes):
        return _average_precision(data, part, predictions, masks=task == "instance")
    if isinstance(part, Segments):
        return _intersection_over_union(data, part, predictions)
    if isinstance(part, Questions):
        return _answered(data, part, predictions)
    raise SuperformerError(f"there are no metrics for the task {task!r} on {type(part).__name__}")


def _part(data: TaskData, split: Split | str) -> Split:
    if not isinstance(split, str):
        return split
    if split not in SPLITS:
        raise SuperformerError(f"unknown split {split!r}: {nearest(split, SPLITS)}")
    part: Split = getattr(data, split)
    return part


def _in_order(split: Any, predictions: Iterable[Prediction]) -> Iterator[tuple[int, Prediction]]:
    """Predictions with their numbers; there must be one for each."""
    done = 0
    for k, prediction in enumerate(predictions):
        if k >= len(split):
            raise SuperformerError(f"there are more predictions than the {len(split)} examples of the split")
        done = k + 1
        yield k, prediction
    if done != len(split) or not done:
        raise SuperformerError(f"there are {done} predictions for the {len(split)} examples of the split")


# --- boxes and instance masks ---


def _average_precision(data: TaskData, split: Boxes, predictions: Iterable[Prediction], masks: bool) -> Scores:
    found: list[dict[str, Any]] = []
    for k, prediction in _in_order(split, predictions):
        found += _detections(split, k, prediction, masks)
    metrics: dict[str, Any] = {}
    counts = np.bincount([i.label for p in split.pictures for i in p.instances if not i.crowd], minlength=1)
    by_class: dict[str, Any] = {
        name: {"count": int(counts[label]) if label < len(counts) else 0} for label, name in enumerate(data.classes, 1)
    }
    for kind, prefix in (("bbox", ""), ("segm", "mask_"))[: 2 if masks else 1]:
        figures, classes = _coco(data, split, found, kind)
        metrics |= {prefix + name: value for name, value in zip(FIGURES, figures, strict=True)}
        for name, value in zip(data.classes, classes, strict=True):
            by_class[name][f"{prefix}ap"] = value
    return {"metrics": metrics, "by_class": by_class}


def _detections(split: Boxes, k: int, prediction: Prediction, masks: bool) -> Iterator[dict[str, Any]]:
    """What was found in a picture, at the picture's stored size, in COCO's form."""
    stored, given = split.pictures[k].size, split.given(k)
    scale = torch.tensor([stored[1] / given[1], stored[0] / given[0]] * 2)
    boxes = prediction["boxes"].detach().cpu().float() * scale
    boxes = torch.cat([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1).tolist()  # x, y, width, height
    labels, scores = prediction["labels"].tolist(), prediction["scores"].tolist()
    runs = _runs(prediction["masks"], stored) if masks else repeat(None)
    for box, label, value, run in zip(boxes, labels, scores, runs, strict=False):
        own = {"image_id": k + 1, "category_id": label, "bbox": box, "score": value}
        yield own if run is None else own | {"segmentation": run}


def _runs(masks: Tensor, size: tuple[int, int]) -> Iterator[Any]:
    """Masks of probabilities (n, height, width) at another size, run-length coded one by one."""
    from pycocotools import mask

    for own in masks.detach().cpu().float():
        large = F.interpolate(own[None, None], size=size, mode="bilinear", align_corners=False)[0, 0]
        yield mask.encode(np.asfortranarray((large > MASK_FROM).numpy().astype(np.uint8)))


def _coco(data: TaskData, split: Boxes, found: Sequence[Any], kind: str) -> tuple[list[float | None], list[Any]]:
    """COCO's six figures of boxes or masks, and the average precision of each class; none where nothing counts."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools tells its progress
        truth, results = COCO(), COCO()
        truth.dataset, results.dataset = _truth(data, split, kind), _results(data, split, found, kind)
        truth.createIndex()
        results.createIndex()
        test = COCOeval(truth, results, kind)
        test.evaluate()
        test.accumulate()
        test.summarize()
    precision = test.eval["precision"][..., 0, -1]  # (overlaps, recalls, classes), all areas, the most detections
    classes = [own[own > -1] for own in np.moveaxis(precision, 2, 0)]
    return [_share(v) for v in test.stats[:6]], [float(own.mean()) if own.size else None for own in classes]


def _share(value: float) -> float | None:
    """COCO says -1 where there is nothing to be found."""
    return None if value < 0 else float(value)


def _listed(data: TaskData, split: Boxes) -> dict[str, Any]:
    images = [{"id": k, "height": p.size[0], "width": p.size[1]} for k, p in enumerate(split.pictures, 1)]
    return {"images": images, "categories": [{"id": k, "name": name} for k, name in enumerate(data.classes, 1)]}


def _truth(data: TaskData, split: Boxes, kind: str) -> dict[str, Any]:
    """Numbered from 1: pycocotools takes an object of number 0 for none."""
    annotations: list[dict[str, Any]] = []
    for k, picture in enumerate(split.pictures, 1):
        for own in picture.instances:
            x1, y1, x2, y2 = own.box
            made: dict[str, Any] = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": own.area, "iscrowd": int(own.crowd)}
            if kind == "segm":
                made["segmentation"] = encoded(own.segmentation, picture.size)
            annotations.append(made | {"id": len(annotations) + 1, "image_id": k, "category_id": own.label})
    return _listed(data, split) | {"annotations": annotations}


def _results(data: TaskData, split: Boxes, found: Sequence[Any], kind: str) -> dict[str, Any]:
    from pycocotools import mask

    out = []
    for number, own in enumerate(found, 1):
        area = float(mask.area(own["segmentation"])) if kind == "segm" else own["bbox"][2] * own["bbox"][3]
        out.append(own | {"id": number, "area": area, "iscrowd": 0})
    return _listed(data, split) | {"annotations": out}


# --- segmentation ---


def _intersection_over_union(data: TaskData, split: Segments, predictions: Iterable[Prediction]) -> Scores:
    """From the counts of (truth, prediction) of all pixels of all pictures, as everybody counts."""
    n = len(data.classes)
    counts: Ints = np.zeros((n, n), dtype=np.int64)
    for k, prediction in _in_order(split, predictions):
        truth = split.truth(k)
        logits = prediction["logits"].detach().cpu().float()
        if logits.shape[-2:] != truth.shape:
            logits = F.interpolate(logits[None], size=truth.shape, mode="bilinear", align_corners=False)[0]
        counted = truth != IGNORED
        pairs = n * truth[counted] + logits.argmax(0).numpy()[counted]
        counts += np.bincount(pairs, minlength=n * n).reshape(n, n)
    right, there, said = np.diag(counts), counts.sum(1), counts.sum(0)
    union = there + said - right
    iou = [float(r / u) if u else None for r, u in zip(right, union, strict=True)]
    known = [v for v in iou if v is not None]
    if not known:
        raise SuperformerError("all pixels of the masks are ignored: there is nothing to score")
    recall = [float(r / t) for r, t in zip(right, there, strict=True) if t]
    metrics = {
        "miou": float(np.mean(known)),
        "pixel_accuracy": float(right.sum() / max(counts.sum(), 1)),
        "class_accuracy": float(np.mean(recall)),
    }
    shares = there / max(counts.sum(), 1)
    by_class = {c: {"iou": v, "share": float(s)} for c, v, s in zip(data.classes, iou, shares, strict=True)}
    return {"metrics": metrics, "by_class": by_class}


class Predictor(Protocol):
    """What `TaskModel` promises."""

    def predict(self, pictures: Sequence[Tensor], targets: Sequence[Target]) -> list[Prediction]: ...


def predict_scales(
    model: Predictor, pictures: Sequence[Tensor], targets: Sequence[Target],
    scales: Sequence[float] = SCALES, flip: bool = True,
) -> list[Prediction]:  # fmt: skip
    """Segmentation at several scales, also mirrored: the mean of the probabilities, as logits."""
    sums: list[Tensor] = []
    for scale in scales:
        sized = [_at_scale(p, scale) for p in pictures]
        for mirrored in (False, True)[: 2 if flip else 1]:
            found = model.predict([p.flip(-1) for p in sized] if mirrored else sized, targets)
            for k, prediction in enumerate(found):
                own = prediction["logits"].float()
                own = own.flip(-1) if mirrored else own
                size = pictures[k].shape[-2:]
                share = F.interpolate(own[None], size=size, mode="bilinear", align_corners=False)[0].softmax(0)
                if k < len(sums):
                    sums[k] += share
                else:
                    sums.append(share)
    return [{"logits": (total / total.sum(0)).clamp(min=1e-12).log()} for total in sums]


def _at_scale(picture: Tensor, scale: float) -> Tensor:
    if scale == 1:
        return picture
    size = [max(round(side * scale), 1) for side in picture.shape[-2:]]
    return F.interpolate(picture[None], size=size, mode="bilinear", align_corners=False, antialias=True)[0]


# --- questions ---


def _answered(data: TaskData, split: Questions, predictions: Iterable[Prediction]) -> Scores:
    """VQA's accuracy: what the best answer is worth, on average; questions that no class answers count as wrong."""
    worth: list[float] = []
    by_answer: dict[str, list[float]] = {}
    for k, prediction in _in_order(split, predictions):
        chosen = data.classes[int(prediction["scores"].argmax())]
        own = dict(split.questions[k].credit)
        worth.append(own.get(chosen, 0.0))
        by_answer.setdefault(next(iter(own)), []).append(worth[-1])
    told = ((a, by_answer[a]) for a in data.classes if a in by_answer)
    by_class = {answer: {"accuracy": float(np.mean(own)), "count": len(own)} for answer, own in told}
    return {"metrics": {"accuracy": float(np.mean(worth))}, "by_class": by_class}
