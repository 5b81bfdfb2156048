"""Searching the search space in a run (S3, algorithm 1): train a supernet, measure its dimensions, move the space, and again.

``DIR/spaces/t`` is the run of the t-th space, the next one inherits what fits of it; ``DIR/evolution.json`` is the trace,
``DIR/evolution.svg`` its picture; at the end the last space's supernet is trained in DIR itself, ready to be searched. Every part goes on
where it was: training by its checkpoints, measuring by its history.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from superformer import files, provenance
from superformer.errors import SuperformerError, nearest
from superformer.evaluation.opened import Opened
from superformer.recipes import Recipe, resolve, space_of
from superformer.run import Run
from superformer.search.scores import accuracies, history_of
from superformer.search.settings import Evolve
from superformer.search.space_evolution import Trend, dimensions, et_error, evolved, trend
from superformer.search.trace import draw
from superformer.space import Space
from superformer.telling import Tell, teller
from superformer.train.loop import train
from superformer.train.world import World


def evolve_space(recipe: Recipe | str, spec: str, folder: str | Path, *changes: str, console: Console | None = None) -> dict[str, Any]:
    """Evolve the space of a recipe on pictures; returns the trace, which is also in ``evolution.json``."""
    settings = recipe if isinstance(recipe, Recipe) else resolve(recipe, changes)
    tell = teller(console)
    folder, space = Path(folder), space_of(settings)
    known = {d.name for d in dimensions(space)}
    if strange := set(settings.evolve.gamma) - known - set(Evolve().gamma):
        raise SuperformerError(f"evolve.gamma has a step for {min(strange)!r}, which is no dimension: {nearest(min(strange), known)}")
    if World.join().size > 1:
        raise SuperformerError("evolve-space runs in one process; train and search take several")
    trace: list[dict[str, Any]] = []
    for t in range(settings.evolve.rounds + 1):
        last = t == settings.evolve.rounds
        tell(f"space {t}: {space.size:.3g} architectures")
        here = folder if last else folder / "spaces" / str(t)
        run = train(_for(settings, space, folder, t), spec, here, console=console)
        provenance.note(folder)
        entry, trends = _measure(run, settings, tell)
        trace.append({"space": json.loads(space.to_json()), **entry, "trends": [own.to_dict() for own in trends]})
        tell(f"space {t}: E-T error {entry['et_error']:.2f} % (expected {entry['expected']:.2f} %, best found {entry['best']:.2f} %)")
        files.write(folder / "evolution.json", json.dumps({"spaces": trace}, indent=1))
        if not last:
            space, trends = evolved(space, trends, f"{settings.name}-{t + 1}")
            trace[-1]["trends"] = [own.to_dict() for own in trends]
            for own in trends:
                if own.after != own.dimension.values:
                    tell(f"  {own.dimension.label}: {_list(own.dimension.values)} -> {_list(own.after)} (slope {own.slope:+.2f} % a step)")
    text = json.dumps({"spaces": trace}, indent=1)
    files.write(folder / "evolution.json", text)
    files.write(folder / "evolution.svg", draw(trace, settings.name))
    tell(f"a picture of the trace is in {folder / 'evolution.svg'}")
    found: dict[str, Any] = json.loads(text)
    return found


def _for(recipe: Recipe, space: Space, folder: Path, t: int) -> Recipe:
    """The recipe of the t-th space; its supernet begins with what fits of the one before."""
    start = recipe.start if t == 0 else recipe.start.model_copy(update={"run": str(folder / "spaces" / str(t - 1)), "timm": None})
    return recipe.model_copy(update={"space": json.loads(space.to_json()), "narrow": {}, "start": start})


def _measure(run: Run, recipe: Recipe, tell: Tell) -> tuple[dict[str, float], list[Trend]]:
    """The E-T error of a space and of the sub-spaces of each dimension's values, in percent."""
    own, opened = recipe.evolve, Opened.of(run)
    space, judge, classes = opened.space, opened.judge(), opened.net.num_classes
    with history_of(opened) as history:

        def errors(part: Space, seed: int) -> list[float]:
            limit = None if own.macs_max is None else (None, own.macs_max)
            archs = part.sample(own.samples, np.random.default_rng([recipe.seed, 5, seed]), macs=limit, num_classes=classes)
            return [100 * (1 - a) for a in accuracies(archs, judge, history, World(), kind="space")[0]]

        whole = errors(space, 0)
        entry = {"et_error": et_error(whole, own.top), "expected": float(np.mean(whole)), "best": min(whole)}
        trends = []
        found = dimensions(space)
        for k, dimension in enumerate(found):
            gamma = own.gamma.get(dimension.name)
            if gamma is None:
                continue  # a dimension without a step stays as it is
            parts = [dimension.at(space, value) for value in dimension.values]
            measured = [et_error(errors(part, 1 + 100 * k + j), own.top) for j, part in enumerate(parts)]
            trends.append(trend(dimension, measured, gamma, own.tau, own.rounding))
            tell(f"  {k + 1} of {len(found)}: {dimension.label} {_list(dimension.values)}: {', '.join(f'{e:.2f}' for e in measured)} %")
    return entry, trends


def _list(values: tuple[float, ...]) -> str:
    return "{" + ", ".join(f"{v:g}" if math.isfinite(v) else "?" for v in values) + "}"
