"""Half precision and devices: what overflows is scaled down and taken back, what is asked for and not there is told."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.training import recipe, superformer

from superformer import data, kernels
from superformer.errors import SuperformerError
from superformer.recipes import resolve, space_of
from superformer.runs.processes import World, device_here
from superformer.settings import DEVICE
from superformer.train import state
from superformer.train.preparation import build_trainer
from superformer.train.state import Scaler
from superformer.train.step import Trainer

DIGITS = [str(k) for k in range(10)]


def made(tmp_path, *words: str) -> tuple[Trainer, data.Batch]:
    own = resolve(recipe(tmp_path), words)
    trainer = build_trainer(own, space_of(own), DIGITS, 10, 10, World())
    pictures = data.load("digits", own.data, 16)
    batches = data.train_batches(
        pictures.train, own.data, own.mix, 16, seed=0, epoch=0, batch_size=64, start=0, rank=0, world=1
    )
    return trainer, next(iter(batches))


def test_what_overflows_in_float16_is_taken_back_and_scaled_down(tmp_path):
    trainer, batch = made(tmp_path, "train.amp=float16")
    assert trainer.scaler is not None
    trainer.scaler.scale = 2.0**140  # more than float32 holds
    before = [p.detach().clone() for p in trainer.parameters]
    outcome = trainer.step(0, batch)
    assert outcome.bad is None  # it is not the network's fault
    assert not math.isfinite(outcome.grad_norm)
    assert trainer.scaler.scale == 2.0**139
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.parameters, strict=True))
    assert trainer.guard.skipped == 0
    trainer.scaler.scale = 2.0**10
    assert math.isfinite(trainer.step(0, batch).grad_norm)
    assert not all(torch.equal(a, b) for a, b in zip(before, trainer.parameters, strict=True))
    again, _ = made(tmp_path, "train.amp=float16")
    again.state.restore(trainer.checkpoint(1))
    assert again.scaler == trainer.scaler == Scaler(2.0**10, 1)


@pytest.mark.parametrize("words", [(), ("gradients.rule=sum",), ("sampling.rule=single",)])
def test_the_factor_is_not_in_the_gradients(tmp_path, words):
    """In float32, where nothing overflows, a step with a factor of two's power is the one without, to rounding."""
    plain, batch = made(tmp_path, *words)
    scaled, _ = made(tmp_path, *words)
    scaled.scaler = Scaler(2.0**12)
    one, two = plain.step(0, batch), scaled.step(0, batch)
    assert one.loss == two.loss
    assert one.grad_norm == pytest.approx(two.grad_norm, rel=1e-5)


def test_the_factor_grows_after_many_good_steps(monkeypatch):
    monkeypatch.setattr(state, "GROWS", 3)
    own = Scaler(8.0)
    for _ in range(3):
        own.went_well()
    assert own == Scaler(16.0, 0)
    assert own.overflowed()
    assert own == Scaler(8.0, 0)
    assert not Scaler(1.0).overflowed()  # then the guard judges


@pytest.mark.parametrize("amp", ["bfloat16", "float16"])
def test_half_precision_learns_as_float32_does(tmp_path, amp):
    """The first steps' losses are the same to the precision."""

    def losses(*words: str) -> list[float]:
        trainer, batch = made(tmp_path, "train.drop_path=0", "loss.distill=none", *words)
        return [trainer.step(n, batch).loss for n in range(4)]

    assert losses(f"train.amp={amp}") == pytest.approx(losses(), rel=0.03)


def test_a_device_that_is_not_there_is_told_of(monkeypatch, tmp_path):
    monkeypatch.setenv(DEVICE, "cpu")
    assert device_here() == torch.device("cpu") == World.join().device
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setenv(DEVICE, "cuda")
    with pytest.raises(SuperformerError, match=r"no device 'cuda' here .*--device auto"):
        device_here()
    monkeypatch.setenv(DEVICE, "auto")
    assert device_here() == torch.device("cpu")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    for kind, expected in (("cuda", "cuda:1"), ("xpu", "xpu:1"), ("mps", "mps")):
        monkeypatch.setattr(
            torch.accelerator, "current_accelerator", lambda check_available, kind=kind: torch.device(kind)
        )
        monkeypatch.setenv("LOCAL_RANK", "1")
        assert device_here() == torch.device(expected)


def test_the_command_line_names_devices(tmp_path):
    words = ("train", "--recipe", recipe(tmp_path), "--data", "digits", "--run", str(tmp_path / "run"), "--device")
    done = superformer(*words, "gpu")
    assert done.returncode == 2
    assert "unknown device 'gpu'" in done.stderr
    assert not (tmp_path / "run").exists()


def test_batches_are_copied_while_the_device_computes(monkeypatch):
    """From pinned memory on a stream of their own; what uses them is started after they are there."""
    told: list[str] = []

    class Stream:
        def __enter__(self):
            return self

        def __exit__(self, *problem):
            pass

        def record_event(self):
            told.append("sent")
            return "arrived"

        def wait_event(self, event):
            told.append(f"use after {event}")

    meta = torch.device("meta")
    monkeypatch.setattr(kernels, "STREAMS", ("meta",))
    monkeypatch.setattr(kernels, "_copying", lambda device: Stream())
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda: Stream())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: told.append("pinned") or x)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda x, stream: told.append("kept"))
    batch = data.Batch(torch.zeros(4, 3, 8, 8), torch.zeros(4, 10), torch.zeros(4, dtype=torch.int64))
    sent = batch.sent(meta)
    assert told == ["pinned"] * 3 + ["sent"]
    parts = sent.parts(2, meta)
    assert told[4:] == ["use after arrived"] + ["kept"] * 3
    assert all(part.x.device == meta and len(part.x) == 2 for part in parts)
    same = batch.sent(torch.device("cpu"))
    assert same.x is batch.x


def test_accelerators_multiply_float32_as_tf32_unless_told_not_to(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", said.append)
    for value, wanted in (("0", []), ("1", ["high"])):
        monkeypatch.setenv(kernels.HIGH, value)
        kernels._fast_products.cache_clear()
        for device in ("cpu", "meta", "cuda", "cuda"):
            with kernels.precision(torch.device(device), "off"):
                pass
        assert said == wanted
    kernels._fast_products.cache_clear()
