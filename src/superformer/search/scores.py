"""The scores of candidates: from the history where they are known, else evaluated now, a share by each process, and
kept; how candidates are compared by them, and which need not be evaluated to the end."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from superformer.cost import cost
from superformer.evaluation.evaluator import Evaluator, Race, Score, TrainedRun, calibration_key, sides_of
from superformer.evaluation.prefix_tree import prefix_order
from superformer.recipes.searching import Options
from superformer.runs.processes import World
from superformer.search.history import Evaluation, History
from superformer.search.methods import Method, Proposer
from superformer.search.problem import Floats, reach
from superformer.space import Genes
from superformer.space.arch import Arch

FINALISTS, JUDGED = 128, 64
"""The most accurate candidates of a search, and how many of them are judged again (`superformer.search.front`)."""
PART, LEAST = 0.7, 4
"""Of a process's share of the candidates that are left, what it takes at a time; and how many at least."""
TIE = 1e-7
"""What a loss can change of a rank: less than a picture, of millions."""


def split_name(trained: TrainedRun, limit: int | None = None) -> str:
    """What a history calls the pictures that candidates are judged on, and how."""
    sides = ",".join(sides_of(trained.net, trained.recipe))
    return f"{trained.pictures.search.fingerprint}:{limit}:{sides}{calibration_key(trained.net, trained.recipe)}"


def history_of(trained: TrainedRun, limit: int | None = None, readonly: bool = False) -> History:
    """What is known of a run's supernet on its search split, or on the first ``limit`` pictures of it."""
    split = split_name(trained, limit)
    return History(trained.run.history_file, trained.run.fingerprint(), split, readonly=readonly)


@dataclass(frozen=True)
class Scorer:
    """Scores architectures, each once. The first process alone has the ``history``, where evaluations are noted as
    those of the ``number``-th search, if any."""

    evaluator: Evaluator
    history: History | None
    world: World
    number: int | None = None

    def accuracies(self, archs: Sequence[Arch], kind: str = "") -> list[float]:
        return [score.accuracy for score in self.scores(archs, kind=kind)[0]]

    def scores(
        self,
        archs: Sequence[Arch],
        costs: Sequence[Mapping[str, float]] = (),
        round_: int = 0,
        kind: str = "",
        race: Race | None = None,
    ) -> tuple[list[Score], int]:
        """The accuracy and the loss of each architecture, and how many were evaluated now.

        ``costs`` are further values to keep, of each architecture. Evaluations that a history has from before
        losses were kept have none, and are not repeated for it. What a ``race`` stopped has no numbers, and is not
        kept."""
        history, world = self.history, self.world
        found = torch.full((len(archs), 2), math.nan, dtype=torch.float64, device=world.carrier)
        if history is not None:
            known = history.get([a.path for a in archs])
            for k, arch in enumerate(archs):
                pair = [known.get(arch.path, {}).get(name, math.nan) for name in Score._fields]
                found[k] = torch.tensor(pair, dtype=torch.float64)
        world.spread([found])
        places = {a.path: k for k, a in reversed(list(enumerate(archs))) if math.isnan(float(found[k, 0]))}
        todo = sorted(places.values())  # of equal ones the first
        start, now = time.perf_counter(), torch.zeros_like(found)
        for mine in world.shared(self._shares([archs[k] for k in todo], todo)):
            own = self.evaluator.scores([archs[k] for k in mine], None if race is None else race.of(mine))
            now[mine] = torch.tensor(own, dtype=torch.float64, device=world.carrier)
        now = world.mean(now) * world.size
        for k, arch in enumerate(archs):
            if arch.path in places:
                found[k] = now[places[arch.path]]
        scores = [Score(*pair) for pair in found.tolist()]
        if history is not None and todo:
            seconds = (time.perf_counter() - start) / len(todo)
            rows = []
            for k in todo:
                if not math.isnan(scores[k].accuracy):
                    values = {"accuracy": scores[k].accuracy, "loss": scores[k].loss, **(costs[k] if costs else {})}
                    if not math.isfinite(scores[k].loss):  # a network whose logits are huge
                        del values["loss"]
                    rows.append(Evaluation(archs[k].path, archs[k].to_json(), values, seconds, kind))
            history.put(rows, self.number, round_)
        return scores, len(todo)

    def _shares(self, archs: Sequence[Arch], places: Sequence[int]) -> list[list[int]]:
        """What processes evaluate at a time: neighbours in `prefix_order`, which share their beginnings."""
        order, net = prefix_order(archs), self.evaluator.net
        macs = cost(net.space, [archs[k] for k in order], net.num_classes).macs if order else np.zeros(0)
        return [[places[k] for k in order[part]] for part in parts(macs.astype(np.float64), self.world.size)]


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


