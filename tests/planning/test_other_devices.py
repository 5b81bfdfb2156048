"""On a device that is not the processor (torch's meta device, which refuses to meet tensors of any other): steps,
evaluation, statistics of batch norms; and how often a step waits for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.training import THOROUGH
from torch import Tensor

from superformer.elastic.conv import recalibrate
from superformer.evaluation.prefix_tree import grow, walk
from superformer.planning import Nowhere, _batch
from superformer.recipes import Recipe, names, resolve, space_of
from superformer.spaces import supernet
from superformer.train.step import Trainer

META = torch.device("meta")
PAPER = [name for name in names() if not name.endswith("-laptop")]
SOME = PAPER if THOROUGH else ["vit-resnas", "alphanet"]
READS = {"sum": 1, "project": 3}
"""How often a step waits for the device: for the loss and the norm of the gradient; with projection also for the norm
of the small networks' gradient and the products of both."""


class Elsewhere(Nowhere):
    """A process on the meta device that counts what it reads."""

    reads = 0

    def read(self, numbers: Tensor) -> Any:
        type(self).reads += 1
        return np.ones(tuple(numbers.shape)).tolist()


@pytest.fixture(autouse=True)
def _no_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the meta device does not know."""
    whole = torch.is_autocast_enabled

    def enabled(device: str | None = None) -> bool:
        return device != "meta" and (whole(device) if device else whole())

    monkeypatch.setattr(torch, "is_autocast_enabled", enabled)


def trainer_of(recipe: Recipe, classes: int = 1000) -> Trainer:
    space = space_of(recipe)
    heads = {"patch_head": True} if recipe.mix.patches != "off" else {}
    words = {"drop_path": recipe.train.drop_path, "dropout": recipe.train.dropout}
    net = supernet(space, classes, recipe.sharing, **words, **heads).to(META).train()
    made = Trainer(net, recipe, 100, 100, Elsewhere(device=META))
    for group in made.optimizer.param_groups:
        group |= {"fused": False, "foreach": True}  # the meta device has no fused optimiser
    return made


@pytest.mark.parametrize("name", SOME)
def test_a_whole_step_and_what_it_waits_for(name):
    """The paper's own networks and batch."""
    recipe = resolve(name, ["loss.teachers=[]", "watch.conflicts=0", "train.amp=off"])
    trainer = trainer_of(recipe)
    batch = _batch(trainer, 1000)
    moved = type(batch)(*(t.to(META) for t in vars(batch).values() if t is not None))
    Elsewhere.reads = 0
    outcome = trainer.step(3, moved)  # the meta device has no numbers: whoever else asked for one would fail
    assert outcome.bad is None
    assert Elsewhere.reads == READS[recipe.gradients.rule]
    assert all(p.device == META for p in trainer.net.parameters())
    assert all(t.device == META for s in trainer.optimizer.state.values() for t in s.values() if t.ndim)


@pytest.mark.parametrize("name", ["nasvit", "vit-resnas-tiny", "s3-initial"])
def test_candidates_are_evaluated_there(name):
    net = supernet(name, 10).to(META).eval()
    space = net.space
    archs = space.sample(3, seed=0)
    x = torch.empty(4, 3, space.img_size, space.img_size, device=META)
    calibration = [x] if name == "nasvit" else ()
    with torch.no_grad():
        found = dict(walk(grow(net, archs, (space.img_size,) * 2), x, calibration))
    assert sorted(found) == [0, 1, 2]
    assert all(logits.device == META and logits.shape == (4, 10) for logits in found.values())
    recalibrate(net.extract(archs[0]), [x])
