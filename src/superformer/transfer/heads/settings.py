"""The settings of heads; one section for all, of which each head reads what it has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from superformer.settings import Positive, SettingsBase

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class HeadSettings(SettingsBase):
    """What is not given is as in the paper of the head, or of those who used it."""

    channels: Annotated[int, Field(ge=32, multiple_of=32)] | None = None
    """Of the pyramid of detectors (256); of segmentation: UperNet 512, semantic FPN 128, SegFormer and DPT 256."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Of segmentation, before the classifier."""
    auxiliary: Annotated[float, Field(ge=0)] = 0.4
    """How much UperNet's auxiliary classifier counts, on the map at stride 16; 0: there is none."""
    anchors: tuple[Positive, ...] = Field((32, 64, 128, 256, 512), min_length=5, max_length=5)
    """Sides of the anchors of the five levels, in pixels: for small pictures, smaller ones."""
    hidden: Count = 1024
    """Of the box heads of R-CNNs."""
    box_head: Literal["4conv1fc", "2fc"] = "4conv1fc"
    """Of Cascade R-CNN: Swin's (and S3's), or the lighter one of Cascade R-CNN's paper."""
    samples: Count = 512
    """Boxes of a picture that a box head learns from in a step."""
    proposals: Count = 1000
    """Boxes of a picture that go to the box heads (twice as many in training)."""
    score: Share = 0.05
    """Boxes with less are not detections."""
    nms: Share = 0.5
    """Of two boxes of a class that overlap more, the better one is kept."""
    detections: Count = 100
    """The most of a picture."""
