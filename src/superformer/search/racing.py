"""Races: candidates that can reach neither the front nor the finalists, nor change what a method does next, are stopped early.

With the exact bound (even with all remaining pictures right it would not matter) a search asks the same questions and ends with the same
front as without. What was stopped is told to the method as not evaluated, and is not in the history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

from superformer.evaluation.score import Race
from superformer.part import Part
from superformer.search import pareto
from superformer.search.method import Method, Proposer
from superformer.search.scores import FINALISTS
from superformer.space import Genes


class Racing(Part):
    racing: bool = Field(False, description="stop candidates that cannot reach the front any more")
    margin: float | None = Field(None, ge=0, description="or probably not, by so many standard errors; none: for sure")


def split(changes: Mapping[str, Any]) -> tuple[Racing, dict[str, Any]]:
    """The settings of races among ``key=value`` words, and the others."""
    own = {k: v for k, v in changes.items() if k in Racing.model_fields}
    return Racing.read(own, "search"), {k: v for k, v in changes.items() if k not in own}


def race(own: Racing, method: Method, genes: Genes) -> Race | None:
    """What candidates must be able to reach, from all that the method was told so far."""
    if not own.racing or not isinstance(method, Proposer):
        return None
    ledger, problem = method.ledger, method.problem
    known = ledger.scores[ledger.valid]
    costs = problem.costs(genes)
    columns = np.stack([costs[o.name] if o.name in costs else np.zeros(len(genes)) for o in problem.objectives], 1)
    front = pareto.reach(known, columns, problem.maximise, 1)
    final = ledger.best(FINALISTS)
    last = ledger.scores[final[-1], 0] if len(final) == FINALISTS else -np.inf
    return Race(np.minimum(np.minimum(front, last), method.matters(columns)).tolist(), own.margin)
