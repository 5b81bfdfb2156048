"""Pictures of what a model finds: detections and masks over the picture (found, missed, wrong), segmentation beside the
truth, questions with answers and where the network looked. They are drawn with the scores, and shown in the report."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torchvision.ops import box_iou
from torchvision.utils import draw_bounding_boxes, draw_segmentation_masks

from superformer import files
from superformer.cost.runtimes import evaluating
from superformer.transfer.evaluation import predictions, some
from superformer.transfer.folder import PICTURES, TransferRun
from superformer.transfer.settings import Transfer
from superformer.transfer.task import Prediction, Target, TaskData

LIST = "pictures.json"
SHOWN, SIDE = 8, 480
"""Pictures, and the longest side of each."""
CERTAIN, OVERLAP = 0.5, 0.5
"""The score from which on a detection is drawn; what it must share with an object to have found it."""
FOUND, MISSED, WRONG = (0, 158, 115), (240, 170, 0), (213, 60, 40)
QUALITY = 88


def draw_examples(
    run: TransferRun, model: nn.Module, data: TaskData, settings: Transfer, device: torch.device
) -> list[dict[str, Any]]:
    """Draw some test pictures, always the same, into the folder of a transfer."""
    split, rows = some(data.test, SHOWN, seed=1), list[dict[str, Any]]()
    files.make_folder(run.folder / PICTURES)
    for k, prediction in enumerate(predictions(model, split, device, 0)):
        example = split.example(k)
        picture = pixels(example.picture, settings)
        if settings.task == "segment":
            drawn, told = segmentation(picture, example.target["mask"], prediction["logits"].argmax(0), data.classes)
        elif settings.task == "vqa":
            looked = _looked(model, example.picture.to(device), example.target["question"].to(device))
            drawn, told = answer(picture, example.target, prediction, data, looked)
        else:
            drawn, told = detections(picture, example.target, prediction, data.classes)
        name = f"{PICTURES}/{k}.jpg"
        files.write(run.folder / name, as_jpeg(drawn))
        rows.append({"file": name, "told": told})
    files.write_object(run.folder / LIST, {"pictures": rows, "colours": _legend(data.classes, settings.task)})
    return rows


@torch.no_grad()
def _looked(model: nn.Module, picture: Tensor, question: Tensor) -> Tensor:
    """Where a model looks when it answers, (rows, columns)."""
    where: Callable[[Tensor, Tensor], Tensor] = model.where  # type: ignore[assignment]
    with evaluating(model):
        return where(picture, question).cpu()


def pixels(picture: Tensor, settings: Transfer) -> Tensor:
    """A normalised picture as uint8, (3, height, width)."""
    mean, std = (torch.tensor(v)[:, None, None] for v in (settings.data.mean, settings.data.std))
    return ((picture.cpu() * std + mean).clamp(0, 1) * 255).round().to(torch.uint8)


def palette(n: int) -> list[tuple[int, int, int]]:
    """Colours that differ, as many as there are classes."""
    wheel = [(k * 0.618034) % 1 for k in range(n)]
    each = [colorsys.hsv_to_rgb(h, 0.75 - 0.2 * (k % 2), 0.9 - 0.25 * (k % 3) / 2) for k, h in enumerate(wheel)]
    return [(round(255 * r), round(255 * g), round(255 * b)) for r, g, b in each]


def _legend(classes: Sequence[str], task: str) -> dict[str, str]:
    if task == "segment":
        return {name: "#{:02x}{:02x}{:02x}".format(*c) for name, c in zip(classes, palette(len(classes)), strict=True)}
    if task == "vqa":
        return {}
    return {w: "#{:02x}{:02x}{:02x}".format(*c) for w, c in (("found", FOUND), ("missed", MISSED), ("wrong", WRONG))}


def segmentation(picture: Tensor, truth: Tensor, found: Tensor, classes: Sequence[str]) -> tuple[Tensor, str]:
    """The picture, the truth and what was found, side by side; ignored pixels stay black in the truth."""
    colours = torch.tensor(palette(len(classes)), dtype=torch.float32)

    def coloured(labels: Tensor) -> Tensor:
        known = labels != 255
        flat = colours[labels.where(known, torch.zeros_like(labels))].permute(2, 0, 1)  # (3, height, width)
        return ((0.35 * picture.float() + 0.65 * flat) * known).round().to(torch.uint8)

    counted = truth != 255
    share = float((found == truth)[counted].float().mean()) if counted.any() else 0.0
    return torch.cat([picture, coloured(truth), coloured(found)], 2), f"{100 * share:.1f} % of the pixels are right"


def matched(target: Target, prediction: Prediction, certain: float = CERTAIN) -> tuple[Tensor, Tensor, Tensor]:
    """Which detections are drawn, which of those found an object (each is found once, by the surest), and which
    objects were found."""
    kept = (prediction["scores"] >= certain).nonzero().flatten()
    kept = kept[prediction["scores"][kept].argsort(descending=True, stable=True)]
    truth, labels = target["boxes"], target["labels"]
    right, seen = torch.zeros(len(kept), dtype=torch.bool), torch.zeros(len(labels), dtype=torch.bool)
    overlap = box_iou(prediction["boxes"][kept], truth) if len(kept) and len(truth) else torch.zeros(len(kept), 0)
    for row, k in enumerate(kept.tolist()):
        free = overlap[row] * (~seen) * (labels == prediction["labels"][k]) if len(labels) else overlap[row]
        if len(free) and float(free.max()) >= OVERLAP:
            right[row], seen[int(free.argmax())] = True, True
    return kept, right, seen


def detections(picture: Tensor, target: Target, prediction: Prediction, classes: Sequence[str]) -> tuple[Tensor, str]:
    """Boxes, and masks if there are any, in the colours of found, missed and wrong."""
    kept, right, seen = matched(target, prediction)
    drawn, names = picture, ("background", *classes)
    colours: list[str | tuple[int, int, int]] = [FOUND if r else WRONG for r in right.tolist()]
    if "masks" in prediction and len(kept):
        drawn = draw_segmentation_masks(drawn, prediction["masks"][kept] > 0.5, alpha=0.45, colors=colours)
    missed = target["boxes"][~seen]
    if len(missed):
        labels = [names[int(c)] for c in target["labels"][~seen]]
        drawn = draw_bounding_boxes(drawn, missed, labels, [MISSED] * len(missed), width=2)
    if len(kept):
        scores = prediction["scores"][kept].tolist()
        labels = [f"{names[int(c)]} {s:.2f}" for c, s in zip(prediction["labels"][kept], scores, strict=True)]
        drawn = draw_bounding_boxes(drawn, prediction["boxes"][kept], labels, colours, width=2)
    n = int(right.sum())
    return drawn, f"{n} found, {len(missed)} missed, {len(kept) - n} wrong"


def answer(
    picture: Tensor, target: Target, prediction: Prediction, data: TaskData, looked: Tensor
) -> tuple[Tensor, str]:
    """The picture, and beside it where the network looked; in words the question and the answers."""
    words = data.about["vocabulary"]
    text = " ".join(words[int(k)] for k in target["question"] if int(k) and not words[int(k)].startswith("["))
    text = text.replace(" ##", "")
    best = int(prediction["scores"].argmax())
    truth = data.classes[target["answer"]] if target["answer"] >= 0 else "an answer that no training question has"
    share = 100 * float(prediction["scores"][best])
    told = f"{text.rstrip(' ?')}? {data.classes[best]} ({share:.0f} %); the answer is {truth}"
    heat = F.interpolate(looked[None, None].float(), size=picture.shape[-2:], mode="bilinear", align_corners=False)[0]
    heat = heat / heat.max().clamp(min=1e-9)
    bright = (picture.float() * (0.2 + 0.8 * heat)).round().to(torch.uint8)
    return torch.cat([picture, bright], 2), told


def as_jpeg(picture: Tensor) -> bytes:
    """A picture as the bytes of a file, not larger than a page shows."""
    made = Image.fromarray(picture.permute(1, 2, 0).numpy())
    most = SIDE * max(1, round(made.width / made.height))
    made.thumbnail((most, most))
    out = io.BytesIO()
    made.save(out, "JPEG", quality=QUALITY)
    return out.getvalue()
