"""Races: candidates that can reach neither the front nor the finalists, nor change what a method does next, are stopped early.

With the exact bound (even with all remaining pictures right it would not matter) a search asks the same questions and ends with the same
front as without. What was stopped is told to the method as not evaluated, and is not in the history.
"""

from __future__ import annotations

import numpy as np

from superformer.evaluation.score import Race
from superformer.search import pareto
from superformer.search.method import Method, Proposer
from superformer.search.options import Options
from superformer.search.scores import FINALISTS
from superformer.space import Genes


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
