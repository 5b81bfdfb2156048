"""A trained run as analysis sees it: with its history, so that nothing is evaluated twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from superformer.cost import cost
from superformer.errors import SuperformerError
from superformer.evaluation.evaluator import TOGETHER
from superformer.evaluation.opened import Opened
from superformer.run import Run
from superformer.search.history import History, Record
from superformer.search.scores import accuracies, history_of
from superformer.space.arch import Arch
from superformer.telling import each
from superformer.train.world import World

DRAWN = "space"
"""How evaluations of random architectures are marked in the history (`superformer.search.evolve` marks its own alike)."""


class Subject(Opened):
    @staticmethod
    def open(folder: str | Path) -> Subject:
        world = World.join()
        if world.size > 1:
            raise SuperformerError("analysis runs in one process; train and search take several")
        return Subject.of(Run.open(folder), device=world.device)

    def history(self, readonly: bool = False) -> History:
        return history_of(self, readonly=readonly)

    def known(self) -> list[Record]:
        """What was evaluated before, with these weights on these pictures."""
        if not self.run.history_file.exists():
            return []
        with self.history(readonly=True) as history:
            return history.all()

    def inherited(self, archs: Sequence[Arch], console: Console | None = None, kind: str = "") -> list[float]:
        """The accuracy on the search split with the weights of the run; kept in its history as soon as it is known."""
        parts, judge, world = [archs[k : k + TOGETHER] for k in range(0, len(archs), TOGETHER)], self.judge(), World.join()
        with self.run.lock(), self.history() as history:
            found = [accuracies(part, judge, history, world, kind=kind)[0] for part in each(parts, "evaluating", console)]
        return [score for part in found for score in part]

    def macs(self, archs: Sequence[Arch]) -> list[int]:
        return [int(n) for n in cost(self.space, archs, self.net.num_classes).macs]
