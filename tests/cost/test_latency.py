"""Measuring and predicting latency. No test asserts a time: clocks and timers are made up where numbers are
compared."""

from __future__ import annotations

import gc
import importlib.util
import json
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.strategies import spaces_with_archs
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from superformer import kernels
from superformer.cost import cost, latency_table
from superformer.cost import latency as timing
from superformer.cost.latency import LEAST, TURN, WARM_UP, measure, measure_in_turn
from superformer.cost.latency_table import Fit, LatencyError, LatencyTable, Timer
from superformer.errors import SuperformerError
from superformer.machine import machine
from superformer.recipes import names, resolve, space_of
from superformer.space import Space
from superformer.space.arch import Arch

LAPTOP = [name for name in names() if name.endswith("-laptop")]


class Probe(nn.Module):
    """Writes down how it is run; each run takes ``seconds`` of a made-up clock."""

    def __init__(self, log: list[object], seconds: float = 1.0, time: list[float] | None = None):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.log, self.seconds, self.time = log, seconds, time if time is not None else [0.0]

    def forward(self, x: Tensor) -> Tensor:
        self.time[0] += self.seconds
        self.log.append(
            (
                self.seconds,
                tuple(x.shape),
                torch.get_num_threads(),
                self.training,
                torch.is_grad_enabled(),
                gc.isenabled(),
            )
        )
        return self.layer(x.mean((2, 3)))


def test_measured_in_turn_with_threads_set_and_everything_put_back() -> None:
    log: list[object] = []
    time = [0.0]
    models = [Probe(log, 1.0, time), Probe(log, 3.0, time).eval()]
    threads = torch.get_num_threads()
    first, second = measure_in_turn(models, (8, 6), batch=4, threads=2, seconds=10.0, clock=lambda: time[0])
    assert torch.get_num_threads() == threads
    assert [m.training for m in models] == [True, False]
    assert gc.isenabled()
    assert {entry[1:] for entry in log} == {((4, 3, 8, 6), 2, False, False, False)}  # type: ignore[index]
    turn = [1.0] * (1 + TURN) + [3.0] * (1 + TURN)
    order = [entry[0] for entry in log]  # type: ignore[index]
    assert order == [1.0] * WARM_UP + [3.0] * WARM_UP + turn * LEAST  # 60 seconds, though fewer were asked for
    assert (first.median, first.p90 - first.p10, first.runs, first.throughput) == (1.0, 0.0, LEAST * TURN, 4.0)
    assert (second.median, second.batch, second.threads, second.runtime) == (3.0, 4, 2, "eager")
    assert first.machine == machine()


def test_median_and_spread() -> None:
    ticks = iter(range(10**9))
    taken = iter(lambda: next(ticks) ** 0.5, None)  # each run is shorter than the one before
    found = measure(Probe([]), 4, seconds=5.0, clock=lambda: next(taken))
    assert found.fastest < found.p10 < found.median < found.p90


def test_everything_is_put_back_after_an_error() -> None:
    class Failing(Probe):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("no")

    net, threads = Failing([]), torch.get_num_threads()
    with pytest.raises(RuntimeError, match="no"):
        measure(net, 4, threads=2)
    assert (torch.get_num_threads(), net.training, gc.isenabled()) == (threads, True, True)


def test_errors_of_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SuperformerError, match="did you mean 'eager'"):
        measure(Probe([]), 4, runtime="eagre")
    with pytest.raises(SuperformerError, match="positive"):
        measure(Probe([]), 4, batch=0)
    with pytest.raises(SuperformerError, match="img_size is needed"):
        measure(Probe([]))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SuperformerError, match=r"superformer\[onnx\]"):
        measure(Probe([]), 4, runtime="onnx")


def test_onnx_runtime() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    found = measure(net, 4, runtime="onnx", batch=2, seconds=0.01)
    assert found.runtime == "onnx"
    assert found.machine == machine(runtime="onnx")
    assert net.training


def test_the_machine_has_a_name_without_host_and_folder() -> None:
    assert "torch" in machine()
    assert "/" not in machine()
    assert platform.node() not in machine().split()


# --- the table ---


