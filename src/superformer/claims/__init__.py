"""The papers' claims, measured again: each an experiment of two or more arms with several seeds, a verdict by one rule
(`superformer.claims.verdict`), and a page that shows every run.

Numbers are kept as soon as they are known, in one file (`superformer.claims.store`): killed, the same call goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from superformer import files
from superformer.claims.declaration import Claim, named
from superformer.claims.measures import Arm, measured
from superformer.claims.page import FILES, write_page
from superformer.claims.store import Store, export
from superformer.machine import machine
from superformer.progress import chapter, quiet, teller
from superformer.runs import Run
from superformer.train.preparation import epochs_within

SEEDS = 3
TRAINING, EACH = 0.6, 2.0
"""The share of a run's time that its training has, the rest is for searching and judging; minutes of a training where
arms have equal times and nobody says how long."""


def run(
    names: Sequence[str] = (), data: str = "digits", home: str | Path = "runs/claims", seeds: int = SEEDS,
    budget: float | None = None, out: str | Path | None = None, console: Console | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Measure claims, all or those that are named. ``budget``: minutes for all of it; trainings of a recipe have the
    same epochs, as many as fit. ``out``: a folder for the page and the files it is made of, else ``home``; runs that
    are in such files are not measured again."""
    folder, shown, claims = Path(home), quiet(console), named(list(names))
    pages = Path(out or folder)
    files.make_folder(pages / FILES)
    runs = sum(len(claim.arms) for claim in claims.values()) * seeds
    each = None if budget is None else TRAINING * budget / runs
    found = []
    with Store(folder / "claims.db") as store:
        for name, claim in named([]).items():
            store.learn(name, pages / FILES / f"{name}.json", claim.length)
        for name, claim in claims.items():
            with chapter(shown, f"{name}: {claim.title}"):
                _claim(name, claim, data, folder, seeds, each, store, console)
                found.append(export(name, claim, store, pages / FILES))
                teller(shown)(f"{name}: {found[-1]['verdict']}")
        known = [export(name, claim, store, pages / FILES) for name, claim in named([]).items() if store.rows(name)]
    write_page(known, pages)
    return found


def _claim(
    name: str, claim: Claim, data: str, home: Path, seeds: int, minutes: float | None, store: Store,
    console: Console | None,
) -> None:  # fmt: skip
    """The runs of a claim that are still missing; seed by seed, so that arms can be compared early."""
    tell = teller(quiet(console))
    for seed in range(seeds):

        def other(arm: str, seed: int = seed) -> Run:
            return Arm(claim, tuple(claim.arms[arm]), seed, data, home, store.length(claim.length(arm), data)).trained()

        for arm, words in claim.arms.items():
            key = (name, data, arm, seed)
            if store.has(key):
                continue
            alike = claim.length(arm)
            epochs = store.length(alike, data)
            tell(f"{arm}, seed {seed}")
            one = Arm(claim, tuple(words), seed, data, home, epochs, console)
            if epochs is None:
                given = minutes or (EACH if claim.same == "minutes" else None)
                epochs = one.recipe.train.epochs if given is None else epochs_within(one.recipe, data, given)
                epochs = float(f"{epochs:.3g}")
                store.length(alike, data, epochs)
                one = replace(one, epochs=epochs)
            begun = time.monotonic()
            store.put(key, epochs, measured(one, other), time.monotonic() - begun, machine())
