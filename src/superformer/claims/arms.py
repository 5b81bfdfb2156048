"""One arm of a claim with one seed: its recipe, its supernet, and what it has to train.

A supernet that several arms need is trained once: its folder is named after all that it depends on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from superformer.claims.declaration import Claim
from superformer.recipes import Recipe, resolve
from superformer.runs import Run
from superformer.train.loop import train
from superformer.train.time_budget import with_epochs

RANKED, COMPARED, TUNED, ALIKE, SPREAD = 24, 10, 0.2, 3, 6
"""Networks that are trained alone: to compare ranks; from inherited and from new weights, the former for this share of
the supernet's epochs; random ones that stand for all of a budget; ones whose spread is told."""


@dataclass(frozen=True)
class Arm:
    """One arm with one seed. ``epochs``: of its trainings, None: the recipe's. A warm-up has at most a third."""

    claim: Claim
    name: str
    seed: int
    data: str
    home: Path
    epochs: float | None = None
    console: Console | None = None

    @cached_property
    def recipe(self) -> Recipe:
        name, words = self.claim.recipe_of(self.name)
        whole = resolve(name, [*words, f"seed={self.seed}"])
        if self.epochs is None:
            return whole
        return with_epochs(whole, self.epochs, min(whole.optimizer.warmup_epochs, self.epochs / 3))

    @property
    def asked(self) -> dict[str, Any]:
        return self.claim.asked(self.name)

    def folder(self, kind: str, recipe: Recipe) -> Path:
        """Named after all that is trained there."""
        text = json.dumps([self.data, recipe.model_dump(mode="json")], sort_keys=True)
        return self.home / kind / f"{recipe.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def trained(self) -> Run:
        """Its supernet."""
        return train(self.recipe, self.data, self.folder("supernets", self.recipe), console=self.console)

    @property
    def reference(self) -> Arm:
        """The one whose networks are trained alone for all arms and seeds, to compare ranks with."""
        return replace(self, name=self.claim.order[0], seed=0)

    def trainings(self) -> dict[str, float]:
        """What the arm trains, by name, each counted in trainings of its length: with the same name once for all."""
        own, measure = self._told, self.claim.measure
        match measure:
            case "alone":
                return {f"alone {own}": 1}
            case "et_error" | "best_error":
                return {f"evolved {own}": self.recipe.evolve.rounds + 1}
            case "kendall":
                first = self.reference._told
                return {own: 1, first: 1, f"ranked {first}": RANKED}
        alone: dict[str, float] = {
            "found": 1,
            "chosen": ALIKE if self.asked.get("which") == "random" else 1,
            "weights": {"scratch": COMPARED, "finetuned": COMPARED * TUNED}.get(self.asked.get("weights", ""), 0),
            "spread": SPREAD,
        }
        more = alone.get(measure, 0)
        return {own: 1} | ({f"{measure} {self.claim.words(self.name)} {self.seed}": more} if more else {})

    @property
    def _told(self) -> str:
        name, words = self.claim.recipe_of(self.name)
        return " ".join([name, *words, f"seed={self.seed}"])
