"""A sub-network trained by itself: as the supernet of the space with one point, in ``DIR/standalone/KEY/WEIGHTS-EPOCHS``.

Killed, the same call goes on; called again, it reads the accuracy from that run's own history.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, Protocol

from superformer.analysis.subject import Subject
from superformer.errors import SuperformerError, nearest
from superformer.recipes import Recipe
from superformer.recipes.settings import Gradients, Sampling, Start
from superformer.retrain import inherited
from superformer.run import Run
from superformer.space import point
from superformer.space.arch import Arch
from superformer.stored import CONFIG, save_network
from superformer.train.loop import train

Weights = Literal["scratch", "finetuned"]
WAYS: tuple[Weights, ...] = ("scratch", "finetuned")
FINE = 0.1
"""Learning rate of fine-tuning, as a share of the recipe's (S3 does not tell its own)."""


class Standalone(Protocol):
    """Trains an architecture of a run by itself and gives its accuracy on the search split."""

    def __call__(self, run: Run, arch: Arch, weights: Weights, epochs: float, /) -> float: ...


def standalone(run: Run, arch: Arch, weights: Weights, epochs: float) -> float:
    """The accuracy on the search split after so many epochs, from new weights (``scratch``) or from the inherited ones (``finetuned``)."""
    if weights not in WAYS:
        raise SuperformerError(f"a network begins with weights that are scratch or finetuned: {nearest(weights, WAYS)}")
    home = run.folder / "standalone" / arch.key
    own = Run(home / f"{weights}-{epochs:g}")
    if not own.supernet_file.exists():
        recipe = alone(run, arch, weights, epochs)
        if own.recipe_file.exists():
            recipe = recipe.model_copy(update={"start": own.recipe().start})  # the run's folder may have been moved since
        elif weights == "finetuned":
            recipe = recipe.model_copy(update={"start": Start(network=str(_begin(run, arch, home / "inherited")))})
        train(recipe, run.facts()["data"], own.folder)
    subject = Subject.open(own.folder)
    return subject.inherited([subject.space.smallest()])[0]


def _begin(run: Run, arch: Arch, folder: Path) -> Path:
    """The network with its inherited weights, as a folder."""
    if not (folder / CONFIG).exists():
        settings = run.recipe().data
        save_network(inherited(run, arch), folder, run.facts()["classes"], settings.mean, settings.std)
    return folder


def alone(run: Run, arch: Arch, weights: Weights, epochs: float) -> Recipe:
    """The run's recipe for one network: nothing to draw, nobody to teach; the warm-up as long a share of the training."""
    recipe, fine = run.recipe(), weights == "finetuned"
    own, share = recipe.optimizer, epochs / recipe.train.epochs
    size = run.facts()["img_size"]
    return recipe.model_copy(
        update={
            "name": f"{recipe.name}-{weights}",
            "space": json.loads(point(arch).to_json()),
            "narrow": {},
            "img_size": None if size == arch.resolution else size,
            "sharing": "ordinal",
            "sampling": Sampling(rule="single"),
            "loss": recipe.loss.model_copy(update={"distill": "none"}),
            "gradients": Gradients(clip=recipe.gradients.clip),
            "optimizer": own.model_copy(
                update={"lr": own.lr * (FINE if fine else 1), "warmup_epochs": 0.0 if fine else own.warmup_epochs * share}
            ),
            "train": recipe.train.model_copy(update={"epochs": float(epochs), "channel_sort": 0.0}),
            "start": Start(),
            "watch": recipe.watch.model_copy(update={"every": float(epochs), "networks": 0}),
        }
    )
