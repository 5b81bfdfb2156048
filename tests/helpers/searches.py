"""Searches run to their end."""

from __future__ import annotations

import numpy as np


def searched(search, score, shuffle=None):
    """Everything that a search asks for, in order; told in parts and out of order with ``shuffle``."""
    asked = []
    while len(genes := search.ask()):
        asked.append(genes)
        if shuffle is None:
            search.tell(genes, score(genes))
            continue
        for part in np.array_split(shuffle.permutation(len(genes)), 3):
            if len(part):
                search.tell(genes[part], score(genes[part]))
    assert not len(search.ask())
    return asked
