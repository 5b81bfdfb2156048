"""A transfer on a device that is not the processor, and in several processes: how often a step waits, what is copied
ahead, what is timed, who speaks. torch's meta device has no numbers: who asks for one fails."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from superformer.planning import Nowhere
from superformer.runs.processes import World
from superformer.transfer import training
from superformer.transfer.settings import resolve
from superformer.transfer.task import Batch, Example
from superformer.transfer.timing import LEAST, _in_turn
from superformer.transfer.training import Trainer

META = torch.device("meta")


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 4)

    def rates(self, decay: float) -> dict[str, float]:
        return {name: 1.0 for name, _ in self.named_parameters()}


class Model(nn.Module):
    """A backbone and a head that has two losses."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = Base(), nn.Linear(4, 2)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        x = self.head(self.backbone.net(torch.stack(list(batch.pictures))))
        y = torch.stack([target["y"] for target in batch.targets])
        return {"far": self.factor * (x - y).square().mean(), "large": self.factor * x.abs().mean()}


class Elsewhere(Nowhere):
    """A process that counts what it reads."""

    reads = 0

    def read(self, numbers: Tensor) -> Any:
        type(self).reads += 1
        return super().read(numbers)


def trainer_of(world: World, *changes: str) -> Trainer:
    settings = resolve("segment", changes=["train.clip=1", "train.batch_size=4", *changes])
    made = Trainer(Model().to(world.device), settings, 10, 10, world)
    for group in made.optimizer.param_groups:
        group |= {"fused": False, "foreach": True}  # the meta device has no fused optimiser
    return made


def batch_on(device: torch.device, n: int = 4) -> Batch:
    return Batch([torch.zeros(4, device=device)] * n, [{"y": torch.zeros(2, device=device), "name": "a"}] * n)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_waits_once_and_sends_its_losses_together(accumulate):
    world = Elsewhere(0, 2, META)
    trainer, before = trainer_of(world, f"train.accumulate={accumulate}"), Elsewhere.reads
    outcome = trainer.step(0, batch_on(META))
    assert Elsewhere.reads == before + 1
    assert list(outcome.more["losses"]) == ["far", "large"]
    weights = sum(p.nbytes for p in trainer.parameters)
    assert sorted(world.sent) == [2 * 4, weights]  # bytes: two losses in one message, all gradients in another


def test_what_is_told_of_a_step_is_what_was_computed():
    settings = resolve("segment", changes=["train.batch_size=4", "train.clip=null"])
    trainer = Trainer(Model(), settings, 10, 10)
    batch = Batch(list(torch.randn(4, 4)), [{"y": y} for y in torch.randn(4, 2)])
    losses = trainer.model.losses(batch)
    outcome = trainer.step(0, batch)
    assert outcome.more["losses"] == {name: value.item() for name, value in losses.items()}
    assert outcome.loss == sum(outcome.more["losses"].values())
    grads = torch.cat([p.grad.flatten() for p in trainer.parameters])
    assert outcome.grad_norm == pytest.approx(float(grads.norm()))


def test_float16_has_a_factor_that_overflows_lower():
    words = ("train.amp=float16", "train.accumulate=2")
    trainer = trainer_of(World(), *words)
    few = torch.Generator().manual_seed(0)  # and small: gradients of larger ones may overflow with the usual factor
    x, y = (0.01 * torch.randn(4, n, generator=few) for n in (4, 2))
    batch = Batch(list(x), [{"y": one} for one in y])
    outcome, usual = trainer.step(0, batch), trainer.scaler.scale
    assert (outcome.bad, trainer.scaler.good) == (None, 1)
    assert 0 < outcome.grad_norm < 100  # without the factor
    before = [p.clone() for p in trainer.parameters]
    trainer.model.factor = 1e36  # gradients are numbers, but not with the factor
    outcome = trainer.step(1, batch)
    assert (outcome.bad, trainer.guard.skipped, trainer.scaler.scale) == (None, 0, usual / 2)
    assert all(torch.equal(p, old) for p, old in zip(trainer.parameters, before, strict=True))
    again = trainer_of(World(), *words)
    again.state.restore(trainer.checkpoint(2))
    assert vars(again.scaler) == vars(trainer.scaler)
    assert trainer_of(World()).scaler is None


