"""What a training will take: the work of a step is what torch counts, its memory what is alive, times follow the
table; nothing is left behind."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.training import THOROUGH, recipe
from torch.utils.flop_counter import FlopCounterMode

from superformer import kernels, planning
from superformer.cost import cost
from superformer.errors import SuperformerError
from superformer.planning import AHEAD, Step, measured, plan, traced
from superformer.planning.devices import Devices, published
from superformer.planning.trace import Trace, Work, size_of
from superformer.recipes import Recipe, names, resolve, space_of
from superformer.runs.processes import World
from superformer.settings import DEVICE
from superformer.train.preparation import build_trainer

PLANNED = Path(__file__).parents[2] / "benchmarks" / "planned_memory.py"
LAPTOP = [name for name in names() if name.endswith("-laptop")]
LAPTOP = LAPTOP if THOROUGH else ["alphanet-laptop", "vit-resnas-laptop", "vitas-twins-laptop", "vitas-v1-laptop"]


def test_memory_is_what_is_alive_at_once():
    """Views cost nothing, what is forgotten is free again, memory that is shared counts once."""
    held = torch.empty(100)
    with Trace([held, held[:10]]) as trace:
        a = torch.ones(1000)
        assert trace.now == 4 * 1100
        b = a.view(10, 100)[3:]
        assert trace.now == 4 * 1100
        c = b * 2
        assert trace.now == 4 * 1800
        del a, b
        assert trace.now == 4 * 800
        del c
    assert (trace.now, trace.peak) == (4 * 100, 4 * 1800)
    assert size_of([held, held[:10], torch.empty(5)]) == 4 * 105


def test_work_is_what_torch_counts():
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 16)
    with FlopCounterMode(display=False) as counted, Trace() as trace:
        (x @ w).relu().sum().backward()
    assert sum(w.flops for w in trace.work) == counted.get_total_flops() == 2 * 2 * 4 * 8 * 16
    assert len([w for w in trace.work if w.flops]) == 2
    first = next(w for w in trace.work if w.flops)
    assert first.bytes == 4 * (4 * 8 + 8 * 16 + 4 * 16)


@pytest.mark.parametrize("name", LAPTOP)
def test_every_recipe_is_planned(name):
    """On an accelerator and on a processor; with weights, moments and gradients of its own networks."""
    own = resolve(name)
    space = space_of(own)
    step = traced(own, space, 10, 40, 20)
    real = build_trainer(own, space, [str(k) for k in range(10)], 40, 20, World(), warm=False)
    assert step.memory["weights"] == size_of([*real.net.parameters(), *real.net.buffers()])
    moments = {"adamw": 2, "sgd": 1}.get(own.optimizer.name, 2)
    assert step.memory["optimizer"] == pytest.approx(moments * size_of(real.parameters), rel=0.01, abs=4096)
    assert 0 < step.memory["gradients"] <= 2 * size_of(real.parameters)  # the largest network's may be kept apart
    assert step.memory["total"] == sum(v for k, v in step.memory.items() if k != "total")
    assert step.memory["activations"] > 0
    assert step.mean <= step.macs
    # forward and backward of what is multiplied, and no more than some of it again
    flops = sum(w.flops for w in step.work)
    assert flops == pytest.approx(2 * 3 * step.macs, rel=0.35)


def test_a_step_of_one_network_has_three_times_its_work():
    """A network without convolutions and windows: forward, and twice as much backward, but for the pictures'."""
    own = resolve("vitas-deit-laptop", ["train.ema=null"])
    space = space_of(own)
    step = traced(own, space, 10, 10, 10)
    assert sum(w.flops for w in step.work) == pytest.approx(6 * step.macs, rel=0.08)
    macs = float(cost(space, [space.largest()], 10).macs[0]) * own.train.batch_size
    assert step.macs <= macs


def test_more_devices_share_a_batch_and_less_memory_is_found():
    whole = plan("vit-resnas-laptop", "digits", "1xA100-80GB")
    shared = plan("vit-resnas-laptop", "digits", "2xA100-80GB")
    assert whole["steps"] == shared["steps"]
    assert shared["memory"]["activations"] < 0.6 * whole["memory"]["activations"]
    # half of them there and back; and sums of batch norms
    assert shared["memory"]["gradients"] < shared["bytes_sent_a_step"] < 1.1 * shared["memory"]["gradients"]
    assert whole["bytes_sent_a_step"] == 0
    assert set(whole["memory"]) >= {"weights", "gradients", "optimizer", "activations", "total"}
    json.dumps(whole)
    before = plan("vitas-deit-laptop", "digits")["memory"]["activations"]
    for words in (["train.recompute=true"], ["train.amp=bfloat16"], ["train.accumulate=2"]):
        assert plan("vitas-deit-laptop", "digits", changes=words)["memory"]["activations"] < 0.8 * before, words


