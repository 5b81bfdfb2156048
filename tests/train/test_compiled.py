"""``train.compile``: a network by itself, as compiled code, trains to the same weights; stopped, it goes on with the
same bits."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from helpers.training import SPACE, recipe

from superformer.errors import SuperformerError
from superformer.planning import real_step
from superformer.recipes import resolve
from superformer.runs.processes import World
from superformer.train.loop import train
from superformer.train.preparation import build_trainer

WORDS = ["sampling.rule=single", "gradients.rule=sum", "loss.distill=none", "train.drop_path=0", "train.batch_size=8"]


def test_a_supernet_is_refused(tmp_path):
    with pytest.raises(SuperformerError, match=r"train\.compile compiles networks by themselves"):
        train(recipe(tmp_path), "digits", tmp_path / "run", "train.compile=true")
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_one_network_trains_to_the_same_weights_and_goes_on(tmp_path):
    point = SPACE.point(SPACE.smallest())
    own = resolve(recipe(tmp_path), [*WORDS, "mix.mixup=0", "mix.cutmix=0"])
    own = own.model_copy(update={"space": json.loads(point.to_json())})

    def made(compile: bool):
        settings = own.model_copy(update={"train": own.train.model_copy(update={"compile": compile})})
        return build_trainer(settings, point, [str(k) for k in range(10)], 10, 10, World(), warm=False)

    _, batch = real_step(own, point, 10, 10, 10, World())
    plain, fast = made(False), made(True)
    assert "run" in vars(fast.net)
    for other in (plain.net, fast.best, copy.deepcopy(fast.net)):  # which have their own blocks
        assert "run" not in vars(other)
    for n in range(2):
        found, wanted = fast.step(n, batch), plain.step(n, batch)
        assert found.loss == pytest.approx(wanted.loss, rel=1e-4)
    torch.testing.assert_close(fast.net.state_dict(), plain.net.state_dict(), atol=1e-4, rtol=1e-3)
    saved = copy.deepcopy(fast.checkpoint(2))
    whole = fast.step(2, batch)
    again = made(True)  # as a process does that goes on
    again.state.restore(saved)
    assert again.step(2, batch) == whole
    for a, b in zip(fast.parameters, again.parameters, strict=True):
        assert torch.equal(a, b)
    whole_run = resolve(recipe(tmp_path), [*WORDS, "train.compile=true", "train.epochs=0.02", "train.ema=null"])
    run = train(whole_run.model_copy(update={"space": own.space}), "digits", tmp_path / "run")
    assert run.supernet_file.exists()  # with checks and checkpoints of the compiled network
