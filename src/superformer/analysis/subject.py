"""A trained run as analysis sees it: its supernet, its search split, and its history, so that nothing is evaluated twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from superformer import data
from superformer.analysis.progress import each
from superformer.cost import cost
from superformer.errors import SuperformerError
from superformer.evaluation.evaluator import TOGETHER, Evaluator
from superformer.families.base import Network
from superformer.recipes import Recipe
from superformer.run import Run
from superformer.search.history import History, Record
from superformer.search.scores import accuracies, split_of
from superformer.search.task import fingerprint
from superformer.space import Space
from superformer.space.arch import Arch
from superformer.train.world import World
from superformer.trained import load_supernet

DRAWN = "space"
"""How evaluations of random architectures are marked in the history (`superformer.search.evolve` marks its own alike)."""


@dataclass(frozen=True)
class Subject:
    run: Run
    recipe: Recipe
    net: Network
    pictures: data.DataSet
    judge: Evaluator
    world: World

    @staticmethod
    def open(folder: str | Path) -> Subject:
        world = World.join()
        if world.size > 1:
            raise SuperformerError("analysis runs in one process; train and search take several")
        run = Run.open(folder)
        run.trained()
        recipe, facts = run.recipe(), run.facts()
        pictures = data.load(facts["data"], recipe.data, facts["img_size"])
        run.same_pictures(pictures.fingerprint)
        net = load_supernet(run.supernet_file).to(world.device)
        judge = Evaluator.of(net, recipe, pictures, pictures.search, facts["img_size"], device=world.device)
        return Subject(run, recipe, net, pictures, judge, world)

    @property
    def space(self) -> Space:
        return self.net.space

    def history(self, readonly: bool = False) -> History:
        split = split_of(self.judge, self.pictures.search.fingerprint, None)
        return History(self.run.history_file, fingerprint(self.run), split, readonly=readonly)

    def known(self) -> list[Record]:
        """What was evaluated before, with these weights on these pictures."""
        if not self.run.history_file.exists():
            return []
        with self.history(readonly=True) as history:
            return history.all()

    def inherited(self, archs: Sequence[Arch], console: Console | None = None, kind: str = "") -> list[float]:
        """The accuracy on the search split with the weights of the run; kept in its history as soon as it is known."""
        parts = [archs[k : k + TOGETHER] for k in range(0, len(archs), TOGETHER)]
        with self.run.lock(), self.history() as history:
            found = [accuracies(part, self.judge, history, self.world, kind=kind)[0] for part in each(parts, "evaluating", console)]
        return [score for part in found for score in part]

    def macs(self, archs: Sequence[Arch]) -> list[int]:
        return [int(n) for n in cost(self.space, archs, self.net.num_classes).macs]