def test_what_does_not_fit_and_what_would(monkeypatch):
    small = published()["T4-16GB"]
    own = plan("vitas-deit-laptop", "digits", "1xT4-16GB")
    tiny = Devices(1, type(small)(**{**vars(small), "memory": 0.8 * own["memory"]["total"]}))
    monkeypatch.setattr(Devices, "read", staticmethod(lambda text: tiny))
    found = plan("vitas-deit-laptop", "digits", "tiny")
    assert not found["fits"]
    assert found["changes"]
    for row in found["changes"]:
        assert row["total"] <= tiny.device.usable
        assert not any("bfloat16" in word for word in row["words"])  # which it does not have


def test_times_follow_the_table():
    device = published()["A100-80GB"]
    assert device.seconds([Work(0, 0)]) == 1 / device.starts
    assert device.seconds([Work(10**15, 0)]) == pytest.approx(1e15 / (device.single * device.reached))
    assert device.seconds([Work(10**15, 0)], half=True) == pytest.approx(1e15 / (device.half * device.reached))
    assert device.seconds([Work(0, 10**12)]) == pytest.approx(1e12 / (device.bandwidth * device.reached))
    for device in published().values():
        assert 1e10 < device.memory < 1e12
        assert 1e12 < device.single <= device.half < 1e16
    for text in ("8xA100", "0xA100-80GB", "many", ""):
        with pytest.raises(SuperformerError, match="devices are written as 8xA100-80GB"):
            Devices.read(text)
    assert str(Devices.read("a100-80gb")) == "1xA100-80GB"
    assert str(Devices.read("64xH100")) == "64xH100-80GB"
    with pytest.raises(SuperformerError, match="A100-40GB or A100-80GB"):
        Devices.read("8xA100")


def test_this_machines_processor_needs_no_table(monkeypatch):
    monkeypatch.setattr(planning, "GLANCE", 0.1)
    found = plan("vitas-v1-laptop", "digits", "cpu")
    assert found["devices"].startswith("1x")
    assert found["memory"]["pictures"] < plan("vitas-v1-laptop", "digits")["memory"]["pictures"]  # none wait there
    assert "measured" in found["assumed"][0]


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setenv(DEVICE, "xpu")
    with pytest.raises(SuperformerError, match="no device 'xpu' here"):
        plan("vitas-v1-laptop", "digits")


def test_auto_is_the_precision_of_the_planned_device():
    def memory(device: str, *words: str) -> dict[str, int]:
        return plan("vitas-v1-laptop", "digits", device, words)["memory"]

    auto, half, whole = "train.amp=auto", "train.amp=bfloat16", "train.amp=off"
    assert memory("A100-80GB", auto) == memory("A100-80GB", half) != memory("A100-80GB", whole)
    assert memory("T4-16GB", auto) == memory("T4-16GB", whole)


def test_work_and_messages_are_those_of_the_traced_step():
    """Of what is computed again and of teachers, too; gradients in the precision in which they travel."""
    own = resolve("vitas-deit-laptop", ["train.ema=null"])
    space, per = space_of(own), (10, 10, 10)
    once = plan(own, "digits")["macs_a_step"]
    step = traced(own, space, *per)
    assert once == pytest.approx(3 * step.mean, rel=0.08)
    for word in ("train.recompute=true", "loss.teachers=[resnet10t]"):
        assert plan("vitas-deit-laptop", "digits", changes=["train.ema=null", word])["macs_a_step"] > 1.1 * once, word
    words = ["train.ema=null", "gradients.travel=bfloat16"]
    both = [traced(resolve("vitas-deit-laptop", w), space, *per, 2).sent for w in (words[:1], words)]
    assert both[1] == pytest.approx(both[0] / 2, rel=1e-3)
    assert step.sent == 0


