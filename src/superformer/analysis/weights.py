"""Inherited against fine-tuned against trained from scratch (S3, figure 5): is a sub-network's accuracy in the supernet a fair guess?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from superformer.analysis.standalone import Standalone, standalone
from superformer.analysis.subject import Subject
from superformer.single import WEIGHTS
from superformer.space.arch import Arch
from superformer.telling import each


def compare(
    subject: Subject, archs: Sequence[Arch], epochs: float, train: Standalone = standalone, console: Console | None = None
) -> list[dict[str, Any]]:
    """A row for each architecture: its accuracy on the search split with inherited weights, fine-tuned for ``epochs``, and trained from
    scratch for as many. (S3 takes 10 random architectures.)"""
    scores, costs = subject.inherited(archs, console), subject.macs(archs)
    rows = []
    for arch, score, macs in each(list(zip(archs, scores, costs, strict=True)), "training three ways", console):
        row: dict[str, Any] = {"key": arch.key, "macs": macs, "epochs": epochs, "inherited": score}
        rows.append(row | {way: train(subject.run, arch, way, epochs) for way in WEIGHTS})
    return rows
