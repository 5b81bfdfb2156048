"""A space with a known score for every architecture: to try search methods on, where the optimum and the whole front
are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from superformer.cost import cost
from superformer.search.methods import Method, every
from superformer.search.problem import Floats, Objective, Problem, alive
from superformer.space import Genes, Space, Stage, times


class Known:
    """22,113 architectures: every gene has its worth, neighbouring genes suit each other or not, and larger networks
    are better.

    ``rows`` are all of them, ``scores`` their accuracy (to be larger) and MACs (to be smaller).
    """

    space = Space(
        "known",
        "vit",
        (Stage({"heads": (1, 2, 4), "attn": times(4, of="heads"), "mlp": (8, 16, 24)}, depth=(2, 3, 4)),),
        {"patch_size": 8, "width": (8, 12, 16)},
        img_size=32,
    )
    maximise = (True, False)

    def __init__(self) -> None:
        rows = self.rows = every(self.space)
        rng, n, live = np.random.default_rng(0), rows.shape[1], alive(self.space, rows)
        own, pairs = rng.normal(size=(n, 3)), rng.normal(size=(n, 3, 3))
        counted = cost(self.space, rows, 10)
        self.macs, self.params = counted.macs.astype(np.float64), counted.params.astype(np.float64)
        worth = (own[np.arange(n), rows] * live).sum(1) + 6 * np.log(self.macs / self.macs.min())
        suits = [pairs[g, rows[:, g], rows[:, g + 1]] * (live[:, g] & live[:, g + 1]) for g in range(n - 1)]
        self.scores: Floats = np.stack([70 + worth + np.sum(suits, 0), self.macs], 1)
        self.places = {row.tobytes(): k for k, row in enumerate(rows)}

    def at(self, genes: Genes) -> NDArray[np.int64]:
        """The places of architectures among ``rows``."""
        return np.asarray([self.places[row.tobytes()] for row in np.ascontiguousarray(genes)], dtype=np.int64)

    def problem(
        self,
        objectives: Sequence[str] = ("accuracy",),
        limits: Mapping[str, tuple[float, float]] | None = None,
        seed: int = 0,
    ) -> Problem:
        def costs(genes: Genes) -> dict[str, Floats]:
            at = self.at(genes)
            return {
                "macs": self.macs[at],
                "params": self.params[at],
                "latency": 1e-6 * self.macs[at] + 1e-4 * genes.sum(1),
            }

        return Problem(self.space, tuple(map(Objective.of, objectives)), costs, dict(limits or {}), seed, 10)

    def until(self, search: Method, wanted: NDArray[np.int64], objectives: int = 1) -> float:
        """Evaluations until all places that are wanted were found."""
        left, order = set(wanted.tolist()), list[int]()
        while len(genes := search.ask()):
            at = self.at(genes)
            order += at.tolist()
            search.tell(genes, self.scores[at, :objectives])
            if left <= set(order):
                return max(map(order.index, left)) + 1
        return np.inf
