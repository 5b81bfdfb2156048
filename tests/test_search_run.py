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

import pytest
from training import command, environment, recipe, superformer

import superformer as sf
from superformer.errors import SuperformerError
from superformer.evaluation.report import evaluate
from superformer.run import RunError
from superformer.search.run import search
from superformer.train.loop import train

WORDS = {"population": 12, "generations": 5}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train(recipe(folder), "digits", folder / "run")
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def test_the_front_lies_within_the_limits(run: Path) -> None:
    found = search(run, {"macs": (0, 3e5)}, "nsga2", WORDS)
    assert found["front"]
    assert found == json.loads((run / "front.json").read_text())
    space = sf.Run.open(run).space()
    for row in found["front"]:
        arch = sf.Arch.from_json(json.dumps(row["arch"]))
        assert arch in space
        assert sf.cost(space, [arch], num_classes=10).macs[0] == row["macs"] <= 3e5
    scores = [(row["accuracy"], row["macs"]) for row in found["front"]]
    assert scores == sorted(scores, reverse=True)
    rows = evaluate(run, ["best"], "search")
    assert rows[0]["accuracy"] == pytest.approx(found["front"][0]["accuracy"])


def test_nothing_is_evaluated_twice(run: Path) -> None:
    first = search(run, {"macs": (0, 3e5)}, "nsga2", WORDS)
    count = len(list(sqlite3.connect(run / "history.db").execute("SELECT 1 FROM evaluations")))
    assert count == first["evaluated"]
    again = search(run, {"macs": (0, 3e5)}, "nsga2", WORDS)
    assert again["evaluated"] == count
    assert again["front"] == first["front"]
    wider = search(run, {}, "random", {"evaluations": 20})
    assert count < wider["evaluated"] <= count + 20


@pytest.mark.xdist_group("kill")
def test_killed_at_ten_moments_it_ends_with_the_same_front(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "whole")
    shutil.copytree(trained, tmp_path / "broken")
    words = ("--macs-max", "300k", "--method", "nsga2", "population=16", "generations=25")
    done = superformer("search", "--run", str(tmp_path / "whole"), *words)
    assert done.returncode == 0, done.stderr
    rng, kills, counts = random.Random(0), 0, [0]
    while kills < 10:
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
def test_two_processes_find_the_same_front(trained: Path, tmp_path: Path) -> None:
    fronts = []
    for processes in (1, 2):
        shutil.copytree(trained, tmp_path / str(processes))
        words = ("--run", str(tmp_path / str(processes)), "--macs-max", "300k", "--method", "evolution", "first=20", "rounds=4")
        done = superformer("search", *words, processes=processes)
        assert done.returncode == 0, done.stderr[-2000:]
        fronts.append(json.loads((tmp_path / str(processes) / "front.json").read_text()))
    assert fronts[0]["front"] == fronts[1]["front"]
    assert fronts[0]["evaluated"] == fronts[1]["evaluated"]


def test_a_latency_limit(run: Path) -> None:
    words = {"first": 10, "rounds": 2, "table_seconds": 2, "parents": 4, "mutants": 4, "crossovers": 4}
    found = search(run, {"latency": (0, 1.0)}, "evolution", words)
    assert found["objectives"] == ["accuracy", "latency"]
    assert all(row["measured"] > 0 for row in found["front"][:12])


def test_mistakes(run: Path, tmp_path: Path) -> None:
    with pytest.raises(sf.InfeasibleError, match="reachable"):
        search(run, {"macs": (0, 10)})
    with pytest.raises(SuperformerError, match="did you mean 'nsga2'"):
        search(run, {}, "nsga")
    with pytest.raises(SuperformerError, match="did you mean 'population'"):
        search(run, {}, "nsga2", {"populaton": 3})
    with pytest.raises(SuperformerError, match="objectives are accuracy and then"):
        search(run, {}, "nsga2", {"objectives": "macs,accuracy"})
    with pytest.raises(RunError, match="there is no run"):
        search(tmp_path / "nothing")
    assert not (run / "history.db").exists()
    with pytest.raises(RunError, match="was not searched yet"):
        evaluate(run, ["best"])
    (run / "history.db").write_bytes(b"this is no database, but someone's work")
    with pytest.raises(SuperformerError, match=r"history\.db"):
        search(run, {}, "random", {"evaluations": 3})
    assert (run / "history.db").read_bytes() == b"this is no database, but someone's work"
    (run / "supernet.safetensors").unlink()
    with pytest.raises(RunError, match="not trained yet"):
        search(run)
