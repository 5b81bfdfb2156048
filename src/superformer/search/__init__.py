"""Search: methods that propose architectures and learn from their scores, and know nothing of networks.

A `Problem` says what is searched: a space, objectives, costs and limits. A method is asked for rows of genes and told
their scores::

    problem = Problem.of(space, ("accuracy", "macs"), limits={"macs": (0, 2e9)})
    search = method(problem, "nsga2", generations=10)
    while len(genes := search.ask()):
        search.tell(genes, scores_of(genes))

Everything a method does follows from its problem, its settings and the scores it was told. A search that was killed is
therefore resumed by telling a new method of the same settings the scores that are known already."""

from __future__ import annotations

from superformer.recipes.search import method_settings as settings_of
from superformer.search.methods import Method, method, names, register
from superformer.search.problem import Objective, Problem

__all__ = ["Method", "Objective", "Problem", "method", "names", "register", "settings_of"]