def test_what_cannot_fit_is_not_traced(monkeypatch):
    own = resolve("vitas-v1-laptop", ["train.batch_size=64", "train.amp=off"])
    device, asked = replace(published()["A100-80GB"], memory=100 / 0.92), list[str]()

    def step_of(recipe: Recipe, *how: object) -> Step:
        train = recipe.train
        asked.append(f"{train.amp} {train.recompute} {train.accumulate}")
        least = 1000 / train.accumulate * (0.5 if train.amp == "bfloat16" else 1) * (0.3 if train.recompute else 1)
        return Step({**dict.fromkeys(("weights", "optimizer", "average"), 10), "activations": round(least),
                     "total": 30 + round(least)}, [Work(1, 1)], 1.0, 1.0, 0)  # fmt: skip

    monkeypatch.setattr(planning, "traced", step_of)
    whole = step_of(own).memory
    asked.clear()
    found = list(planning._that_fit(own, space_of(own), 10, 10, 10, Devices(1, device), whole, True))
    assert [row["words"][-1] for row in found] == [f"train.accumulate={n}" for n in (16, 8, 8, 4)]
    assert asked[:2] == ["off False 16", "bfloat16 False 8"]
    assert len(asked) < 8


def test_several_devices_like_the_one_at_hand(monkeypatch):
    device = replace(published()["T4-16GB"], name="here", published=False)
    monkeypatch.setattr(planning, "_at_hand", lambda *how: device)
    found = plan("vitas-v1-laptop", "digits", "2xA100-80GB", measure=1.0)
    assert found["devices"] == "2xhere"
    assert found["bytes_sent_a_step"] > 0
    assert "600 GB/s between devices" in found["assumed"][0]


def test_what_is_reached_is_a_share_of_the_peak_that_steps_use(monkeypatch):
    """Of half precision's, where they have that; nothing hides that it is above 1."""
    device = replace(published()["A100-80GB"], reached=1.0, starts=1e30)
    trainer, work = SimpleNamespace(parameters=[torch.zeros(1)]), [Work(10**15, 0)]
    clock = itertools.count()
    monkeypatch.setattr(measured.time, "perf_counter", lambda: float(next(clock)))

    def share(half: bool) -> float:
        return measured.reached(device, trainer, lambda n: None, work, 0.0, half).reached  # type: ignore[arg-type]

    single, half = share(False), share(True)
    assert single / half == pytest.approx(device.half / device.single)
    assert single > 1


def test_nothing_is_left_behind(tmp_path):
    """A network trains as ever after a plan in the same process: no memory without numbers is used again."""
    from superformer.train.loop import train

    plan(recipe(tmp_path), "digits")
    assert kernels.mode() == "auto"
    run = train(recipe(tmp_path), "digits", tmp_path / "run", "train.epochs=0.2")
    assert run.supernet_file.exists()


def test_recomputed_blocks_give_the_same_gradients():
    def gradients(word: str) -> list[torch.Tensor]:
        own = resolve("vitas-deit-laptop", [word, "train.drop_path=0.2", "train.ema=null"])
        space = space_of(own)
        trainer = build_trainer(own, space, [str(k) for k in range(10)], 10, 10, World(), warm=False)
        from superformer.planning import _batch

        batch = _batch(trainer, 10)
        batch.x.normal_(generator=torch.Generator().manual_seed(0))
        batch.target.fill_(0.1)
        trainer.step(0, batch)
        return [p.detach().clone() for p in trainer.parameters]

    for a, b in zip(gradients("train.recompute=false"), gradients("train.recompute=true"), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["vitas-deit-laptop", "nasvit-laptop"])
def test_memory_is_what_a_process_really_takes(name):
    """Single path, and a sandwich with projection; of whole recipes: benchmarks/planned_memory.py."""
    words = [sys.executable, str(PLANNED), name, "--batch", "128"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert json.loads(told)["ratio"] == pytest.approx(1, abs=0.1)


def test_a_step_in_many_parts_is_told_by_two_of_them():
    own = resolve("vitas-deit-laptop", ["train.batch_size=64", "train.ema=null"])
    space, told = space_of(own), dict[int, Step]()
    for parts in (1, 2, 4):
        train = own.train.model_copy(update={"accumulate": parts})
        told[parts] = traced(own.model_copy(update={"train": train}), space, 10, 10, 10)
    work = {parts: sum(w.flops for w in step.work) for parts, step in told.items()}
    assert work[1] == work[2] == work[4]
    assert len(told[4].work) - len(told[2].work) == 2 * (len(told[2].work) - len(told[1].work))
    assert (
        told[1].memory["pictures"]
        == told[4].memory["pictures"]
        == (1 + AHEAD)
        * size_of(
            [
                torch.empty(64, 3, space.img_size, space.img_size),
                torch.empty(64, 10),
                torch.zeros(64, dtype=torch.int64),
            ]
        )
    )
    assert told[4].memory["activations"] < 0.6 * told[2].memory["activations"]
    with pytest.raises(SuperformerError, match="in 3 equal parts"):
        traced(resolve("vitas-deit-laptop", ["train.accumulate=3", "train.batch_size=64"]), space, 10, 10, 10)
