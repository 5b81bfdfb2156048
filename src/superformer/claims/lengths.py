"""How long runs are: which are missing, how many trainings they need, and how many epochs fit into a time.

Trainings of a claim are as long as its user says (``epochs``); as fit into a ``budget``, measured once and kept, so
that a resume and other claims of the recipe are alike; or as its declaration says, or runs of the recipe that are
known, or the recipe itself. Where arms have equal times, they have minutes instead, and each its own epochs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from superformer.claims.arms import Arm
from superformer.claims.declaration import Claim
from superformer.claims.store import Key, Pictures, Store
from superformer.errors import SuperformerError
from superformer.progress import Tell
from superformer.recipes import resolve
from superformer.train.preparation import epochs_within
from superformer.train.time_budget import TooShortError

TRAINING, EACH = 0.6, 2.0
"""The share of a run's time that its training has, the rest is for searching and judging; minutes of a training where
arms have equal times and nobody says how long."""


@dataclass(frozen=True)
class Asked:
    """What a call asks for: pictures, how many seeds, how long, and the folder of its runs."""

    data: str
    home: Path
    seeds: int
    epochs: float | None = None
    budget: float | None = None
    console: Console | None = None


def rounded(epochs: float) -> float:
    return float(f"{epochs:.3g}")


class Lengths:
    """Of the runs of a call. ``each``: the minutes of a training, by the budget."""

    def __init__(self, asked: Asked, pictures: Pictures, store: Store, tell: Tell):
        self.asked, self.pictures, self.store, self.tell = asked, pictures, store, tell
        self.each: float | None = None
        self.told: set[str] = set()

    def known(self, claim: Claim) -> float | None:
        """The length of a claim's runs, as far as it is decided: epochs, or minutes where these are equal."""
        asked = self.asked
        if claim.same == "minutes":
            return self.store.length(_minutes(claim), asked.data) or (EACH if asked.budget is None else None)
        if asked.epochs is not None:
            return rounded(asked.epochs)
        before = self.store.length(claim.recipe, asked.data)
        if asked.budget is not None:
            if before is not None and claim.recipe not in self.told:
                self.told.add(claim.recipe)
                self.tell(f"{claim.recipe}: {before:g} epochs, as runs that are known (--epochs N for other ones)")
            return before
        return claim.epochs or before or rounded(resolve(claim.recipe, claim.common).train.epochs)

    def key(self, name: str, claim: Claim, arm: str, seed: int, length: float) -> Key:
        return Key(name, self.pictures, arm, seed, length, claim.words(arm))

    def missing(self, claims: Mapping[str, Claim]) -> list[Arm]:
        """The runs that are not known; seed by seed, so that arms can be compared early."""
        out, asked = [], self.asked
        for name, claim in claims.items():
            length = self.known(claim)
            for seed in range(asked.seeds):
                for arm in claim.arms:
                    if length is None or not self.store.has(self.key(name, claim, arm, seed, length)):
                        epochs = None if claim.same == "minutes" else length
                        out.append(Arm(claim, arm, seed, asked.data, asked.home, epochs, asked.console))
        return out

    def plan(self, claims: Mapping[str, Claim]) -> None:
        """Say what there is to do, and share the budget."""
        runs = self.missing(claims)
        if not runs:
            return
        trainings = count_trainings(runs)
        minutes = self.asked.budget
        if minutes is not None:
            self.each = TRAINING * minutes / trainings
        elif self.asked.console is not None:
            minutes = self._expected(runs)
        time = "" if minutes is None else f", about {minutes:.2g} minutes in all"
        self.tell(f"{len(runs)} runs are missing, with {trainings:.3g} trainings{time}")

    def _expected(self, runs: list[Arm]) -> float | None:
        """Minutes of runs whose epochs are known, by the pace of each recipe here."""
        paces, total, counted = dict[str, float](), 0.0, set[str]()
        for arm in runs:
            name, _ = arm.claim.recipe_of(arm.name)
            new = {told: n for told, n in arm.trainings().items() if told not in counted}
            counted |= set(new)
            if arm.claim.same == "minutes":
                total += sum(new.values()) * (self.known(arm.claim) or EACH)
                continue
            try:
                paces[name] = paces.get(name) or epochs_within(arm.recipe, arm.data, 1.0)
            except TooShortError:
                return None
            total += sum(new.values()) * arm.recipe.train.epochs / paces[name]
        return total / TRAINING

    def decide(self, claim: Claim, arm: Arm) -> tuple[float, float]:
        """The length of a run and its epochs; measured where nothing is known yet."""
        asked, store = self.asked, self.store
        length = self.known(claim)
        if claim.same == "minutes":
            length = length or self.each or EACH
            store.length(_minutes(claim), asked.data, length)
            alike = f"{claim.recipe}, {claim.title}, {arm.name}"
            epochs = store.length(alike, asked.data)
            if epochs is None:
                epochs = self._within(arm, length)
                store.length(alike, asked.data, epochs)
            return length, epochs
        if length is None:
            each = self.each or EACH
            length = min(self._within(replace(arm, name=name), each) for name in claim.arms)
            store.length(claim.recipe, asked.data, length)
            self.told.add(claim.recipe)
        return length, length

    def _within(self, arm: Arm, minutes: float) -> float:
        try:
            return rounded(epochs_within(arm.recipe, arm.data, minutes))
        except TooShortError as error:
            if self.asked.budget is None:
                raise
            least = math.ceil(self.asked.budget * error.needed / minutes)
            what = (
                f"--budget {self.asked.budget:g} leaves {60 * minutes:.2g} seconds for a training of {arm.claim.recipe}"
            )
            raise SuperformerError(f"{what}: give --budget {least} or more, or name fewer claims") from error


def count_trainings(runs: Iterable[Arm]) -> float:
    """How many trainings runs need, each as long as a supernet's; what several share is counted once."""
    needed: dict[str, float] = {}
    for arm in runs:
        needed |= arm.trainings()
    return sum(needed.values())


def _minutes(claim: Claim) -> str:
    return f"{claim.recipe}, {claim.title}"