def ranked(scores: Sequence[Score]) -> Floats:
    """What methods compare: the accuracy; of equal ones the lower loss is better, and an unknown one the worst. A
    search split of some hundred pictures leaves many candidates with the same accuracy."""
    accuracy, loss = _columns(scores)
    return np.asarray(accuracy - TIE * (1 - 1 / (1 + loss)))


def agreed(scores: Sequence[Score]) -> Floats:
    """How good candidates are by accuracy and loss together: the sum of their places in both orders, the worst first.

    Of a few hundred pictures, the best one in accuracy was lucky with some; a loss is less a matter of luck, but not
    what is sought."""

    def places(values: Floats) -> Floats:
        """In ascending order, from 1; equal values share the mean of theirs."""
        _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
        return np.asarray((counts.cumsum() - (counts - 1) / 2)[which])

    accuracy, loss = _columns(scores)
    return places(accuracy) + places(-loss)


def _columns(scores: Sequence[Score]) -> tuple[Floats, Floats]:
    """Accuracies and losses; a loss that is not known is infinite."""
    accuracy, loss = np.asarray(scores, dtype=np.float64).reshape(-1, 2).T
    return accuracy, np.where(np.isnan(loss), np.inf, loss)


def race(options: Options, method: Method, genes: Genes) -> Race | None:
    """What candidates must be able to reach, from all that the method was told so far: those that can reach neither the
    front nor the finalists, nor change what a method does next, are stopped early.

    With the exact bound (even with all remaining pictures right it would not matter) a search asks the same questions
    and ends with the same front as without. What was stopped is told to the method as not evaluated, and is not in the
    history."""
    if not options.racing or not isinstance(method, Proposer):
        return None
    return Race(needed(method, genes, FINALISTS).tolist(), options.margin)


def needed(method: Proposer, genes: Genes, finalists: int, *, matters: bool = True) -> Floats:
    """The accuracy from which on candidates could be on the front or among the finalists, or change what the method
    proposes (if that ``matters``), by all that it was told."""
    asked, problem = method.asked, method.problem
    costs = problem.costs(genes)
    columns = np.stack([costs[o.name] if o.name in costs else np.zeros(len(genes)) for o in problem.objectives], 1)
    front = reach(asked.scores[asked.valid], columns, problem.maximise, 1)
    final = asked.best(finalists)
    last = asked.scores[final[-1], 0] if len(final) == finalists else -np.inf
    least = np.minimum(front, last)
    return np.minimum(least, method.matters(columns)) if matters else least


def needed_by_guess(method: Method, genes: Genes, guesses: Floats, finalists: int) -> Floats:
    """`needed`, where the accuracies of rows that were asked for are told as they are guessed so far."""
    if not isinstance(method, Proposer):
        return np.full(len(genes), -np.inf)
    asked, costs = method.asked, method.problem.costs(genes)
    columns = [guesses if o.name == "accuracy" else costs[o.name] for o in method.problem.objectives]
    with asked.supposed(genes, np.stack(columns, 1)):
        return needed(method, genes, finalists, matters=not method.estimates_do)
