"""What several processes do together: gradients on their way, shared work, checkpoints in parts, two machines."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from helpers.training import THOROUGH, environment, recipe, superformer
from helpers.training import command as words_of
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from superformer import data
from superformer.errors import StoppedError, SuperformerError
from superformer.evaluation.evaluator import Evaluator
from superformer.recipes import names, resolve, space_of
from superformer.recipes.settings import Watch
from superformer.runs import Run, neighbours, processes
from superformer.runs.processes import Travelling, World
from superformer.runs.storage import Checkpoint, latest_checkpoint, list_checkpoints, save_checkpoint, save_part
from superformer.settings import DEVICE, PROCESSES
from superformer.train import steps
from superformer.train.preparation import build_trainer
from superformer.train.state import Guard, Outcome
from superformer.train.steps import Loop
from superformer.train.time_budget import Timetable

LAPTOP = [name for name in names() if name.endswith("-laptop") and name != "demo-laptop"]


# --- gradients ---


class Twins:
    """Two processes that have the same, played by this one; what was sent, and what of it before all was there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bucket: int):
        self.sent: list[torch.dtype] = []
        self.early: list[int] = []
        monkeypatch.setattr(processes, "BUCKET", bucket)
        monkeypatch.setattr(dist, "all_reduce", self._all_reduce)
        arrive = Travelling.arrive
        monkeypatch.setattr(Travelling, "arrive", lambda own: (self.early.append(len(own.away)), arrive(own))[1])

    def _all_reduce(self, x: Tensor, async_op: bool = False) -> object:
        self.sent += [x.dtype] * async_op
        x.mul_(2)
        return SimpleNamespace(wait=lambda: None)