class Copying:
    """Copies to the meta device, as `kernels.Arriving` makes them to one that copies while it computes."""

    waits = 0

    def __init__(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        self.tensors = {k: x.to(device) for k, x in tensors.items()}

    def wait(self) -> None:
        type(self).waits += 1


class Pictures:
    """Examples of a split; each picture is as wide as its number says."""

    def __len__(self) -> int:
        return 8

    def example(self, k: int, draw: tuple[int, int, int] | None = None) -> Example:
        return Example(torch.ones(3, 4, 4 + k), {"mask": torch.zeros(2 + k), "name": k})


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_sent_ahead_and_hold_what_they_held(monkeypatch, workers):
    settings = resolve("segment", changes=["train.batch_size=4", f"data.workers={workers}"])
    given = Pictures(), settings, 0, 0
    monkeypatch.setattr(training, "Arriving", Copying)
    with training.train_batches(*given, World(device=META)) as batches, training.train_batches(*given, World()) as own:
        for there, here in zip(batches, own, strict=True):
            assert {x.device for x in here.pictures} == {torch.device("cpu")}
            assert {x.device for x in [*there.pictures, *(t["mask"] for t in there.targets)]} == {META}
            assert [x.shape for x in there.pictures] == [x.shape for x in here.pictures]
            for a, b, x in zip(there.targets, here.targets, here.pictures, strict=True):
                assert (
                    (a["name"], a["mask"].shape) == (b["name"], b["mask"].shape) == (x.shape[2] - 4, (x.shape[2] - 2,))
                )


def test_a_step_waits_once_for_what_was_sent(monkeypatch):
    monkeypatch.setattr(training, "Arriving", Copying)
    monkeypatch.setattr(Copying, "waits", 0)
    trainer = trainer_of(Elsewhere(0, 1, META), "train.accumulate=2")
    batch = training.sent(batch_on(torch.device("cpu")), META)
    assert Copying.waits == 0
    trainer.step(0, batch)
    assert Copying.waits == 1


def test_where_nothing_is_copied_a_batch_is_as_it_was():
    batch = batch_on(torch.device("cpu"))
    sent = training.on_device(training.sent(batch, torch.device("cpu")), torch.device("cpu"))
    assert all(a is b for a, b in zip(sent.pictures, batch.pictures, strict=True))
    assert all(a["y"] is b["y"] and a["name"] is b["name"] for a, b in zip(sent.targets, batch.targets, strict=True))


def test_an_accelerator_times_its_own_work(monkeypatch):
    """By events: what was only started would be the time of a launch."""
    clock = iter(range(1000))

    class Event:
        def __init__(self, device: torch.device, enable_timing: bool) -> None:
            assert (device, enable_timing) == (torch.device("cuda", 1), True)

        def record(self) -> None:
            self.at = next(clock)

        def synchronize(self) -> None: ...

        def elapsed_time(self, other: Event) -> int:
            return other.at - self.at

    def slow() -> None:
        for _ in range(4):
            next(clock)

    monkeypatch.setattr(torch, "Event", Event)
    assert _in_turn([lambda: None, slow], 0.0, torch.device("cuda", 1)) == [[0.001] * LEAST, [0.005] * LEAST]


def test_the_first_process_alone_prints(command, monkeypatch, tmp_path):
    found: dict[str, Any] = {"metrics": {"miou": 0.5}, "task": "segment"}
    words = ("transfer", "--task", "segment", "--data", "x", "--backbone", "resnet18", "--out", str(tmp_path), "--json")
    for told, said in (({}, ""), (found, json.dumps({"miou": 0.5, "task": "segment"}) + "\n")):
        monkeypatch.setattr(import_module("superformer.transfer"), "transfer", lambda *given, told=told, **more: told)
        assert command(*words)[:2] == (0, said)
