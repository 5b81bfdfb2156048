"""A trained run as analysis sees it: with its history, so that nothing is evaluated twice; and its sub-networks trained
by themselves, in ``DIR/standalone/KEY/WEIGHTS-EPOCHS`` (killed, the same call goes on; called again, it reads that
run's own history)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from superformer.cost import cost
from superformer.errors import SuperformerError, nearest
from superformer.evaluation.evaluator import TOGETHER, TrainedRun
from superformer.progress import each
from superformer.recipes import WEIGHTS, Recipe, Weights, merged, single_network
from superformer.runs import Run
from superformer.runs.processes import World
from superformer.search.history import History, Record
from superformer.search.scores import Scorer, history_of
from superformer.space.arch import Arch
from superformer.train.retrain import train_network, write_inherited

RANDOM_KIND = "space"
"""Marks evaluations of random architectures in the history, as `superformer.search.space_evolution` does."""
FINETUNING_LR = 0.1
"""Learning rate of fine-tuning, as a share of the recipe's (S3 does not tell its own)."""


class Subject(TrainedRun):
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
        groups = [archs[k : k + TOGETHER] for k in range(0, len(archs), TOGETHER)]
        evaluator, world, found = self.evaluator(), World.join(), []
        with self.run.lock(), self.history() as history:
            scorer = Scorer(evaluator, history, world)
            for group in each(groups, "evaluating", console):
                found += scorer.accuracies(group, kind)
        return found

    def macs(self, archs: Sequence[Arch]) -> list[int]:
        return [int(n) for n in cost(self.space, archs, self.net.num_classes).macs]


class Standalone(Protocol):
    """Trains an architecture of a run by itself and gives its accuracy on the search split."""

    def __call__(self, run: Run, arch: Arch, weights: Weights, epochs: float, /) -> float: ...


def standalone(run: Run, arch: Arch, weights: Weights, epochs: float) -> float:
    """The accuracy on the search split after so many epochs, from new (``scratch``) or inherited weights
    (``finetuned``)."""
    subject = Subject.open(trained_alone(run, arch, weights, epochs).folder)
    return subject.inherited([subject.space.smallest()])[0]


def trained_alone(run: Run, arch: Arch, weights: Weights, epochs: float, seed: int | None = None) -> Run:
    """The run of a network by itself, within that of its supernet; ``seed``: another one than the supernet's."""
    if weights not in WEIGHTS:
        told = "a network begins with weights that are scratch or finetuned"
        raise SuperformerError(f"{told}: {nearest(weights, WEIGHTS)}")
    home = run.folder / "standalone" / arch.key
    own = Run(home / (f"{weights}-{epochs:g}" + ("" if seed is None else f"-{seed}")))
    if not own.supernet_file.exists():
        start = write_inherited(run, arch, home / "inherited") if weights == "finetuned" else None
        recipe = _standalone_recipe(run, arch, weights, epochs)
        if seed is not None:
            recipe = recipe.model_copy(update={"seed": seed})
        train_network(run, recipe, own.folder, start)
    return own


def _standalone_recipe(run: Run, arch: Arch, weights: Weights, epochs: float) -> Recipe:
    """The run's recipe for one network: epochs as asked, the warm-up as long a share of them, one look at the end."""
    recipe, fine, size = run.recipe(), weights == "finetuned", run.input_size()
    own = recipe.optimizer
    warmup = 0.0 if fine else own.warmup_epochs * epochs / recipe.train.epochs
    part = {
        "img_size": None if size == arch.resolution else size,  # pictures as the supernet saw them
        "optimizer": {"lr": own.lr * (FINETUNING_LR if fine else 1), "warmup_epochs": warmup},
        "train": {"epochs": float(epochs)},
        "watch": {"every": float(epochs), "networks": 0},
    }
    return Recipe.model_validate(merged(single_network(recipe.model_dump(mode="json"), weights, arch), part))


def compare_weights(
    subject: Subject, archs: Sequence[Arch], epochs: float, train: Standalone, console: Console | None = None
) -> list[dict[str, Any]]:
    """Inherited against fine-tuned against trained from scratch (S3, figure 5, with 10 random architectures): is a
    sub-network's accuracy in the supernet a fair guess? A row for each: its accuracy on the search split with inherited
    weights, fine-tuned for ``epochs``, and trained from scratch for as many."""
    scores, costs = subject.inherited(archs, console), subject.macs(archs)
    rows = []
    for arch, score, macs in each(list(zip(archs, scores, costs, strict=True)), "training three ways", console):
        row: dict[str, Any] = {"key": arch.key, "macs": macs, "epochs": epochs, "inherited": score}
        rows.append(row | {way: train(subject.run, arch, way, epochs) for way in WEIGHTS})
    return rows
