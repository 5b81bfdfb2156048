"""The papers' claims, measured again: each an experiment of two or more arms with several seeds, a verdict by one rule
(`superformer.claims.verdict`), and a page that shows every run.

Numbers are kept as soon as they are known, in one file (`superformer.claims.store`): killed, the same call goes on."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from superformer import files
from superformer.claims.declaration import Claim, named
from superformer.claims.lengths import Asked, Lengths
from superformer.claims.measures import measured
from superformer.claims.page import FILES, write_page
from superformer.claims.store import Pictures, Store
from superformer.claims.summary import export
from superformer.errors import SuperformerError
from superformer.machine import machine
from superformer.progress import chapter, quiet, teller

SEEDS = 3
SMALL = ("weak-augmentation", "warm-up", "distillation-in-swin")
"""What a budget is spent on where no claim is named: two arms each, a supernet a run."""


def run(
    names: Sequence[str] = (), data: str = "digits", home: str | Path = "runs/claims", seeds: int = SEEDS,
    budget: float | None = None, out: str | Path | None = None, console: Console | None = None,
    epochs: float | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Measure claims: those that are named, or all; with a ``budget`` of minutes for all of it, a few (`SMALL`).
    ``epochs``: of each training, else as fit into the budget, or as the claims say (`superformer.claims.lengths`).
    ``out``: a folder for the page and the files it is made of, else ``home``; runs that are in such files are not
    measured again. With ``seeds=0`` nothing is measured, and the page is made again."""
    if budget is not None and epochs is not None:
        raise SuperformerError("a budget and epochs both say how long to train: leave one of them out")
    folder, shown = Path(home), quiet(console)
    claims = named(list(names or (SMALL if budget is not None else ())))
    pages, tell = Path(out or folder), teller(quiet(console))
    files.make_folder(pages / FILES)
    with Store(folder / "claims.db") as store:
        _learn(store, pages)
        if seeds:
            asked = Asked(data, folder, seeds, epochs, budget, console)
            lengths = Lengths(asked, Pictures.of(data), store, tell)
            lengths.plan(claims)
            for name, claim in claims.items():
                with chapter(shown, f"{name}: {claim.title}"):
                    _measure(name, claim, lengths, store)
                    tell(f"{name}: {_export(store, pages)[name]['verdict']}")
        every = _export(store, pages)
        return [every[name] for name in claims]


def _measure(name: str, claim: Claim, lengths: Lengths, store: Store) -> None:
    """The runs of a claim that are still missing."""
    for arm in lengths.missing({name: claim}):
        lengths.tell(f"{arm.name}, seed {arm.seed}")
        length, epochs = lengths.decide(claim, arm)
        key = lengths.key(name, claim, arm.name, arm.seed, length)
        if not store.has(key):  # which length it has may be known only now
            begun = time.monotonic()
            store.put(key, epochs, measured(replace(arm, epochs=epochs)), time.monotonic() - begun, machine())


def _learn(store: Store, pages: Path) -> None:
    """What files know that were written before: the runs, and how long those of a recipe are."""
    for name, claim in named([]).items():
        store.learn(name, pages / FILES / f"{name}.json")
        for row in store.rows(name) if claim.same == "epochs" else ():
            store.length(claim.recipe, row["data"], row["length"])


def _export(store: Store, pages: Path) -> dict[str, dict[str, Any]]:
    """Write the files of all claims and the page, with what another process has written there meanwhile."""
    with _alone(pages / FILES):
        _learn(store, pages)
        found = {name: export(name, claim, store, pages / FILES) for name, claim in named([]).items()}
        write_page(list(found.values()), pages)
    return found


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time: the others wait. The lock is one of the folder itself, and goes with its process."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
