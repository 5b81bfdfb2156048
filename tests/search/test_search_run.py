"""Searches of a trained run, for real: killed and resumed, on two processes, within limits."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from helpers.training import MOMENTS, command, environment, superformer
from hypothesis import given
from hypothesis import strategies as st

import superformer as sf
from superformer import files
from superformer.cost.runtimes import measuring_device
from superformer.errors import SuperformerError
from superformer.evaluation import evaluator
from superformer.evaluation.evaluator import Score, evaluate
from superformer.runs import RunError, stored
from superformer.search import front, search
from superformer.search import front as module
from superformer.search import scores as racing
from superformer.search.scores import LEAST, agreed, parts

WORDS = {"population": 12, "generations": 5}


def test_the_front_lies_within_the_limits(trained: Path) -> None:
    found = search(trained, {"macs": (0, 3e5)}, "nsga2", WORDS)
    assert found["front"]
    assert found == stored.read(trained / "front.json")
    space = sf.Run.open(trained).space()
    for row in found["front"]:
        arch = sf.Arch.from_json(json.dumps(row["arch"]))
        assert arch in space
        assert sf.cost(space, [arch], num_classes=10).macs[0] == row["macs"] <= 3e5
    scores = [(row["accuracy"], -row["loss"]) for row in found["front"]]
    assert scores == sorted(scores, reverse=True)
    others = [
        row["macs"] for row in found["front"] if row["key"] != found["best"]
    ]  # the best may have been found on more pictures
    assert others == sorted(others, reverse=True)
    rows = evaluate(trained, ["best"], "search")
    assert rows[0]["accuracy"] == pytest.approx(
        next(row["accuracy"] for row in found["front"] if row["key"] == found["best"])
    )


def test_accuracy_and_loss_are_kept_and_equals_are_told_apart_by_loss(trained: Path) -> None:
    found = search(trained, {"macs": (0, 3e5)}, "nsga2", WORDS)
    with sqlite3.connect(trained / "history.db") as db:
        values = [json.loads(text) for (text,) in db.execute('SELECT "values" FROM evaluations')]
    assert all(v["accuracy"] <= 1 and v["loss"] > 0 for v in values)
    best = next(row for row in found["front"] if row["key"] == found["best"])
    inside = [v for v in values if v["macs"] <= 3e5]
    first = found["front"][0]
    assert first["accuracy"] == max(v["accuracy"] for v in inside)
    assert first["loss"] == min(v["loss"] for v in inside if v["accuracy"] == first["accuracy"])
    again = [v for v in values if "moved_accuracy" in v]
    assert len(again) == min(64, len(inside))
    places = agreed([Score(v["moved_accuracy"], v["moved_loss"]) for v in again])
    assert best["loss"] in [v["loss"] for v, place in zip(again, places, strict=True) if place == places.max()]


def test_a_history_from_before_losses_were_kept_still_serves(trained: Path) -> None:
    first = search(trained, {"macs": (0, 3e5)}, "random", {"evaluations": 30})
    with sqlite3.connect(trained / "history.db") as db:
        for number, text in list(db.execute('SELECT id, "values" FROM evaluations')):
            old = {k: v for k, v in json.loads(text).items() if k != "loss"}
            db.execute('UPDATE evaluations SET "values" = ? WHERE id = ?', (json.dumps(old), number))
        for table in ("subjects", "searches", "evaluations"):  # such a history had no checksums either
            db.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
        db.execute("PRAGMA user_version = 1")
    again = search(trained, {"macs": (0, 3e5)}, "random", {"evaluations": 30})
    assert again["evaluated"] == first["evaluated"]
    assert all("loss" not in row for row in again["front"])
    assert again["front"][0]["accuracy"] == first["front"][0]["accuracy"]
    more = search(trained, {"macs": (0, 3e5)}, "nsga2", WORDS)
    assert more["evaluated"] > again["evaluated"]


RACED = {
    "nsga2": {"objectives": "accuracy", **WORDS},
    "evolution": {"first": 30, "rounds": 4, "parents": 4, "mutants": 8, "crossovers": 8},
    "random": {"evaluations": 80, "batch": 10},
}


@pytest.mark.parametrize(("method", "words"), RACED.items())
def test_a_race_ends_with_the_same_front(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, words: dict[str, int]
) -> None:
    monkeypatch.setattr(evaluator, "LAP", 4)
    for finals in (front, racing):
        monkeypatch.setattr(finals, "FINALISTS", 8)
    monkeypatch.setattr(front, "JUDGED", 4)
    shutil.copytree(trained, tmp_path / "raced")
    whole = search(trained, {"macs": (0, 3e5)}, method, words)
    raced = search(tmp_path / "raced", {"macs": (0, 3e5)}, method, {**words, "racing": True})
    shown = [[(row["key"], row["accuracy"]) for row in found["front"]] for found in (whole, raced)]
    assert shown[0] == shown[1]
    assert raced["evaluated"] < whole["evaluated"]  # what was stopped is not kept as if it were whole
    again = search(tmp_path / "raced", {"macs": (0, 3e5)}, method, words)
    assert again["evaluated"] == whole["evaluated"]
    assert [row["key"] for row in again["front"]] == [row["key"] for row in whole["front"]]


def test_nothing_is_evaluated_twice(trained: Path) -> None:
    first = search(trained, {"macs": (0, 3e5)}, "nsga2", WORDS)
    count = len(list(sqlite3.connect(trained / "history.db").execute("SELECT 1 FROM evaluations")))
    assert count == first["evaluated"]
    again = search(trained, {"macs": (0, 3e5)}, "nsga2", WORDS)
    assert again["evaluated"] == count
    assert again["front"] == first["front"]
    wider = search(trained, {}, "random", {"evaluations": 20})
    assert count < wider["evaluated"] <= count + 20


@pytest.mark.xdist_group("kill")
def test_killed_at_some_moments_it_ends_with_the_same_front(trained_once: Path, tmp_path: Path) -> None:
    shutil.copytree(trained_once, tmp_path / "whole")
    shutil.copytree(trained_once, tmp_path / "broken")
    words = ("--macs-max", "300k", "--method", "nsga2", "population=16", "generations=25")
    done = superformer("search", "--run", str(tmp_path / "whole"), *words)
    assert done.returncode == 0, done.stderr
    rng, kills, counts = random.Random(0), 0, [0]
    while kills < MOMENTS:
        process = subprocess.Popen(
            command("search", "--run", str(tmp_path / "broken"), *words),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        start = time.monotonic()
        while _count(tmp_path / "broken") <= counts[-1] and process.poll() is None and time.monotonic() - start < 60:
            time.sleep(0.005)
        time.sleep(0.15 * rng.random())
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        counts.append(_count(tmp_path / "broken"))
        kills += 1
    done = superformer("search", "--run", str(tmp_path / "broken"), *words)
    assert done.returncode == 0, done.stderr
    assert kills >= 3
    assert counts == sorted(counts)
    whole, broken = (json.loads((tmp_path / name / "front.json").read_text()) for name in ("whole", "broken"))
    assert whole["front"] == broken["front"]
    assert whole["evaluated"] == broken["evaluated"]


def _count(run: Path) -> int:
    if not (run / "history.db").exists():
        return 0
    with sqlite3.connect(f"file:{run / 'history.db'}?mode=ro", uri=True) as db:
        return int(db.execute("SELECT COUNT(*) FROM evaluations").fetchone()[0])


@pytest.mark.xdist_group("two")
def test_two_processes_find_the_same_front(trained_once: Path, tmp_path: Path) -> None:
    fronts = []
    for processes in (1, 2):
        shutil.copytree(trained_once, tmp_path / str(processes))
        words = (
            "--run",
            str(tmp_path / str(processes)),
            "--macs-max",
            "300k",
            "--method",
            "evolution",
            "first=20",
            "rounds=4",
        )
        done = superformer("search", *words, processes=processes)
        assert done.returncode == 0, done.stderr[-2000:]
        fronts.append(json.loads((tmp_path / str(processes) / "front.json").read_text()))
    assert fronts[0]["front"] == fronts[1]["front"]
    assert fronts[0]["evaluated"] == fronts[1]["evaluated"]


@given(st.lists(st.floats(1, 100), max_size=80), st.integers(1, 5))
def test_processes_share_candidates_evenly(macs: list[float], processes: int) -> None:
    """Taken one after the other by whoever is free, no process is left with much more than its share."""
    sizes = [macs[part] for part in parts(np.asarray(macs), processes)]
    assert [one for part in sizes for one in part] == macs
    assert all(len(one) >= LEAST for one in sizes[:-1])
    done = [0.0] * processes
    for one in sizes:
        done[int(np.argmin(done))] += sum(one)
    assert max(done) <= sum(macs) / processes + LEAST * 100


def test_a_latency_limit(trained: Path) -> None:
    words = {"first": 10, "rounds": 2, "table_seconds": 2, "parents": 4, "mutants": 4, "crossovers": 4}
    found = search(trained, {"latency": (0, 1.0)}, "evolution", words)
    assert found["objectives"] == ["accuracy", "latency"]
    assert all(row["measured"] > 0 for row in found["front"][:12])


def test_what_one_would_draw_by_hand_is_set_beside_the_front(trained: Path) -> None:
    """The largest network, scaled to the limit: evaluated with the same supernet, no candidate, and a word for it."""
    found = search(trained, {"macs": (0, 2.2e5)}, "random", {"evaluations": 6})
    row, space = found["baseline"], sf.Run.open(trained).space()
    arch = sf.Arch.from_json(json.dumps(row["arch"]))
    assert row["key"] == arch.key
    assert arch in space
    assert 1.5e5 < row["macs"] == sf.cost(space, [arch], num_classes=10).macs[0] <= 2.2e5
    assert arch == sf.Run.open(trained).arch("baseline")
    assert row["accuracy"] == pytest.approx(evaluate(trained, ["baseline"], "search")[0]["accuracy"])
    with sqlite3.connect(trained / "history.db") as db:
        assert db.execute("SELECT count(*) FROM evaluations").fetchone() == (found["evaluated"],) == (6,)
    # without limits it has the MACs of the best
    again = search(trained, {}, "random", {"evaluations": 6})
    best = next(r["macs"] for r in again["front"] if r["key"] == again["best"])
    assert again["baseline"]["macs"] <= best
    # front.json of before has none
    files.write_object(trained / "front.json", {k: v for k, v in found.items() if k != "baseline"})
    with pytest.raises(SuperformerError, match="unknown architecture 'baseline'"):
        sf.Run.open(trained).arch("baseline")


def test_networks_are_measured_where_they_are_asked_to_be(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of another device is another file; here of torch's device without numbers, which any machine has."""
    monkeypatch.setattr(module, "SECONDS", 0.01)
    words = {"evaluations": 3, "table_seconds": 0.2, "throughput_batch": 4, "device": "meta"}
    found = search(trained, {"throughput": (1, np.inf)}, "random", words)
    table = json.loads((trained / "latency-eager-1-4-meta.json").read_text())
    assert table["device"] == found["device"] == "meta"
    assert all(row["measured_throughput"] > 0 for row in [*found["front"], found["baseline"]])
    search(trained, {"throughput": (1, np.inf)}, "random", words | {"device": "cpu"})
    assert json.loads((trained / "latency-eager-1-4.json").read_text())["device"] == "cpu"
    with pytest.raises(SuperformerError, match="device=nowhere cannot be used here"):
        search(trained, {"latency": (0, 1)}, "random", words | {"device": "nowhere"})
    with pytest.raises(SuperformerError, match="runtime=onnx measures on the CPU"):
        search(trained, {"latency": (0, 1)}, "random", words | {"runtime": "onnx"})


