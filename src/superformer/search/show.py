"""What a search tells: what the limits mean before it begins, and how far it is."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from rich.console import Console
from rich.live import Live

from superformer.search.problem import Problem, say
from superformer.telling import Clock, teller

__all__ = ["Progress", "forecast", "say"]

DRAWS = 2000
"""Random networks that tell how costs spread."""
QUANTILES = (0, 5, 25, 50, 75, 95, 100)


def forecast(problem: Problem) -> Iterator[str]:
    """How the costs of random networks spread, and what the limits leave of them."""
    space = problem.space
    genes = np.concatenate([space.sample_genes(DRAWS, 0), space.encode([space.smallest(), space.largest()])])
    costs = problem.costs(genes)
    for name, values in costs.items():
        marks = ", ".join(say(name, v) for v in np.percentile(values, QUANTILES))
        yield f"{name} of random networks (smallest; 5, 25, 50, 75, 95 % below; largest): {marks}"
    if problem.limits:
        share = problem.feasible(genes).mean()
        ends = ", ".join(f"{name} {_ends(name, low, high)}" for name, (low, high) in problem.limits.items())
        yield f"limits: {ends}; {100 * share:.3g} % of random networks meet them"


def _ends(name: str, low: float, high: float) -> str:
    words = [f"from {say(name, low)}"] * (low > 0) + [f"up to {say(name, high)}"] * math.isfinite(high)
    return " ".join(words) or "without a limit"


class Progress:
    """A live line on a terminal, else a line every so often."""

    def __init__(self, console: Console):
        self.console, self.clock, self.fresh = console, Clock(), 0
        self.live = Live(console=console, transient=True, refresh_per_second=4) if console.is_terminal else None
        if self.live is not None:
            self.live.start()

    def step(self, round_: int, known: int, fresh: int, best: float | None) -> None:
        """``known`` evaluations in all, ``fresh`` of them made now."""
        self.fresh += fresh
        speed = self.fresh / max(self.clock.seconds, 1e-9)
        text = f"round {round_}: {known} candidates, {self.fresh} evaluated now ({speed:.3g} a second)"
        text += "" if best is None else f", best {100 * best:.2f} %"
        if self.live is not None:
            self.live.update(text)
        elif self.clock.due():
            teller(self.console)(text)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
