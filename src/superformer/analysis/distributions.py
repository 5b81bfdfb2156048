"""How errors spread over a space and over the numbers of blocks of its stages, and how often gradients conflict.

Error distribution functions (S3, figure 6; Radosavovic et al., "Designing Network Design Spaces", eq. 1): a space is
better than another if more of its networks have errors below any bound. The networks are random ones of the space, with
the weights they inherit, on the search split. Those of the sub-spaces with one number of blocks in one stage, and the
top-tier error of each (S3, figure 3), tell which stages are worth more blocks.

Conflicts (NASViT, table 4): how often the gradients of the largest network and of the others point in opposite
directions, layer by layer. Training measures the cosine of both for each layer every ``watch.conflicts`` steps
(`superformer.train.optimizer.conflict`) and writes it to ``metrics.jsonl``. The ratio of a layer in an epoch is the
share of its measurements there that are negative; the paper takes all layers and all pictures of an epoch together."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.console import Console

from superformer.analysis.settings import Settings
from superformer.analysis.subject import RANDOM_KIND, Subject
from superformer.errors import SuperformerError
from superformer.runs import Run
from superformer.search.history import Record
from superformer.search.space_evolution import WHOLE, drawn_errors, subspaces, top_tier

ALL_LAYERS = "all"
"""The layers together: table 4."""


@dataclass(frozen=True)
class Distribution:
    """The errors of architectures, in percent, rising."""

    name: str
    errors: tuple[float, ...]

    @staticmethod
    def of(name: str, errors: Iterable[float]) -> Distribution:
        ordered = tuple(sorted(map(float, errors)))
        if not ordered:
            raise SuperformerError(f"the error distribution of no architecture at all was asked for ({name})")
        return Distribution(name, ordered)

    def __call__(self, bounds: ArrayLike) -> NDArray[np.float64]:
        """F(e): the share of architectures with an error below e (eq. 1 of Radosavovic et al.)."""
        return np.searchsorted(self.errors, np.asarray(bounds, dtype=np.float64), side="left") / len(self.errors)

    def to_dict(self) -> dict[str, Any]:
        low, middle, high = np.percentile(self.errors, (5, 50, 95))
        figures = {"mean": np.mean(self.errors), "median": middle, "low": low, "high": high}
        return {"name": self.name, "errors": list(self.errors), **{name: float(v) for name, v in figures.items()}}


def known_errors(subject: Subject) -> list[float]:
    """The errors of random architectures of the whole space that the history knows.

    Where evolving the space measured it, exactly the N that were drawn for eq. 5: every choice uniform by itself (of
    each depth as many), and an architecture as often as it was drawn. What was drawn in sub-spaces is left out: there
    one value holds in all blocks of a stage, and together they would have more alike blocks than the space, though each
    choice alone were uniform. Else those that an analysis drew, each once; of these, what a search had evaluated before
    is not marked as drawn, and missing."""
    known = subject.known()
    found = drawn_errors(subject.space, subject.recipe, WHOLE, subject.net.num_classes, accuracies(known))
    if found is not None:
        return found
    return [100 * (1 - record.values["accuracy"]) for record in known if record.kind == RANDOM_KIND]


def accuracies(records: Iterable[Record]) -> dict[str, float]:
    """By path."""
    return {record.key: record.values["accuracy"] for record in records if "accuracy" in record.values}


def trained_spaces(folder: str | Path) -> list[tuple[str, Path]]:
    """The trained runs of a folder: itself, or where the space evolved one for each space, first to last."""
    folder = Path(folder)
    before = sorted((f for f in (folder / "spaces").glob("*") if f.name.isdigit()), key=lambda f: int(f.name))
    if not before:
        return [(Run.open(folder).space().name, folder)]
    found = [(f"space {n}", f) for n, f in enumerate((*before, folder))]
    return [(name, f) for name, f in found if Run(f).recipe_file.exists() and Run(f).supernet_file.exists()]


def distributions(
    folder: str | Path, settings: Settings | None = None, console: Console | None = None
) -> list[Distribution]:
    """A distribution for each space of a run: of ``settings.samples`` random architectures up to its MACs (what the
    history knows is not evaluated again), or without them of those that its histories know."""
    own, found = settings or Settings(), []
    for name, place in trained_spaces(folder):
        if own.samples is None and not Run(place).history_file.exists():
            continue
        subject = Subject.open(place)
        if own.samples is None:
            errors = known_errors(subject)
        else:
            limit, rng = None if own.macs_max is None else (None, own.macs_max), np.random.default_rng([own.seed, 6])
            archs = subject.space.sample(own.samples, rng, macs=limit, num_classes=subject.net.num_classes)
            errors = [100 * (1 - accuracy) for accuracy in subject.inherited(archs, console, RANDOM_KIND)]
        if errors:
            found.append(Distribution.of(name, errors))
    return found


def depths(
    folder: str | Path, settings: Settings | None = None, console: Console | None = None
) -> list[dict[str, Any]]:
    """Figure 3 of S3: for each stage and each number of its blocks the errors of random networks that have it, and
    their top-tier error. A row for each: of ``settings.samples`` networks up to its MACs, or without them of those that
    evolving the space drew."""
    own, subject, rows = settings or Settings(), Subject.open(folder), list[dict[str, Any]]()
    known = accuracies(subject.known())
    limit = None if own.macs_max is None else (None, own.macs_max)
    for dimension, parts in subspaces(subject.space):
        if dimension.name != "depth" or dimension.stage is None:
            continue
        for blocks, (number, part) in zip(dimension.values, parts.items(), strict=True):
            if own.samples is None:
                errors = drawn_errors(part, subject.recipe, number, subject.net.num_classes, known)
            else:
                rng = np.random.default_rng([own.seed, 7, number])
                archs = part.sample(own.samples, rng, macs=limit, num_classes=subject.net.num_classes)
                errors = [100 * (1 - accuracy) for accuracy in subject.inherited(archs, console, "subspace")]
            if errors is not None:
                name = f"stage {dimension.stage + 1}, {int(blocks)} block{'s' * (blocks != 1)}"
                found = Distribution.of(name, errors).to_dict() | {"top_tier": top_tier(errors, own.top)}
                rows.append({"stage": dimension.stage, "blocks": int(blocks), **found})
    return rows


def conflict_ratios(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of layer, epoch (from 1) and ratio, from the lines of a run's metrics; each epoch's end with all layers."""
    lines = list(lines)
    steps = (line for line in lines if line.get("kind") == "step" and line["epoch"] > 0)
    steps_per_epoch = next((line["step"] / line["epoch"] for line in steps), math.inf)
    signs: dict[int, dict[str, list[bool]]] = {}
    for line in lines:
        if line.get("kind") != "conflict":
            continue
        epoch = 1 + int((line["step"] - 1) / steps_per_epoch + 1e-9)
        for layer, cosine in line["layers"].items():
            for name in (layer, ALL_LAYERS):
                signs.setdefault(epoch, {}).setdefault(name, []).append(cosine < 0)
    return [
        {"layer": name, "epoch": epoch, "ratio": sum(found) / len(found), "measured": len(found)}
        for epoch, own in sorted(signs.items())
        for name, found in sorted(own.items(), key=lambda item: _network_order(item[0]))
    ]


def _network_order(name: str) -> tuple[int, list[int | str]]:
    """As in the network: what comes before the stages, the stages (entry first), what comes after, all of them."""
    first = name.startswith(("stem", "cls", "pos", "proj"))
    at = 4 if name == ALL_LAYERS else 1 if name.startswith("stage") else 0 if first else 3
    return at, [int(part) if part.isdigit() else part.replace("enter", "") for part in re.split(r"(\d+)", name)]