def gradients(name: str, world: World, *changes: str) -> dict[str, Tensor]:
    """Of the first step."""
    words = ("train.batch_size=16", "train.sync_norm=false", "watch.conflicts=0", "loss.teachers=[]", *changes)
    own = resolve(name, words)
    pictures = data.load("digits", own.data, own.img_size or space_of(own).img_size)
    trainer = build_trainer(own, space_of(own), pictures.classes, 20, 20, world)
    trainer.guard.explode = 1e9
    grid = trainer.net.patch_grid(trainer.img_size) if own.mix.patches != "off" else None
    batches = data.train_batches(
        pictures.train, own.data, own.mix, trainer.img_size, seed=0, epoch=0, batch_size=16, patch_grid=grid
    )
    with batches:
        trainer.step(0, next(batches))
    return {n: p.grad.clone() for n, p in trainer.net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", LAPTOP if THOROUGH else ["nasvit-laptop", "vitas-twins-laptop", "s3-laptop"])
@pytest.mark.parametrize("parts", [1, 2])
def test_gradients_that_travel_are_complete(monkeypatch: pytest.MonkeyPatch, name: str, parts: int) -> None:
    """Those of a block leave while the backward pass is at the blocks before it: nothing may come after."""
    words = (f"train.accumulate={parts}", f"train.recompute={str(parts == 2).lower()}", "data.workers=0")
    alone = gradients(name, World(), *words)
    twins = Twins(monkeypatch, 100)
    together = gradients(name, World(0, 2), *words)
    assert alone.keys() == together.keys()
    assert all(torch.equal(alone[key], together[key]) for key in alone)
    assert resolve(name).sampling.rule == "multi" or max(twins.early) > 3


def test_gradients_may_travel_in_half_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = gradients("nasvit-laptop", World())
    twins = Twins(monkeypatch, 1000)
    together = gradients("nasvit-laptop", World(0, 2), "gradients.travel=bfloat16")
    assert set(twins.sent) == {torch.bfloat16}
    assert any(not torch.equal(alone[key], together[key]) for key in alone)
    one, two = (torch.cat([g[key].flatten() for key in alone]) for g in (alone, together))
    assert float((one - two).norm() / one.norm()) < 0.01


# --- the command line on two processes ---


def run_of(folder: Path, *words: str, count: int = 2, data_spec: str = "digits") -> subprocess.CompletedProcess[str]:
    given = ("train", "--recipe", recipe(folder.parent), "--data", data_spec, "--run", str(folder))
    return superformer(*given, *words, processes=count)


@pytest.mark.xdist_group("two")
def test_checkpoints_in_parts_and_another_number_of_processes(
    tmp_path: Path, command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process writes a part, any number of processes reads them; another number goes on only when told so, and
    sees the same batches. The checks are the work of all."""
    words = ("train.epochs=0.5", "watch.checkpoint_steps=3", "watch.parts_above=0", "optimizer.lr=5e-4")
    words = (*words, "train.drop_path=0", "watch.every=0.25")
    done = run_of(tmp_path / "run", *words)
    assert done.returncode == 0, done.stderr[-2000:]
    run = Run(tmp_path / "run")
    newest = list_checkpoints(run.checkpoints)[-1]
    parts = sorted(run.checkpoints.glob(f"part-{newest.stem[5:]}-*"))
    assert [part.name[-18:] for part in parts] == ["0-of-2.safetensors", "1-of-2.safetensors"]
    kept = [set(load_file(part)) for part in parts]
    assert kept[0].isdisjoint(kept[1])
    assert load_file(newest) == {}
    whole = load_file(run.supernet_file)
    found = latest_checkpoint(run.checkpoints)
    assert found is not None
    assert found.rest["processes"] == 2
    assert {k: v for k, v in found.under("ema.").items() if k in whole}.keys() == whole.keys()
    checked = [row["accuracy"] for row in run.metrics() if row["kind"] == "health"]

    run.supernet_file.unlink()
    newest.unlink()  # as if it was killed before it was whole
    given = ("train", "--recipe", recipe(tmp_path), "--data", "digits", "--run", str(run.folder), *words)
    for word, says in (((), "was 2, and would now be 1.*--processes any"), (("--processes", "al"), "same, any")):
        status, _, error = command(*given, *word)
        assert status == 2
        assert re.search(says, error)
    monkeypatch.setenv(PROCESSES, "same")
    assert command(*given, "--processes", "any")[0] == 0
    again = load_file(run.supernet_file)
    assert max(float((whole[k] - again[k]).abs().max()) for k in whole) < 1e-5
    one = [row["accuracy"] for row in run.metrics() if row["kind"] == "health"]
    assert checked[:-1] == one[:-1]
    assert checked[-1] == pytest.approx(one[-1], abs=0.01)


def test_a_checkpoint_is_there_when_all_its_parts_are(tmp_path: Path) -> None:
    state = {f"net.{n}": torch.randn(n, 5) for n in range(1, 9)} | {"net.small": torch.randn(5)}
    rest = {"optimizer": {}, "guard": {}}
    for step in (1, 2, 3, 4):
        point = Checkpoint(step, {k: v + step for k, v in state.items()}, rest)
        for k in range(3):
            save_part(tmp_path, point, k, 3)
        if step < 4:  # killed before the last one was told of
            save_checkpoint(tmp_path, point, 2, 3)
    sizes = [part.stat().st_size for part in sorted(tmp_path.glob("part-000000003-*"))]
    assert max(sizes) < 2 * min(sizes)
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 3
    assert all(torch.equal(found.tensors[k], v + 3) for k, v in state.items())
    assert not list(tmp_path.glob("part-000000001-*"))  # went with the checkpoint
    shutil.copy(tmp_path / "part-000000004-1-of-3.safetensors", tmp_path / "part-000000003-1-of-3.safetensors")
    with pytest.warns(UserWarning, match="its part 1 is another one's"):
        found = latest_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 2


# --- who waits for whom ---


class Counting(World):
    """Two processes, of which this one is the first, and is asked for its numbers at these steps."""

    asked: ClassVar[list[float]] = []

    def first_says(self, value: float) -> float:
        self.asked.append(value)
        return float(value)

    def wait(self) -> None: ...


class Slow:
    """Steps that do nothing."""

    steps, steps_per_epoch, timetable, guard = 20, 20, Timetable(20), Guard(10.0)

    def __init__(self, world: World):
        self.world = world

    def step(self, n: int, batch: object) -> Outcome:
        return Outcome(1.0, 1.0, 0.1)

    def checkpoint(self, step: int) -> Checkpoint:
        return Checkpoint(step, {"net.x": torch.zeros(4)}, {"optimizer": {}, "guard": {}})


def test_processes_agree_every_few_steps_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first one's clock says costs a wait for the device: not after each step, and none of one process."""
    watch = Watch(parts_above=0, checkpoint_seconds=1e9, checkpoint_steps=9)
    saved: list[int] = []
    monkeypatch.setattr(steps, "save_part", lambda folder, point, rank, parts: saved.append(point.step))
    monkeypatch.setattr(steps, "save_checkpoint", lambda *words: None)

    def batches(epoch: int, start: int) -> data.Prefetcher[int]:
        return data.Prefetcher((k for k in range(start, 20)), 20 - start, depth=0)

    console, Counting.asked = Console(quiet=True), []
    loop = Loop(tmp_path, Slow(Counting(0, 2)), watch, 1, batches, None, console, 0, "")
    loop.go()
    assert saved == [9, 18, 20]
    assert len(Counting.asked) == 20 // steps.AGREE
    with monkeypatch.context() as patch:
        patch.setattr(torch, "tensor", None)
        assert World().first_says(2) == 2.0


def test_who_interrupts_stops_all_at_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all write checkpoints."""

    def batches(epoch: int, start: int) -> data.Prefetcher[int]:
        def numbers() -> Generator[int]:
            for k in range(20):
                loop.interrupt.asked = loop.interrupt.asked or k == 5
                yield k

        return data.Prefetcher(numbers(), 20, depth=0)

    watch = Watch(parts_above=0, checkpoint_seconds=1e9)
    loop = Loop(tmp_path, Slow(Counting(0, 2)), watch, 1, batches, None, Console(quiet=True), 0, "")
    monkeypatch.setattr(steps, "save_checkpoint", lambda *words: None)
    with pytest.raises(StoppedError, match="after step 8 of 20"):
        loop.go()
    assert [part.name[:14] for part in (tmp_path / steps.CHECKPOINTS).glob("part-*")] == ["part-000000008"]


def test_processes_wait_long_for_one_that_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one often works alone, for longer than the 10 minutes of nccl and the 30 of gloo."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **words: given.update(words))
    monkeypatch.setattr(processes, "rendezvous", lambda where: iter([(dist.HashStore(), 0, 2)]))
    monkeypatch.setattr(neighbours, "possible", lambda: False)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert World.join().size == 2
    assert given["timeout"] >= timedelta(hours=6)
    assert given["timeout"].total_seconds() == neighbours.PATIENCE


def test_the_first_one_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """And fails without leaving the others behind."""
    told: list[str] = []
    monkeypatch.setattr(World, "wait", lambda own: told.append("wait"))

    def begins(rank: int) -> None:
        with World(rank, 2).first_begins():
            told.append("work")
            raise KeyError

    for rank, wanted in ((0, ["work", "wait"]), (1, ["wait", "work"])):
        told.clear()
        with pytest.raises(KeyError):
            begins(rank)
        assert told == wanted


def test_more_processes_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DEVICE, raising=False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert processes.device_here() == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(SuperformerError, match=r"has 2 of cuda, and process 3 .*--nproc-per-node 2"):
        processes.device_here()


def test_what_one_process_does_is_refused_to_several(trained: Path, command, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ("--run", str(trained))
    monkeypatch.setenv("WORLD_SIZE", "2")
    for words in (("export", *run, "--arch", "smallest", "--to", "onnx"), ("report", *run),
                  ("latency", "export", *run, "--out", str(trained / "kit"))):  # fmt: skip
        status, out, error = command(*words)
        assert (status, out) == (2, "")
        assert re.search(r"(export|report|latency export) runs in one process", error)


def test_processes_share_what_is_evaluated_and_the_first_one_tells(
    trained: Path, command, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("eval", "--run", str(trained), "--json", "--split", "search")
    whole = json.loads(command(*words)[1])
    seen: list[int] = []
    scores = Evaluator.scores
    monkeypatch.setattr(Evaluator, "scores", lambda own, archs, *more: (seen.append(len(archs)), scores(own, archs))[1])
    monkeypatch.setattr(dist, "all_reduce", lambda x, **more: None)
    for rank in (0, 1):
        monkeypatch.setattr(World, "join", staticmethod(lambda rank=rank: World(rank, 2)))
        status, out, _ = command(*words)
        assert (status, seen.pop()) == (0, 1)
        rows = json.loads(out) if out else []
        assert [row["accuracy"] for row in rows] == ([whole[0]["accuracy"], 0.0] if rank == 0 else [])


# --- two machines ---


class Nodes:
    """Two namespaces of the network with a cable between them: to programs, two machines with one disk."""

    def __init__(self) -> None:
        self.names = [f"sf-{uuid.uuid4().hex[:6]}{k}" for k in range(2)]
        self.addresses = ["10.77.0.1", "10.77.0.2"]

    def __enter__(self) -> Nodes:
        one, two = self.names
        for name in self.names:
            self.ip("netns", "add", name)
        self.ip("link", "add", f"{one}v", "netns", one, "type", "veth", "peer", "name", f"{two}v", "netns", two)
        for name, address in zip(self.names, self.addresses, strict=True):
            self.ip("-n", name, "addr", "add", f"{address}/24", "dev", f"{name}v")
            self.ip("-n", name, "link", "set", f"{name}v", "up")
            self.ip("-n", name, "link", "set", "lo", "up")
        return self

    def ip(self, *words: str) -> None:
        assert shutil.which("ip"), "two networks on one machine need iproute2: apt-get install iproute2"
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
        assert done.returncode == 0, f"two networks on one machine cannot be made: {done.stderr}"

    def start(self, k: int, words: list[str]) -> subprocess.Popen[str]:
        own = environment() | {"GLOO_SOCKET_IFNAME": f"{self.names[k]}v"}
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[k], *words], env=own, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def __exit__(self, *problem: object) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make networks")
@pytest.mark.xdist_group("two")
def test_two_machines_are_as_one(tmp_path: Path) -> None:
    """Two networks with a cable between them, a process in each; the words of docs/many-devices.md."""
    words = ("train.epochs=0.25", "watch.checkpoint_seconds=1000")
    done = run_of(tmp_path / "one", *words)
    assert done.returncode == 0, done.stderr[-2000:]
    given = ("train", "--recipe", recipe(tmp_path), "--data", "digits", "--run", str(tmp_path / "two"), *words)
    with Nodes() as nodes:
        started = []
        for k, address in enumerate(nodes.addresses):
            there = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "runs-two"]
            there += ["--rdzv-endpoint", f"{nodes.addresses[0]}:29500", "--local-addr", address]
            there += ["--rdzv-conf", f"is_host={int(k == 0)}"]  # nobody here has a name that says who is who
            all_words = words_of(*given, processes=2)
            at = all_words.index("--standalone")
            started.append(nodes.start(k, [*all_words[:at], *there, *all_words[at + 3 :]]))
        try:
            told = [process.communicate(timeout=240)[0] for process in started]
        finally:
            for process in started:
                process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(told)[-3000:]
    assert "The supernet is in" in told[0]
    assert (tmp_path / "one" / "supernet.safetensors").read_bytes() == (
        tmp_path / "two" / "supernet.safetensors"
    ).read_bytes()
