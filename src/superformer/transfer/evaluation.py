"""How good a model is on a split: its predictions, one after another, and the task's metrics."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from superformer.cost.runtimes import evaluating
from superformer.data.augment import generator
from superformer.progress import each
from superformer.transfer.examples.questions import Questions
from superformer.transfer.metrics import predict_scales, score
from superformer.transfer.settings import Transfer
from superformer.transfer.task import Batch, Prediction, Split, TaskData
from superformer.transfer.training import Key, loaded, on_device

TOGETHER, QUESTIONS = 8, 64
"""Pictures of one size that run together; pictures of several sizes would be padded, which is no part of a test. And
questions, whose pictures are small."""


def some(split: Split, limit: int, seed: int = 0) -> Split:
    """At most so many examples, always the same, in their order."""
    if len(split) <= limit:
        return split
    chosen = generator(seed, "some examples").permutation(len(split))[:limit]
    return split.take([int(k) for k in np.sort(chosen)])


def examples(split: Split, workers: int, most: int = TOGETHER) -> Iterator[Batch]:
    """All of them as for a test: neighbours of one size together."""
    starts = range(0, len(split), most)
    keys: list[list[Key]] = [[(k, None) for k in range(start, min(start + most, len(split)))] for start in starts]
    for batch in loaded(split, keys, workers):
        pairs = list(zip(batch.pictures, batch.targets, strict=True))
        for _, own in groupby(pairs, key=lambda pair: pair[0].shape):
            pictures, targets = zip(*own, strict=True)
            yield Batch(pictures, targets)


@torch.inference_mode()
def predictions(
    model: nn.Module, split: Split, device: torch.device, workers: int, console: Console | None = None,
    scales: bool = False,
) -> Iterator[Prediction]:  # fmt: skip
    """One for each example, in order; ``scales``: of segmentation, the mean over several scales and mirrored."""
    found = iter(each(range(len(split)), "judging", console)) if console is not None else None
    with evaluating(model):
        for batch in examples(split, workers, QUESTIONS if isinstance(split, Questions) else TOGETHER):
            moved = on_device(batch, device)
            own: Any = model
            one = functools.partial(predict_scales, own) if scales else own.predict
            for prediction in one(moved.pictures, moved.targets):
                if found is not None:
                    next(found, None)
                yield {k: v.float().cpu() if isinstance(v, Tensor) and v.is_floating_point() else _cpu(v)
                       for k, v in prediction.items()}  # fmt: skip


def _cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def judge(
    model: nn.Module, data: TaskData, split: Split, settings: Transfer, device: torch.device,
    limit: int | None = None, console: Console | None = None, scales: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """The task's metrics on a split, or on at most ``limit`` of its examples."""
    own = some(split, limit) if limit is not None else split
    found = score(settings.task, data, own, predictions(model, own, device, settings.data.workers, console, scales))
    return {**found, "pictures": len(own)}


def told(metrics: dict[str, Any]) -> str:
    """Figures in one line."""
    return ", ".join(f"{name} {100 * value:.1f} %" for name, value in metrics.items() if isinstance(value, float))