def test_the_worlds_device_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for device, runtime, expected in (("cuda:1", "eager", "cuda"), ("cpu", "eager", "cpu"), ("cuda:1", "onnx", "cpu")):
        assert measuring_device(None, torch.device(device), runtime) == expected


def test_a_machine_that_became_slower_is_told_of() -> None:
    rows = [{"latency": 1.0, "measured": m} for m in (1.5, 1.6, 1.1, 1.7)]
    assert "1.55 times as long as predicted: other work on this machine began" in next(module.drift(rows))
    assert not list(module.drift([{**row, "measured": 1.1} for row in rows]))
    assert not list(module.drift(rows[:2]))
    assert not list(module.drift([{"latency": 1.0}] * 5))


def test_the_best_meets_the_limit_when_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front is measured from the most accurate down until one meets the limit, twice; here with times that are
    given."""

    def best(*times: float) -> int:
        left = list(times)
        rows = [{"key": str(k), "accuracy": 1 - k / 10} for k in range(5)]

        def measure(task: object, some: list[dict[str, float]]) -> None:
            for row in some:
                row["measured"] = max(row.get("measured", 0), left.pop(0))

        monkeypatch.setattr(module, "measure", measure)
        task = SimpleNamespace(
            latency=SimpleNamespace(imported=False),
            throughput=None,
            problem=SimpleNamespace(limits={"latency": (0, 1.0)}),
        )
        chosen = module.best_measured(task, rows, rows[:2], lambda text: None)
        assert chosen is not None
        assert not left
        return int(chosen["key"])

    monkeypatch.setattr(module, "AT_ONCE", 2)
    assert best(0.9, 0.5, 0.95) == 0
    assert best(0.9, 0.5, 1.1, 0.6) == 1  # the first met it by luck
    assert best(2.0, 1.5, 1.2, 0.9, 0.9) == 3
    assert best(2.0, 1.5, 1.2, 1.1, 0.8, 0.8) == 4
    assert best(2.0, 1.5, 1.05, 1.1, 1.2) == 2  # none does: the nearest


def test_mistakes(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(sf.InfeasibleError, match="reachable"):
        search(trained, {"macs": (0, 10)})
    with pytest.raises(
        sf.InfeasibleError, match=r"reached: \d.* ms to \d.* ms latency, by the smallest and the largest network$"
    ):
        search(trained, {"latency": (0, 1e-7)})
    with mock.patch("superformer.cost.runtimes.onnxruntime", side_effect=AssertionError("a network was built")):
        for limits in ({"latency": (0.0, 1e-7)}, {"throughput": (1e9, np.inf)}):
            with pytest.raises(sf.InfeasibleError, match="runtime=onnx is not 30 times as fast"):
                search(trained, limits, changes={"runtime": "onnx"})
    assert not list(trained.glob("latency-*"))
    with pytest.raises(SuperformerError, match="did you mean 'nsga2'"):
        search(trained, {}, "nsga")
    with pytest.raises(SuperformerError, match="did you mean 'population'"):
        search(trained, {}, "nsga2", {"populaton": 3})
    with pytest.raises(SuperformerError, match="depth=budget needs a stage of equal blocks"):
        search(trained, {}, "nsga2", {"depth": "budget"})
    with pytest.raises(SuperformerError, match="objectives are accuracy and then"):
        search(trained, {}, "nsga2", {"objectives": "macs,accuracy"})
    with pytest.raises(RunError, match="there is no run"):
        search(tmp_path / "nothing")
    assert not (trained / "history.db").exists()
    with pytest.raises(RunError, match="was not searched yet"):
        evaluate(trained, ["best"])
    (trained / "history.db").write_bytes(b"this is no database, but someone's work")
    with pytest.raises(SuperformerError, match=r"history\.db"):
        search(trained, {}, "random", {"evaluations": 3})
    assert (trained / "history.db").read_bytes() == b"this is no database, but someone's work"
    (trained / "supernet.safetensors").unlink()
    with pytest.raises(RunError, match="not trained yet"):
        search(trained)
