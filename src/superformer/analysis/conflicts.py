"""How often the gradients of the largest network and of the others point in opposite directions, layer by layer (NASViT, table 4).

Training measures the cosine of both for each layer every ``watch.conflicts`` steps (`superformer.train.gradients.conflict`) and writes it
to ``metrics.jsonl``. The ratio of a layer in an epoch is the share of its measurements there that are negative; the paper takes all layers
and all pictures of an epoch together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

ALL = "all"
"""The layers together: table 4."""


def steps_per_epoch(lines: Iterable[Mapping[str, Any]]) -> float:
    """As the lines of training tell it, which give both the step and the epoch."""
    return next((line["step"] / line["epoch"] for line in lines if line.get("kind") == "step" and line["epoch"] > 0), math.inf)


def ratios(lines: Iterable[Mapping[str, Any]], by: str = "layer") -> list[dict[str, Any]]:
    """Rows of layer, epoch (from 1) and ratio, from the lines of a run's metrics. ``by="stage"`` takes the layers of a stage together.

    The rows of each epoch end with that of all layers.
    """
    lines = list(lines)
    length = steps_per_epoch(lines)
    signs: dict[int, dict[str, list[bool]]] = {}
    for line in lines:
        if line.get("kind") != "conflict":
            continue
        epoch = 1 + int((line["step"] - 1) / length + 1e-9)
        for layer, cosine in line["layers"].items():
            for name in (layer if by == "layer" else stage(layer), ALL):
                signs.setdefault(epoch, {}).setdefault(name, []).append(cosine < 0)
    return [
        {"layer": name, "epoch": epoch, "ratio": sum(found) / len(found), "measured": len(found)}
        for epoch, own in sorted(signs.items())
        for name, found in sorted(own.items(), key=lambda item: _place(item[0]))
    ]


def stage(layer: str) -> str:
    """The stage of a layer, or the layer itself outside of all stages."""
    found = re.match(r"stages\.(\d+)", layer)
    return f"stage {int(found[1]) + 1}" if found else layer


def table(rows: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[int], list[list[float | None]]]:
    """The layers, the epochs, and the ratio of each layer (a row) in each epoch; None where it was not measured."""
    known = {(row["layer"], row["epoch"]): float(row["ratio"]) for row in rows}
    layers = sorted({layer for layer, _ in known}, key=_place)
    epochs = sorted({epoch for _, epoch in known})
    return layers, epochs, [[known.get((layer, epoch)) for epoch in epochs] for layer in layers]


def _place(name: str) -> tuple[int, list[int | str]]:
    """In the order of the network: what comes before the stages, the stages (their entry first), what comes after, all of them."""
    first = name.startswith(("stem", "cls", "pos", "proj"))
    at = 4 if name == ALL else 1 if name.startswith("stage") else 0 if first else 3
    return at, [int(part) if part.isdigit() else part.replace("enter", "") for part in re.split(r"(\d+)", name)]
