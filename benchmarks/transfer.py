"""Heads on our backbones beside the same heads on timm's own networks of equal MACs: a training step and inference,
measured in turn. ``ratio`` is ours through theirs. One JSON line for each pair and work.

python benchmarks/transfer.py [--size 128] [--batch 4] [--repeats 5]

How much of a run's time is spent waiting for pictures: superformer bench DIR, of the folder of a transfer."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import timm
import torch
from common import report
from torch import Tensor

import superformer as sf
from superformer.transfer.heads import build, wants_blocks
from superformer.transfer.networks import backbone
from superformer.transfer.task import Batch

PAIRS = (
    ("segment", "segformer", "vit_tiny_patch16_224"),
    ("segment", "upernet", "twins_svt_small"),
    ("detect", "retinanet", "resnet26"),
    ("instance", "mask-rcnn", "vit_tiny_patch16_224"),
)
CLASSES = 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    for task, head, name in PAIRS:
        words: dict[str, Any] = {"dynamic_img_size": True} if name.startswith("vit") else {}
        sources = (sf.from_timm(name), timm.create_model(name, **words) if words else name)
        models = [build(task, head, backbone(s, blocks=wants_blocks(head)), CLASSES) for s in sources]
        batch = examples(task, given.batch, given.size)
        for work in ("training step", "inference"):
            ours, theirs = in_turn([doing(work, model, batch) for model in models], given.repeats)
            about = {"work": work, "task": task, "head": head, "size": given.size, "batch": given.batch}
            report(f"transfer-{name}", ratio=ours / theirs, ours=ours, timm=theirs, **about)


def examples(task: str, count: int, size: int) -> Batch:
    """Noise with a box in each picture."""
    generator = torch.Generator().manual_seed(0)
    pictures = [torch.randn(3, size, size, generator=generator) for _ in range(count)]
    half, quarter = size // 2, size // 4
    mask = torch.zeros(size, size, dtype=torch.uint8)
    mask[quarter:half, quarter:half] = 1
    box = {"boxes": torch.tensor([[quarter, quarter, half, half]], dtype=torch.float32), "labels": torch.tensor([1])}
    target: dict[str, Tensor] = {"mask": mask.long()} if task == "segment" else {**box, "masks": mask[None]}
    return Batch(pictures, [target] * count)


def doing(work: str, model: Any, batch: Batch) -> Callable[[], None]:
    def step() -> None:
        model.train()
        model.zero_grad()
        torch.stack(list(model.losses(batch).values())).sum().backward()

    @torch.inference_mode()
    def inference() -> None:
        model.eval()
        model.predict(batch.pictures[:1], batch.targets[:1])

    return step if work == "training step" else inference


def in_turn(works: list[Callable[[], None]], repeats: int) -> list[float]:
    """The median seconds of each; the first round is not counted."""
    times: list[list[float]] = [[] for _ in works]
    for n in range(repeats + 1):
        for own, work in zip(times, works, strict=True):
            start = time.perf_counter()
            work()
            own += [time.perf_counter() - start] if n else []
    return [statistics.median(own) for own in times]


if __name__ == "__main__":
    main()
