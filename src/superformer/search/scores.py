"""The accuracy of candidates: from the history where it is known, else evaluated now, a share by each process, and kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from superformer.evaluation.evaluator import Evaluator
from superformer.search.history import Evaluation, History
from superformer.space.arch import Arch
from superformer.train.world import World


def accuracies(
    archs: Sequence[Arch],
    judge: Evaluator,
    history: History | None,
    world: World,
    also: Callable[[int], Mapping[str, float]] = lambda k: {},
    search: int | None = None,
    round_: int = 0,
    kind: str = "",
) -> tuple[list[float], int]:
    """The accuracy of each architecture, and how many were evaluated now.

    The first process alone has the ``history``; ``also`` gives further values to keep, of the k-th architecture.
    """
    found = torch.full((len(archs),), math.nan, dtype=torch.float64, device=world.device)
    if history is not None:
        known = history.get([a.path for a in archs])
        for k, arch in enumerate(archs):
            found[k] = known.get(arch.path, {}).get("accuracy", math.nan)
    world.spread([found])
    places = {a.path: k for k, a in reversed(list(enumerate(archs))) if math.isnan(float(found[k]))}
    todo = sorted(places.values())  # of equal ones the first
    start, mine = time.perf_counter(), todo[world.rank :: world.size]
    now = torch.zeros_like(found)
    now[mine] = torch.tensor(judge([archs[k] for k in mine]), dtype=torch.float64, device=world.device)
    now = world.mean(now) * world.size
    for k, arch in enumerate(archs):
        if arch.path in places:
            found[k] = now[places[arch.path]]
    scores: list[float] = found.tolist()
    if history is not None and todo:
        seconds = (time.perf_counter() - start) / len(todo)
        rows = [Evaluation(archs[k].path, archs[k].to_json(), {"accuracy": scores[k], **also(k)}, seconds, kind) for k in todo]
        history.put(rows, search, round_)
    return scores, len(todo)


def split_of(judge: Evaluator, pictures: str, limit: int | None) -> str:
    """The fingerprint of what candidates are judged by: the pictures, how many of them, and which sides."""
    return f"{pictures}:{limit}:{','.join(judge.sides)}"
