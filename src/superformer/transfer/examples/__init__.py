"""Pictures with boxes, masks or questions: what ``--data`` means for each task, and what is varied in training."""

from __future__ import annotations

from superformer.errors import SuperformerError, nearest
from superformer.transfer.examples import coco, masks, questions
from superformer.transfer.examples.settings import ExampleSettings
from superformer.transfer.task import TaskData, TaskName

__all__ = ["ExampleSettings", "load"]


def load(task: TaskName, spec: str, settings: ExampleSettings) -> TaskData:
    """The data that a ``--data`` text means for a task. Pictures are found and checked, but not decoded yet."""
    settings = settings.of(task)
    if task in ("detect", "instance"):
        return coco.load(spec, settings, masks=task == "instance")
    if task == "segment":
        return masks.load(spec, settings)
    if task == "vqa":
        return questions.load(spec, settings)
    possible = nearest(task, ["detect", "instance", "segment", "vqa"])
    raise SuperformerError(f"there are no examples for the task {task!r}: {possible}")
