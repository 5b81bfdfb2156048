"""The scores of candidates: from the history where they are known, else evaluated now, a share by each process, and
kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from superformer.cost import cost
from superformer.evaluation.evaluator import Evaluator, Race, Score, sides_of
from superformer.evaluation.prefix_tree import alike
from superformer.evaluation.trained_run import Opened
from superformer.recipes.search import Options
from superformer.runs.processes import World
from superformer.search import problem as pareto
from superformer.search.history import Evaluation, History
from superformer.search.methods import Method, Proposer
from superformer.search.problem import Floats
from superformer.space import Genes
from superformer.space.arch import Arch

FINALISTS, JUDGED = 128, 64
"""The most accurate candidates of a search, and how many of them are judged again, on more pictures
(`superformer.search.front`)."""
PART, LEAST = 0.7, 4
"""Of a process's share of the candidates that are left, what it takes at a time; and how many at least."""
Also = Callable[[int], Mapping[str, float]]
TIE = 1e-7
"""What a loss can change of a rank: less than a picture, of millions."""


def judged(
    archs: Sequence[Arch],
    judge: Evaluator,
    history: History | None,
    world: World,
    also: Also = lambda k: {},
    search: int | None = None,
    round_: int = 0,
    kind: str = "",
    race: Race | None = None,
) -> tuple[list[Score], int]:
    """The accuracy and the loss of each architecture, and how many were evaluated now.

    The first process alone has the ``history``; ``also`` gives further values to keep, of the k-th architecture.
    Evaluations that a history has from before losses were kept have none, and are not repeated for it. What a ``race``
    stopped has no numbers, and is not kept."""
    found = torch.full((len(archs), 2), math.nan, dtype=torch.float64, device=world.device)
    if history is not None:
        known = history.get([a.path for a in archs])
        for k, arch in enumerate(archs):
            values = known.get(arch.path, {})
            found[k] = torch.tensor(
                [values.get("accuracy", math.nan), values.get("loss", math.nan)], dtype=torch.float64
            )
    world.spread([found])
    places = {a.path: k for k, a in reversed(list(enumerate(archs))) if math.isnan(float(found[k, 0]))}
    todo = sorted(places.values())  # of equal ones the first
    start, now = time.perf_counter(), torch.zeros_like(found)
    for mine in world.shared(_pieces([archs[k] for k in todo], todo, judge, world.size)):
        own = judge.scores([archs[k] for k in mine], None if race is None else race.of(mine))
        now[mine] = torch.tensor(own, dtype=torch.float64, device=world.device)
    now = world.mean(now) * world.size
    for k, arch in enumerate(archs):
        if arch.path in places:
            found[k] = now[places[arch.path]]
    scores = [Score(*pair) for pair in found.tolist()]
    if history is not None and todo:
        seconds = (time.perf_counter() - start) / len(todo)
        whole = [k for k in todo if not math.isnan(scores[k].accuracy)]
        rows = [
            Evaluation(archs[k].path, archs[k].to_json(), {**_values(scores[k]), **also(k)}, seconds, kind)
            for k in whole
        ]
        history.put(rows, search, round_)
    return scores, len(todo)


def _pieces(archs: Sequence[Arch], places: Sequence[int], judge: Evaluator, processes: int) -> list[list[int]]:
    """What processes evaluate at a time: neighbours in the order of `alike`, which share their beginnings."""
    order = alike(archs)
    macs = cost(judge.net.space, [archs[k] for k in order], judge.net.num_classes).macs if order else np.zeros(0)
    return [[places[k] for k in order[part]] for part in parts(macs.astype(np.float64), processes)]


def parts(macs: Floats, processes: int) -> list[slice]:
    """Candidates in parts, each a share of the MACs that are left, so that processes that take one after the other end
    together."""
    if processes == 1:
        return [slice(0, len(macs))] if len(macs) else []
    out, start = list[slice](), 0
    while start < len(macs):
        left = macs[start:].cumsum()
        end = start + max(int(np.searchsorted(left, PART * left[-1] / processes)), LEAST)
        out.append(slice(start, min(end, len(macs))))
        start = end
    return out


def accuracies(
    archs: Sequence[Arch],
    judge: Evaluator,
    history: History | None,
    world: World,
    also: Also = lambda k: {},
    kind: str = "",
) -> tuple[list[float], int]:
    """The accuracy of each architecture, and how many were evaluated now (see `judged`)."""
    scores, fresh = judged(archs, judge, history, world, also, kind=kind)
    return [score.accuracy for score in scores], fresh


def _values(score: Score) -> dict[str, float]:
    """A loss that is no number (a network whose logits are huge) is not kept."""
    return {"accuracy": score.accuracy, **({"loss": score.loss} if math.isfinite(score.loss) else {})}


def ranked(scores: Sequence[Score]) -> Floats:
    """What methods compare: the accuracy; of equal ones the lower loss is better, and an unknown one the worst.

    A search split of some hundred pictures leaves many candidates with the same accuracy.
    """
    accuracy, loss = np.asarray(scores, dtype=np.float64).reshape(-1, 2).T
    found: Floats = accuracy - TIE * (1 - 1 / (1 + np.where(np.isnan(loss), np.inf, loss)))
    return found


def agreed(scores: Sequence[Score]) -> Floats:
    """How good candidates are by accuracy and loss together: the sum of their places in both orders, the worst first.

    Of a few hundred pictures, the best one in accuracy was lucky with some; a loss is less a matter of luck, but not
    what is sought."""
    accuracy, loss = np.asarray(scores, dtype=np.float64).reshape(-1, 2).T
    return _places(accuracy) + _places(-np.where(np.isnan(loss), np.inf, loss))


def _places(values: Floats) -> Floats:
    """In ascending order, from 1; equal values share the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    found: Floats = (counts.cumsum() - (counts - 1) / 2)[which]
    return found


def history_of(opened: Opened, limit: int | None = None, readonly: bool = False) -> History:
    """What is known of a run's supernet on its search split, or on the first ``limit`` pictures of it."""
    sides = ",".join(sides_of(opened.net, opened.recipe))
    split = f"{opened.pictures.search.fingerprint}:{limit}:{sides}"
    return History(opened.run.history_file, opened.run.fingerprint(), split, readonly=readonly)


# Races: candidates that can reach neither the front nor the finalists, nor change what a method does next, are
# stopped early.
#
# With the exact bound (even with all remaining pictures right it would not matter) a search asks the same questions
# and ends with the same front as without. What was stopped is told to the method as not evaluated, and is not in the
# history.


def race(options: Options, method: Method, genes: Genes) -> Race | None:
    """What candidates must be able to reach, from all that the method was told so far."""
    if not options.racing or not isinstance(method, Proposer):
        return None
    ledger, problem = method.ledger, method.problem
    known = ledger.scores[ledger.valid]
    costs = problem.costs(genes)
    columns = np.stack([costs[o.name] if o.name in costs else np.zeros(len(genes)) for o in problem.objectives], 1)
    front = pareto.reach(known, columns, problem.maximise, 1)
    final = ledger.best(FINALISTS)
    last = ledger.scores[final[-1], 0] if len(final) == FINALISTS else -np.inf
    return Race(np.minimum(np.minimum(front, last), method.matters(columns)).tolist(), options.margin)
