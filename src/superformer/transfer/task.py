"""What all tasks share: examples, batches, models and predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor

TaskName = Literal["classify", "detect", "instance", "segment", "vqa"]
TASKS: tuple[TaskName, ...] = ("classify", "detect", "instance", "segment", "vqa")
HEADS: dict[str, tuple[str, ...]] = {
    "classify": ("linear",),
    "detect": ("retinanet", "faster-rcnn"),
    "instance": ("mask-rcnn", "cascade-mask-rcnn"),
    "segment": ("semantic-fpn", "upernet", "segformer", "dpt"),
    "vqa": ("soho",),
}
"""The heads of each task, the usual one first."""
Target = Mapping[str, Any]
Prediction = Mapping[str, Any]


@dataclass(frozen=True)
class Example:
    """A picture (3, height, width), floats, normalised, and what is to be found in it.

    detect, instance: ``boxes`` (n, 4) x1 y1 x2 y2 in pixels of this picture, ``labels`` (n,) from 1 on (0 is the
    background), ``masks`` (n, height, width) uint8 (instance), ``image_id``, ``size`` (height, width of the picture as
    stored). segment: ``mask`` (height, width) int64, 255 where it is ignored.
    vqa: ``question`` (tokens,) int64, ``answer`` an int, and in training ``unmatched``: two more questions (2, tokens)
    and ``matched``: another one of this picture (1, tokens)."""

    picture: Tensor
    target: Target


@dataclass(frozen=True)
class Batch:
    """Examples that go through a model together. Pictures may differ in size; models pad them."""

    pictures: Sequence[Tensor]
    targets: Sequence[Target]


class TaskModel(Protocol):
    """A backbone and a head; an nn.Module."""

    backbone: Any

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """In training: their sum is what is minimised."""

    def predict(self, pictures: Sequence[Tensor], targets: Sequence[Target]) -> list[Prediction]:
        """In evaluation, one for each picture, at the size of the picture it was given (of targets only what a user
        would give: a question).

        detect, instance: ``boxes``, ``labels``, ``scores``, ``masks`` (n, height, width) of probabilities;
        segment: ``logits`` (classes, height, width); vqa: ``scores`` (answers,)."""


class Split(Protocol):
    """Pictures with what is to be found in them. ``example(k, draw)``: without ``draw`` as for a test, else varied by
    the numbers (seed, epoch, place), which alone decide."""

    def __len__(self) -> int: ...

    def example(self, k: int, draw: tuple[int, int, int] | None = None) -> Example: ...

    def take(self, index: Sequence[int]) -> Split:
        """The examples of these numbers."""


@dataclass(frozen=True)
class TaskData:
    """Training pictures, those carved from them to choose a model by, test pictures. ``fingerprint``: of what is
    trained on, ``tested``: of what is tested on. ``skipped``: why and how many examples were left out."""

    train: Split
    choice: Split
    test: Split
    classes: tuple[str, ...]
    fingerprint: str
    tested: str
    skipped: Mapping[str, int] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
