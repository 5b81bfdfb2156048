"""A search that time ends (`superformer.train.time_budget`): how many candidates, on how many pictures, by a short
measurement; then the clock decides.

Rounds are made small enough that ending after one of them is in time. What was chosen, what the clock decided (after
how many candidates the search ended, and NASViT's predictor began to learn) and the seconds spent are in the run's
``searches.json``: the same words go on with them, and once it has ended find the same again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from superformer import files
from superformer.errors import SuperformerError
from superformer.evaluation.evaluator import TrainedRun, count_copies
from superformer.recipes.searching import Evolution, Exhaustive, Nsga2, Predictor, Random
from superformer.runs import stored
from superformer.runs.processes import World
from superformer.search.front import AT_ONCE, MEASURED, SECONDS, measured_here
from superformer.search.judging import wanted
from superformer.search.methods import Method, Proposer, method
from superformer.search.scores import JUDGED
from superformer.search.task import Task
from superformer.settings import SettingsBase
from superformer.train.time_budget import Stopwatch, say_end, say_time

SEARCHES = "searches.json"
SAMPLE, MEASURED_ON = 8, 512
"""Candidates, and pictures, of the measurement."""
ROUNDS, FEWEST, ENOUGH, LEAST_PICTURES = 16, 16, 64, 256
"""Parts that the candidates come in; without so many a search is refused; for so many, fewer pictures are taken, but
not less than this."""
RACED, AGAIN, LEARNT = 0.4, 0.2, 0.85
"""Guesses and shares: of the pictures that a race looks at; of the time, for judging the best again; of the rest, for
what a predictor learns from."""
ENDLESS = 10**6
MEASURING = 0.08
"""The most of the time that measuring the front is given, where what a table predicts is measured."""


def sized(own: SettingsBase, candidates: int) -> SettingsBase:
    """The settings of a method for about so many candidates, in rounds that are short; the clock ends it."""
    lot = max(candidates // ROUNDS, 4)
    changes: dict[str, Any] = {}
    if isinstance(own, Evolution):
        half = max(min(own.mutants + own.crossovers, lot) // 2, 1)
        first = max(min(own.first, candidates // 4), 4)
        changes = {"first": first, "rounds": ENDLESS, "parents": min(own.parents, max(first // 2, 2))}
        changes |= {"mutants": half, "crossovers": half}
    elif isinstance(own, Nsga2):
        changes = {"population": max(min(own.population, candidates // 5), 4), "generations": ENDLESS}
    elif isinstance(own, Predictor):
        changes = {"first": max(int(LEARNT * candidates), 8), "front": max(candidates // 8, 1)}
    elif isinstance(own, Random):
        changes = {"evaluations": ENDLESS, "batch": min(own.batch, lot)}
    elif isinstance(own, Exhaustive):
        changes = {"batch": min(own.batch, lot)}
    return own.model_copy(update=changes)


@dataclass(frozen=True)
class Amount:
    """What fits: candidates, the pictures of each, how many are judged again on ``copies`` of them, and how many
    candidates are looked at before the clock is."""

    candidates: int
    pictures: int
    judged: int

    @property
    def lot(self) -> int:
        return max(self.candidates // ROUNDS, 4)


def fitting(left: float, each: float, pictures: int, copies: int, share: float) -> Amount:
    """In ``left`` seconds, where a candidate takes ``each`` for a picture, and looks at a ``share`` of them."""
    spare = (1 - AGAIN) * left if copies > 1 else left
    enough = spare / (each * pictures * share)
    if enough < ENOUGH:
        pictures = min(pictures, max(LEAST_PICTURES, int(pictures * enough / ENOUGH)))
    judged = min(int(AGAIN * left / (each * pictures * copies)), JUDGED) if copies > 1 else 0
    spare = left - each * pictures * (copies * judged + 1)
    candidates = int(spare / (each * pictures * share))
    if candidates < FEWEST:
        needed = math.ceil(12 * FEWEST * each * pictures * share / (1 - AGAIN) / 6) / 10 / 2
        short = f"{say_time(max(left, 0))} are too short to judge {FEWEST} candidates on {pictures} pictures"
        raise SuperformerError(f"{short}: give about {max(needed, 0.1):.2g} minutes more")
    return Amount(candidates, pictures, judged)


class SearchClock:
    """Ends a search in time."""

    def __init__(self, file: Path, plans: list[dict[str, Any]], plan: dict[str, Any], watch: Stopwatch, world: World):
        self.file, self.plans, self.plan, self.watch, self.world = file, plans, plan, watch, world
        self.seconds = 60 * plan["minutes"] - plan.get("measuring", 0.0)
        self._lots, self._begun, self._shown = list[tuple[float, int]](), watch.seconds, 0
        watch.before += plan["seconds"] if plan.get("resumed") else 0.0

    @property
    def slow(self) -> float:
        """How many times as long as measured a picture takes now; what the history knew takes no time."""
        seconds, shown = (sum(known) for known in zip(*self._lots, strict=True)) if self._lots else (0.0, 0)
        return seconds / (self.plan["each"] * shown) if shown else 1.0

    def _a_lot(self) -> float:
        """Seconds that candidates took lately, so many as are looked at before the clock is."""
        return float(np.mean([seconds for seconds, _ in self._lots])) if self._lots else 0.0

    @property
    def end(self) -> float:
        """When candidates must end, for the best to be judged again, and the hand-made one."""
        each = self.slow * self.plan["each"] * self.plan["pictures"]
        return float(max(self.seconds - each * (self.plan["copies"] * self.plan["judged"] + 1), 0.7 * self.seconds))

    def again(self) -> int:
        """How many of the best are judged again, in what is left; decided once."""
        if "again" not in self.plan:
            each = self.slow * self.plan["each"] * self.plan["pictures"]
            fit = (self.seconds - self.watch.seconds - each) / max(each * self.plan["copies"], 1e-9)
            self.plan["again"] = int(self.world.first_says(min(max(int(fit), 0), JUDGED)))
            self.keep()
        return int(self.plan["again"]) if self.plan["judged"] else 0

    def keep(self) -> None:
        """What is decided is on the disk before it is done."""
        if self.world.first:
            self.plan["seconds"] = self.watch.seconds
            rows = [{k: v for k, v in plan.items() if k != "resumed"} for plan in self.plans]
            files.write_object(self.file, {"searches": rows})

    def before_round(self, own: Method) -> None:
        """A predictor that has learnt proposes as many as there is time for."""
        if not (isinstance(own, Proposer) and isinstance(own.settings, Predictor) and own.round == 1):
            return
        if "front" not in self.plan:
            each = max(self._a_lot() / self.plan["lot"], 1e-9)
            front = int((self.end - self.watch.seconds) / each)
            self.plan["front"] = int(self.world.first_says(min(max(front, 1), ENDLESS)))
            self.keep()
        own.settings = own.settings.model_copy(update={"front": self.plan["front"]})

    def over(self, told: int, shown: int, own: Method) -> bool:
        """Before each lot: whether what is left of this round, and so the search, must go; for a predictor that learns,
        only the round. ``told``: candidates until now, ``shown``: pictures that were looked at for them."""
        learns = isinstance(own, Proposer) and isinstance(own.settings, Predictor) and own.round == 1
        name, end = ("learnt", LEARNT * self.end) if learns else ("ended", self.end)
        now = self.watch.seconds
        if shown > self._shown:
            self._lots = [*self._lots[-3:], (now - self._begun, shown - self._shown)]
        self._shown = shown
        self._begun = now
        if name not in self.plan:
            if not self.world.first_says(float(told > 0 and now + self._a_lot() / 2 > end)):
                self.keep()  # the seconds
                return False
            self.plan[name] = told
            self.keep()
        return bool(told >= self.plan[name])


def timed(
    task: Task, trained: TrainedRun, minutes: float, watch: Stopwatch, world: World
) -> tuple[Task, SearchClock, list[str]]:
    """The search that fits into the time, its clock, and what to tell; what the same words chose before holds."""
    file = trained.run.folder / SEARCHES
    plans: list[dict[str, Any]] = stored.read(file).get("searches", [])
    asked = json.loads(json.dumps({**task.settings, "weights": trained.run.fingerprint()}))
    plan = next((p for p in plans if p["asked"] == asked and p["minutes"] == minutes), None)
    assert isinstance(task.method, Proposer)
    if plan is None:
        plan = {"asked": asked, "minutes": minutes, **_measured(task, trained, minutes, watch, world)}
        plans = [*plans, plan]
    else:
        plan["resumed"] = True
    options = task.options.model_copy(update={"pictures": plan["pictures"] if plan["fewer"] else task.options.pictures})
    own = sized(task.method.settings, plan["candidates"])
    settings = {**task.settings, "settings": own.model_dump(mode="json"), "options": options.model_dump(mode="json")}
    settings["minutes"] = minutes
    clock = SearchClock(file, plans, plan, watch, world)
    clock.keep()
    left = 60 * minutes - watch.seconds
    lines = [
        f"about {plan['candidates']} candidates on {plan['pictures']} pictures for {say_time(60 * minutes)}, "
        f"ends at about {say_end(left)}"
    ]
    if "ended" in plan:
        lines = [f"these words have ended after {plan['ended']} candidates, which are known"]
    return replace(task, options=options, method=method(task.problem, own), settings=settings), clock, lines


def _measured(task: Task, trained: TrainedRun, minutes: float, watch: Stopwatch, world: World) -> Mapping[str, Any]:
    """What a candidate takes for a picture, and what therefore fits."""
    whole = min(len(trained.pictures.search), task.options.pictures or ENDLESS)
    copies, few = count_copies(trained.recipe.data, trained.img_size), min(whole, MEASURED_ON)
    archs = task.net.space.decode(task.problem.draw(SAMPLE, np.random.default_rng(0)))
    judge = trained.evaluator(limit=few)
    judge.scores(archs[:1])
    start = watch.seconds
    judge.scores(archs)
    each = world.first_says((watch.seconds - start) / (len(archs) * few)) / world.size
    share = RACED if wanted(task.options, trained) else 1.0
    measuring = min(SECONDS * (AT_ONCE + MEASURED + 2), MEASURING * 60 * minutes) if measured_here(task) else 0.0
    left = 60 * minutes - measuring - world.first_says(watch.seconds)
    amount = fitting(left, max(each, 1e-9), whole, copies, share)
    return {**vars(amount), "lot": amount.lot, "copies": copies, "share": share, "each": each, "seconds": watch.seconds,
            "fewer": amount.pictures < whole, "measuring": measuring}  # fmt: skip
