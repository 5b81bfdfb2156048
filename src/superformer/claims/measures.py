"""What one arm of a claim gives with one seed: a run like any other, and numbers read from it.

A supernet that several arms need is trained once: its folder is named after all that it depends on."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from superformer.analysis.correlation import coefficients
from superformer.analysis.subject import standalone
from superformer.claims.declaration import Claim
from superformer.cost import cost
from superformer.evaluation.evaluator import TrainedRun
from superformer.recipes import Recipe, from_tree, resolve, space_of
from superformer.runs import Run
from superformer.search import search
from superformer.search.space_evolution import evolve_space
from superformer.settings import read_key_value
from superformer.space import point
from superformer.train.loop import train
from superformer.train.retrain import retrain

RANDOM, RANKED = 16, 24
"""Networks whose median tells how good a supernet's are; networks that are trained alone to compare ranks."""
LATE = 0.8
"""The share of a training after which it is late."""
MIDDLE = 0.5
"""Where between the smallest and the largest network's MACs the limit of a search lies."""
Values = dict[str, float]


@dataclass(frozen=True)
class Arm:
    """One arm with one seed. ``epochs``: of its trainings, None: as many as fit into ``minutes``, or the recipe's."""

    claim: Claim
    words: tuple[str, ...]
    seed: int
    data: str
    home: Path
    epochs: float | None = None
    minutes: float | None = None
    console: Console | None = None

    @property
    def recipe(self) -> Recipe:
        length = [] if self.epochs is None else [f"train.epochs={self.epochs!r}"]
        own = () if self.claim.measure == "searched" else self.words
        return resolve(self.claim.recipe, [*self.claim.common, *own, *length, f"seed={self.seed}"])

    def folder(self, kind: str, recipe: Recipe) -> Path:
        """Named after all that is trained there."""
        text = json.dumps([self.data, recipe.model_dump(mode="json")], sort_keys=True)
        return self.home / kind / f"{recipe.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def trained(self) -> Run:
        """Its supernet."""
        own = self.recipe
        return train(own, self.data, self.folder("supernets", own), console=self.console, minutes=self.minutes)


def measured(arm: Arm, others: Callable[[str], Run]) -> tuple[Values, float]:
    """The numbers of an arm, and the epochs it had. ``others``: the supernet of another arm with the same seed."""
    return {"alone": _alone, "et_error": _evolved}.get(arm.claim.measure, _supernet)(arm, others)


def _supernet(arm: Arm, others: Callable[[str], Run]) -> tuple[Values, float]:
    run = arm.trained()
    values = _health(run) | _accuracies(run)
    if arm.claim.measure == "found":
        values["found"] = _found(run, arm.claim.search, arm.seed, arm.console)
    elif arm.claim.measure == "searched":
        values["searched"] = _searched(run, [*arm.claim.search, *arm.words, f"seed={arm.seed}"], arm.console)
    elif arm.claim.measure == "kendall":
        values |= _ranks(run, others(arm.claim.order[0]), arm.seed)
    return values, run.recipe().train.epochs


def _health(run: Run) -> Values:
    """The mean loss late in training, and how often gradients conflicted."""
    rows = run.metrics()
    steps = [r for r in rows if r["kind"] == "step"]
    late = [r["loss"] for r in steps if r["step"] > LATE * steps[-1]["step"]]
    values = {"late_loss": statistics.fmean(late)}
    if conflicts := [r["ratio"] for r in rows if r["kind"] == "conflict"]:
        values["conflict"] = statistics.fmean(conflicts)
    return values


def _accuracies(run: Run) -> Values:
    """Of the smallest, the largest and random networks with inherited weights, on the test pictures."""
    trained = TrainedRun.of(run)
    space = trained.space
    archs = [space.smallest(), space.largest(), *space.sample(RANDOM, seed=0)]
    smallest, largest, *others = trained.evaluator(trained.pictures.test())(archs)
    return {"smallest": smallest, "largest": largest, "median": statistics.median(others)}


def _limit(run: Run) -> float:
    space, classes = run.space(), len(run.facts()["classes"])
    low, high = (float(m) for m in cost(space, [space.smallest(), space.largest()], classes).macs)
    return low + MIDDLE * (high - low)


def _best(run: Run, words: Sequence[str], console: Console | None) -> str:
    """The key of what a search finds within the limit; ``method=NAME`` among the words is another method."""
    changes = dict(map(read_key_value, words))
    found = search(run.folder, {"macs": (0, _limit(run))}, changes.pop("method", None), changes, console)
    return str(found["best"])


def _found(run: Run, words: Sequence[str], seed: int, console: Console | None) -> float:
    """The best network within the limit, retrained; test accuracy."""
    best = _best(run, [*words, f"seed={seed}"], console)
    return float(retrain(run.folder, best, console=console).rows[-1]["accuracy"])


def _searched(run: Run, words: Sequence[str], console: Console | None) -> float:
    """The best network within the limit, with inherited weights; test accuracy."""
    best, trained = run.arch(_best(run, words, console)), TrainedRun.of(run)
    return trained.evaluator(trained.pictures.test())([best])[0]


def _ranks(run: Run, reference: Run, seed: int) -> Values:
    """How the supernet ranks networks, against their accuracy after a training alone (the same for all arms)."""
    archs = run.space().sample(RANKED, seed=seed)
    trained = TrainedRun.of(run)
    inside = trained.evaluator()(archs)
    alone = [standalone(reference, arch, "scratch", reference.recipe().train.epochs) for arch in archs]
    return {name: value for name, value in coefficients(inside, alone).items() if value is not None}


def _alone(arm: Arm, others: Callable[[str], Run]) -> tuple[Values, float]:
    """The largest network of the arm's space, trained by itself; test accuracy."""
    whole = arm.recipe
    tree: dict[str, Any] = whole.model_dump(mode="json")
    tree |= {"space": json.loads(point(space_of(whole).largest()).to_json()), "narrow": {}}
    tree["sampling"] = {"rule": "single"}
    own = from_tree(tree, whole.name, [])
    run = train(own, arm.data, arm.folder("alone", own), console=arm.console, minutes=arm.minutes)
    trained = TrainedRun.of(run)
    (accuracy,) = trained.evaluator(trained.pictures.test())([trained.space.smallest()])
    return {"alone": accuracy, **_health(run)}, run.recipe().train.epochs


def _evolved(arm: Arm, others: Callable[[str], Run]) -> tuple[Values, float]:
    """The E-T error of the arm's last space, and the best network that was seen in it."""
    own = arm.recipe
    found = evolve_space(own, arm.data, arm.folder("evolved", own), console=arm.console)
    last = found["spaces"][-1]
    return {"et_error": float(last["et_error"]), "best_error": float(last["best"])}, own.train.epochs
