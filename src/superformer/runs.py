"""Runs listed and compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from superformer.errors import SuperformerError
from superformer.recipes import differences
from superformer.run import Run


def overview(folders: Sequence[Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for each run, and what differs between them where several runs themselves were named."""
    named = [Run(f) for f in folders if Run(f).recipe_file.exists()]
    inside = [Run(f.parent) for folder in folders for f in sorted(folder.glob("*/recipe.yaml"))] if len(named) < len(folders) else []
    found = named + inside
    if not found:
        raise SuperformerError(
            f"there are no runs in {', '.join(map(str, folders))}: superformer train --recipe NAME --data SPEC --run DIR makes one"
        )
    lines = []
    for other in named[1:]:
        first = named[0]
        old, new = (run.recipe().model_dump(mode="json", exclude={"name", "about"}) for run in (first, other))
        told = differences(old, new)
        if first.facts()["data"] != other.facts()["data"]:
            told.append(f"data: {first.facts()['data']} before, {other.facts()['data']} now")
        lines += [f"{other.folder} against {first.folder}: {line.replace(' before,', ' there,').replace(' now', ' here')}" for line in told]
    return [summary(run) for run in found], lines


def summary(run: Run) -> dict[str, Any]:
    """What a run is and how far it is; ``best``: the newest accuracy of its best network, on the split that ``of`` names."""
    recipe = run.recipe()
    best, of = _best(run)
    return {
        "run": str(run.folder),
        "recipe": recipe.name,
        "data": Path(run.facts()["data"]).name,
        "state": _state(run),
        "best": best,
        "of": of,
    }


def _state(run: Run) -> str:
    if run.retrained:
        return "retrained"
    if run.front_file.exists():
        return "searched"
    if run.supernet_file.exists():
        return "trained"
    steps = [row for row in run.metrics() if row["kind"] == "step"]
    return f"training, epoch {steps[-1]['epoch']:.3g} of {run.recipe().train.epochs:g}" if steps else "begun"


def _best(run: Run) -> tuple[float | None, str]:
    table = run.folder / "retrained.json"
    if table.exists():
        return max(row["accuracy"] for row in json.loads(table.read_text())["rows"]), "test"
    if run.front_file.exists():
        return max((row["accuracy"] for row in run.front()["front"]), default=None), "search"
    health = [row for row in run.metrics() if row["kind"] == "health"]
    return (max(health[-1]["accuracy"].values()), "search") if health else (None, "")
