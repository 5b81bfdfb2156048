"""A sub-network trained by itself, in ``DIR/standalone/KEY/WEIGHTS-EPOCHS``, and its accuracy on the search split.

Killed, the same call goes on; called again, it reads the accuracy from that run's own history.
"""

from __future__ import annotations

from typing import Protocol

from superformer.alone import kept, trained
from superformer.analysis.subject import Subject
from superformer.errors import SuperformerError, nearest
from superformer.recipes import Recipe, overlaid
from superformer.run import Run
from superformer.single import WEIGHTS, Weights, only, single
from superformer.space.arch import Arch

FINE = 0.1
"""Learning rate of fine-tuning, as a share of the recipe's (S3 does not tell its own)."""


class Standalone(Protocol):
    """Trains an architecture of a run by itself and gives its accuracy on the search split."""

    def __call__(self, run: Run, arch: Arch, weights: Weights, epochs: float, /) -> float: ...


def standalone(run: Run, arch: Arch, weights: Weights, epochs: float) -> float:
    """The accuracy on the search split after so many epochs, from new weights (``scratch``) or from the inherited ones (``finetuned``)."""
    if weights not in WEIGHTS:
        raise SuperformerError(f"a network begins with weights that are scratch or finetuned: {nearest(weights, WEIGHTS)}")
    home = run.folder / "standalone" / arch.key
    own = Run(home / f"{weights}-{epochs:g}")
    if not own.supernet_file.exists():
        start = kept(run, arch, home / "inherited") if weights == "finetuned" else None
        trained(run, _recipe(run, arch, weights, epochs), own.folder, start)
    subject = Subject.open(own.folder)
    return subject.inherited([subject.space.smallest()])[0]


def _recipe(run: Run, arch: Arch, weights: Weights, epochs: float) -> Recipe:
    """The run's recipe for one network: as many epochs as asked, the warm-up as long a share of them, one look at the end."""
    recipe, fine, size = run.recipe(), weights == "finetuned", run.facts()["img_size"]
    own = recipe.optimizer
    warmup = 0.0 if fine else own.warmup_epochs * epochs / recipe.train.epochs
    part = {
        "img_size": None if size == arch.resolution else size,  # pictures as the supernet saw them
        "optimizer": {"lr": own.lr * (FINE if fine else 1), "warmup_epochs": warmup},
        "train": {"epochs": float(epochs)},
        "watch": {"every": float(epochs), "networks": 0},
    }
    return Recipe.model_validate(overlaid(single(recipe.model_dump(mode="json"), weights, only(arch)), part))
