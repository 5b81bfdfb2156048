"""How pictures of the other tasks are split, prepared and varied."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from superformer.settings import Channels, Deviations, Range, SettingsBase
from superformer.transfer.task import TaskName

LARGEST_SIDE = 16_384
Side = Annotated[int, Field(ge=1, le=LARGEST_SIDE)]
Probability = Annotated[float, Field(ge=0, le=1)]
USUAL: dict[TaskName, dict[str, Any]] = {
    "detect": {"size": 800, "longest": 1333, "flip": 0.5},
    "instance": {"size": 800, "longest": 1333, "flip": 0.5},
    "segment": {"size": 512, "longest": 2048, "flip": 0.5},
    "vqa": {"size": 384, "flip": 0.0},
}
"""What is meant where a setting says nothing: the papers' sizes; a flip would change what is left and right."""
ODD = 8
"""How many times as long as wide a picture must be to be limited: one of 1 x 400 pixels would become very large."""


def _pair(value: Any) -> Any:
    """One number stands for height and width."""
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value


class ExampleSettings(SettingsBase):
    """How pictures are split, prepared and varied. A picture keeps its shape; those of questions become squares."""

    size: Side | None = Field(None, description="shorter side of a picture (vqa: both); none: the papers'")
    longest: Side | None = Field(None, description="the longer side is at most this")
    scales: Range = Field((1.0, 1.0), description="training: sizes are drawn from here, in shares of size and longest")
    crop: Annotated[tuple[Side, Side] | None, BeforeValidator(_pair)] = Field(
        None, description="training: height and width of a random crop; what is smaller is padded"
    )
    crop_most: float = Field(
        1.0, gt=0, le=1, description="segment: the most that one class may cover of a crop, in ten attempts"
    )
    flip: Probability | None = Field(None, description="training: probability of a left-right flip")
    distort: Probability = Field(0.0, description="training: probability of each change of brightness and colours")
    mean: Channels = Field((0.485, 0.456, 0.406), description="of each channel, subtracted")
    std: Deviations = Field((0.229, 0.224, 0.225), description="of each channel, divided by")
    choice: float = Field(0.1, ge=0, lt=1, description="share of the training pictures that models are chosen by")
    empty: bool = Field(False, description="detect, instance: also train on pictures without objects")
    ignore: tuple[Annotated[int, Field(ge=0, le=65_535)], ...] = Field(
        (), max_length=256, description="segment: values of masks that are ignored, beside those of classes.json"
    )
    answers: int | None = Field(None, ge=2, description="vqa: the most common answers, as many; none: all")
    words: int = Field(32, ge=4, le=512, description="vqa: the most words of a question")
    texts: int = Field(
        2, ge=1, le=64, description="vqa, training: questions of a picture at once (and as many of others)"
    )
    vocabulary: str | None = Field(None, description="vqa: a vocab.txt of BERT's word pieces; none: words of questions")
    workers: int = Field(2, ge=0, le=256, description="processes that prepare pictures")

    @model_validator(mode="after")
    def _longest_is_longer(self) -> Self:
        if self.size is not None and self.longest is not None and self.longest < self.size:
            told = f"data.longest={self.longest} is less than data.size={self.size}, and would limit it"
            raise ValueError(f"{told}: change both (and data.crop)")
        return self

    def of(self, task: TaskName) -> Self:
        """With the usual values of a task where none is given; the usual longest side goes with the usual size, and is
        else so large that only odd shapes meet it."""
        usual = USUAL.get(task, {})
        if "longest" in usual and self.size is not None:
            usual = usual | {"longest": ODD * self.size}
        return self.model_copy(update={k: v for k, v in usual.items() if getattr(self, k) is None})