def truth(space: Space, seed: int, num_classes: int = 10) -> LatencyTable:
    """A made-up machine on which latency is exactly a sum."""
    rng = np.random.default_rng(seed)
    genes = space.sample_genes(200, 0)
    parts = latency_table._tabulate(space, genes, num_classes, None)
    rates = {part: tuple(rng.uniform(0.5, 2.0, 3) * (1e-4, 1e-10, 1e-10)) for part in parts}
    fit = Fit(0, 0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return LatencyTable(
        machine(),
        1,
        "eager",
        "cpu",
        1,
        num_classes,
        None,
        space.family,
        dict(space.options),
        len(space.stages),
        1e-3,
        rates,
        fit,
    )  # type: ignore[arg-type]


def timer_of(space: Space, table: LatencyTable, noise: float = 0.0) -> Timer:
    rng = np.random.default_rng(0)

    def time(archs: Sequence[Arch], seconds: float) -> list[float]:
        return list(table.latency(space, archs) * np.exp(noise * rng.standard_normal(len(archs))))

    return time


@pytest.mark.parametrize("name", LAPTOP)
def test_a_machine_that_adds_is_recovered_exactly(name: str) -> None:
    space = space_of(resolve(name))
    real = truth(space, 3)
    table = LatencyTable.build(space, 10, timer=timer_of(space, real), networks=64)
    genes = space.sample_genes(300, 99)
    np.testing.assert_allclose(table.latency(space, genes), real.latency(space, genes), rtol=1e-6)
    assert (table.fit.networks, table.fit.held_out) == (64, 16)
    assert table.fit.p90_error < 1e-6
    assert table.fit.rank > 0.999


def test_noise_is_told() -> None:
    space = space_of(resolve("vitas-deit-laptop"))
    real = truth(space, 1)
    tables = [
        LatencyTable.build(space, 10, timer=timer_of(space, real, noise), networks=64) for noise in (0.0, 0.05, 0.3)
    ]
    errors = [t.fit.median_error for t in tables]
    assert errors == sorted(errors)
    assert tables[2].fit.rank < tables[0].fit.rank
    genes = space.sample_genes(300, 99)
    assert np.median(np.abs(tables[1].latency(space, genes) / real.latency(space, genes) - 1)) < 0.05


def test_the_number_of_networks_follows_from_the_time() -> None:
    space = space_of(resolve("vitas-deit-laptop"))
    real = timer_of(space, truth(space, 1))

    def times(factor: float) -> Timer:
        return lambda archs, seconds: [factor * t for t in real(archs, seconds)]

    counts = [LatencyTable.build(space, 10, timer=times(f), seconds=30.0).fit.networks for f in (0.01, 10.0, 1000.0)]
    assert counts[0] == latency_table.MOST["eager"]
    assert counts[2] == latency_table.LEAST
    assert counts == sorted(counts, reverse=True)


@given(spaces_with_archs(n=3), st.integers(0, 100))
def test_architectures_and_genes_tell_the_same(drawn: tuple[Space, list[Arch]], seed: int) -> None:
    space, archs = drawn
    table = truth(space, seed)
    total = table.latency(space, archs)
    np.testing.assert_array_equal(total, table.latency(space, space.encode(archs)))
    np.testing.assert_allclose([table.latency(space, a)[0] for a in archs], total, rtol=1e-12)


@given(spaces_with_archs(n=6), st.integers(0, 100))
def test_a_block_more_never_takes_less(drawn: tuple[Space, list[Arch]], seed: int) -> None:
    space, archs = drawn
    rng = np.random.default_rng(seed)
    # times that have nothing to do with the networks: the worst that can be fitted
    table = LatencyTable.build(space, 10, timer=lambda archs, s: list(rng.uniform(1, 2, len(archs))), networks=24)
    genes = space.encode(archs)
    for stage in space.layout.stages:
        for column in [c for c in (stage.depth,) if c is not None] + list(stage.on.values()):
            more = genes.copy()
            more[:, column] = np.minimum(more[:, column] + 1, space.bounds[column] - 1)
            assert (table.latency(space, more) >= table.latency(space, genes) * (1 - 1e-12)).all()


def test_many_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    space = space_of(resolve("vitas-twins-laptop"))
    table, genes = truth(space, 1), space.sample_genes(50, 5)
    whole = table.latency(space, genes)
    monkeypatch.setattr(latency_table, "AT_ONCE", 7)
    np.testing.assert_allclose(table.latency(space, genes), whole, rtol=1e-12)
    assert table.latency(space, genes[:0]).shape == (0,)


def test_stored_and_read_again(tmp_path: Path) -> None:
    space = space_of(resolve("vitas-twins-laptop"))
    table = LatencyTable.build(space, 10, timer=timer_of(space, truth(space, 1), 0.1), networks=30)
    assert table == LatencyTable.build(space, 10, timer=timer_of(space, truth(space, 1), 0.1), networks=30)
    table.save(tmp_path / "latency.json")
    again = LatencyTable.load(tmp_path / "latency.json", threads=1)
    assert again == table
    genes = space.sample_genes(20, 5)
    np.testing.assert_array_equal(again.latency(space, genes), table.latency(space, genes))


def test_times_of_another_machine_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = space_of(resolve("vitas-deit-laptop"))
    file = tmp_path / "latency.json"
    table = truth(space, 1)
    table.save(file)
    with pytest.raises(LatencyError, match="threads: 1 then, 2 now"):
        LatencyTable.load(file, threads=2)
    with pytest.raises(LatencyError, match="runtime: eager then, compiled now"):
        LatencyTable.load(file, threads=1, runtime="compiled")
    with pytest.raises(LatencyError, match="batch: 1 then, 8 now"):
        LatencyTable.load(file, threads=1, batch=8)
    monkeypatch.setattr(latency_table, "machine", lambda device, runtime: "another one")
    with pytest.raises(LatencyError, match=r"another one now.*build one here"):
        LatencyTable.load(file, threads=1)


@pytest.mark.parametrize("change", [{"version": 1}, {"parts": 3}, {"parts": {"end": [1]}}, {"unknown": 1}, {"fit": {}}])
def test_files_that_are_no_table(tmp_path: Path, change: dict[str, object]) -> None:
    file = tmp_path / "latency.json"
    truth(space_of(resolve("vitas-deit-laptop")), 1).save(file)
    data = json.loads(file.read_text())
    del data["checksum"]
    file.write_text(json.dumps({**data, **change}))
    with pytest.raises(LatencyError, match=r"latency.json.*build it again"):
        LatencyTable.load(file, threads=1)
    file.write_text("{")
    with pytest.raises(LatencyError, match="damaged"):
        LatencyTable.load(file, threads=1)
    with pytest.raises(LatencyError, match="is missing"):
        LatencyTable.load(tmp_path / "none.json", threads=1)


def test_other_spaces_are_refused() -> None:
    spaces = [space_of(resolve(name)) for name in ("vitas-deit-laptop", "vitas-twins-laptop")]
    with pytest.raises(LatencyError, match="build a table for it"):
        truth(spaces[0], 1).latency(spaces[1], spaces[1].sample(2))
    table = truth(spaces[1].narrow(type={0: "local"}), 1)
    with pytest.raises(LatencyError, match="stage 0 global"):
        table.latency(spaces[1], spaces[1].sample(20))


@pytest.fixture
def tiny_groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(latency_table, "AT_A_TIME", 100_000)
    monkeypatch.setattr(timing, "LEAST", 1)
    return


def test_what_is_predicted_is_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here on a machine whose medians are half as long again as its fastest runs."""

    def measured(models: Sequence[nn.Module], *words: object, **more: object) -> list[timing.Timing]:
        fastest = [1e-8 * sum(p.numel() for p in m.parameters()) for m in models]
        return [timing.Timing(1.5 * t, t, t, 2 * t, 9, 1, 1, "eager", "here") for t in fastest]

    monkeypatch.setattr(latency_table, "measure_in_turn", measured)
    monkeypatch.setattr(latency_table, "AT_A_TIME", 1_000_000)  # several groups
    space = space_of(resolve("vitas-deit-laptop"))
    table, archs = LatencyTable.build(space, 10, seconds=1, networks=30), space.sample(9, 7)
    assert table.latency(space, archs) == pytest.approx(1.5e-8 * cost(space, archs, 10).params, rel=0.05)
    assert all(abs(one.predicted / one.timing.median - 1) < 0.05 for one in table.against(space, archs))


@pytest.mark.usefixtures("tiny_groups")
def test_measured_for_real(monkeypatch: pytest.MonkeyPatch) -> None:
    space = space_of(resolve("vitas-deit-laptop"))
    groups = []

    def measured(models: Sequence[nn.Module], *words: Any, **more: Any) -> list[timing.Timing]:
        groups.append(len(models))
        return measure_in_turn(models, *words, **more)

    with monkeypatch.context() as patch:
        patch.setattr(latency_table, "measure_in_turn", measured)
        table = LatencyTable.build(space, 10, seconds=0.05, networks=6)
    assert len(groups) > 1
    archs = space.sample(3, 7)
    checked = table.against(space, archs, seconds=0.01)
    assert [c.arch for c in checked] == archs
    assert [c.predicted for c in checked] == list(table.latency(space, archs))
    assert all(c.timing.median > 0 for c in checked)


def test_an_accelerator_is_timed_by_its_own_events(monkeypatch):
    """Begun and ended on the device; nobody waits in between."""
    told: list[str] = []

    class Event:
        def __init__(self, device: torch.device, enable_timing: bool):
            assert (device.type, enable_timing) == ("cuda", True)
            self.name = "end" if told else "begin"
            told.append(f"made {self.name}")

        def record(self) -> None:
            told.append(self.name)

        def synchronize(self) -> None:
            told.append("waited")

        def elapsed_time(self, other: Event) -> float:
            assert (self.name, other.name) == ("begin", "end")
            return 2.5

    monkeypatch.setattr(torch, "Event", Event)
    taken = kernels.timer(torch.device("cuda"), lambda: 1 / 0)
    assert taken(lambda: told.append("work")) == 2.5e-3
    assert told[2:] == ["begin", "work", "end", "waited"]
    assert kernels.timer(torch.device("cpu"), iter((1.0, 3.5)).__next__)(lambda: None) == 2.5
