"""The history of evaluations: nothing told is lost, nothing of other weights or data is given back, nothing damaged is
touched."""

from __future__ import annotations

import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.training import THOROUGH, ordinary
from hypothesis import given
from hypothesis import strategies as st

from superformer.errors import SuperformerError
from superformer.search.history import Evaluation, History, HistoryError


def evaluations(n: int, start: int = 0) -> list[Evaluation]:
    return [
        Evaluation(f"vit-{k:06d}", json.dumps({"k": k}), {"accuracy": k / 7, "macs": float(k)}, 0.5, "random")
        for k in range(start, start + n)
    ]


def content(folder: Path) -> dict[str, bytes]:
    """The files that hold something (a reader may leave SQLite's empty log and its index of it)."""
    return {f.name: f.read_bytes() for f in folder.iterdir() if not f.name.endswith("-shm") and f.stat().st_size}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def test_what_was_put_is_there_again(path: Path) -> None:
    with History(path, "w", "s") as history:
        search = history.begin_search('{"method": "nsga2", "macs": [0, 100]}')
        history.put(evaluations(3), search, round=2)
    with History(path, "w", "s") as history:
        assert history.get(["vit-000001", "vit-000009"]) == {"vit-000001": {"accuracy": 1 / 7, "macs": 1.0}}
        last = history.all()[-1]
        assert (last.key, last.arch_json, last.method, last.round, last.search, last.kind) == (
            "vit-000002",
            '{"k": 2}',
            "nsga2",
            2,
            search,
            "random",
        )
        assert last.time > 1e9
        assert [s.settings for s in history.searches()] == [{"method": "nsga2", "macs": [0, 100]}]
        assert (len(history), history.others) == (3, 0)


def test_other_weights_and_other_data_are_never_given_back(path: Path) -> None:
    keys = [row.key for row in evaluations(4)]
    with History(path, "w", "s") as history:
        number = history.begin_search("{}")
        history.put(evaluations(4), number)
    for weights, split in (("w2", "s"), ("w", "s2"), ("s", "w"), ("ws", ""), ("", "ws")):
        with History(path, weights, split) as other:
            assert other.get(keys) == {}
            assert other.all() == []
            assert other.searches() == []
            assert (len(other), other.others) == (0, 4)
            with pytest.raises(HistoryError, match="begin_search"):
                other.put(evaluations(1), number)
    with History(path, "w2", "s") as other:
        other.put([Evaluation(keys[0], "{}", {"accuracy": 9.0})])
    with History(path, "w", "s", readonly=True) as history:
        assert history.get(keys[:1])[keys[0]]["accuracy"] == 0.0


def test_new_values_are_added_and_old_ones_stay(path: Path) -> None:
    with History(path, "w", "s") as history:
        history.put([Evaluation("a", "{}", {"accuracy": 0.5}), Evaluation("a", "{}", {"accuracy": 0.7, "macs": 3.0})])
        history.put([Evaluation("a", "{}", {"accuracy": 0.9, "latency": 0.001})])
        assert history.get(["a"]) == {"a": {"accuracy": 0.5, "macs": 3.0, "latency": 0.001}}
        assert len(history) == 1


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_numbers_are_refused_and_nothing_is_kept(path: Path, wrong: float) -> None:
    with History(path, "w", "s") as history:
        with pytest.raises(HistoryError, match="accuracy of b"):
            history.put([*evaluations(2), Evaluation("b", "{}", {"accuracy": wrong})])
        with pytest.raises(HistoryError, match="at least one value"):
            history.put([Evaluation("c", "{}", {})])
        assert len(history) == 0


def test_a_transaction_that_fails_leaves_nothing(path: Path) -> None:
    class Bad(Evaluation):
        @property
        def arch_json(self) -> str:
            raise KeyboardInterrupt

        @arch_json.setter
        def arch_json(self, value: str) -> None: ...

    bad = object.__new__(Bad)
    for name, value in (("key", "bad"), ("values", {"accuracy": 1.0}), ("seconds", 0.0), ("kind", "")):
        object.__setattr__(bad, name, value)
    with History(path, "w", "s") as history:
        with pytest.raises(KeyboardInterrupt):
            history.put([*evaluations(2), bad])
        assert len(history) == 0
        history.put(evaluations(2))
        assert len(history) == 2


numbers = st.floats(allow_nan=False, allow_infinity=False)
rows = st.builds(
    Evaluation, st.text(min_size=1), st.text(), st.dictionaries(st.text(), numbers, min_size=1), numbers, st.text()
)


@given(st.lists(st.lists(rows, max_size=5), max_size=4))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, batches: list[list[Evaluation]]) -> None:
    path = tmp_path_factory.mktemp("history") / "a folder # of ? 100 %.db"
    first: dict[str, Evaluation] = {}
    values: dict[str, dict[str, float]] = {}
    with History(path, "w", "s") as history:
        for batch in batches:
            history.put(batch)
            for row in batch:
                first.setdefault(row.key, row)
                values[row.key] = {**row.values, **values.get(row.key, {})}
    with History(path, "w", "s", readonly=True) as history:
        assert history.get(list(first)) == values
        found = [(r.key, r.arch_json, r.values, r.seconds, r.kind) for r in history.all()]
    assert found == [(r.key, r.arch_json, values[r.key], r.seconds, r.kind) for r in first.values()]


WRITER = """
import sys
from superformer.search.history import Evaluation, History
with History(sys.argv[1], "w", "s") as history:
    print("open", flush=True)
    for k in range(10**9):
        history.put([Evaluation(f"{k}-{j}", "x" * 300, {"accuracy": k + j / 10}) for j in range(3)])
        print(k, flush=True)
"""


def writer(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("lines", [2, 40, 700] if THOROUGH else [40])
def test_a_killed_search_loses_nothing_it_was_told(path: Path, lines: int) -> None:
    process = writer(path)
    assert process.stdout is not None
    for _ in range(lines):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    told = process.stdout.read().split()
    process.wait()
    last = int(told[-1]) if told else lines - 2
    with History(path, "w", "s") as history:
        n = len(history)
        assert n % 3 == 0  # whole batches only
        assert n >= 3 * (last + 1)
        assert history.get([f"{last}-2"]) == {f"{last}-2": {"accuracy": last + 0.2}}
        history.put([Evaluation("after", "{}", {"accuracy": 1.0})])
        assert len(history) == n + 1


def test_others_read_while_one_writes(path: Path) -> None:
    process = writer(path)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        seen = [0]
        with History(path, "w", "s", readonly=True) as history:
            while seen[-1] < 60:
                told = int(process.stdout.readline())
                seen.append(len(history))
                assert seen[-1] >= 3 * (told + 1)
                assert seen[-1] % 3 == 0
        assert seen == sorted(seen)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_two_writers_take_turns(path: Path) -> None:
    with History(path, "w", "s") as first, History(path, "w2", "s") as second:
        for k in range(5):
            first.put(evaluations(2, 2 * k))
            second.put(evaluations(1, k))
        assert (len(first), len(second)) == (10, 5)


# --- files that are something else, or damaged ---


def refused(path: Path, words: str) -> None:
    before = content(path.parent)
    for readonly in (False, True):
        with pytest.raises(SuperformerError, match=words) as caught:
            History(path, "w", "s", readonly=readonly)
        assert path.name in str(caught.value)
        assert content(path.parent) == before


def test_damaged_files_are_refused_and_left_alone(path: Path) -> None:
    with History(path, "w", "s") as history:
        history.put(evaluations(2000))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(path, "damaged")
    path.write_bytes(whole[:8192] + b"\xff" * 4096 + whole[12288:])
    refused(path, "damaged")
    path.write_bytes(b"\x00" * 100 + whole[100:])
    refused(path, "damaged")
    path.write_bytes(b"")
    refused(path, "not a history")
    path.write_text("accuracy,macs\n1,2\n" * 100)
    refused(path, "damaged")
    path.write_bytes(whole)
    with History(path, "w", "s") as history:
        assert len(history) == 2000


def test_damage_beside_a_log_that_waits(path: Path) -> None:
    process = writer(path)
    assert process.stdout is not None
    for _ in range(30):
        process.stdout.readline()
    process.kill()
    process.wait()
    process.stdout.close()
    log = path.with_name("history.db-wal")
    assert log.stat().st_size
    whole = path.read_bytes()
    path.write_bytes(b"this is no database" * 300)
    refused(path, "damaged|not a history")
    path.unlink()
    with pytest.raises(HistoryError, match="is gone"):
        History(path, "w", "s")
    assert log.stat().st_size
    path.write_bytes(whole)
    with History(path, "w", "s") as history:
        assert len(history) >= 87


def test_other_databases_are_refused_and_left_alone(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE evaluations (a)")
    db.commit()
    db.close()
    refused(path, "not a history")


def test_a_newer_history_asks_for_a_newer_program(path: Path) -> None:
    History(path, "w", "s").close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 3")
    db.commit()
    db.close()
    refused(path, "update superformer")


def test_reading_changes_nothing(path: Path) -> None:
    with pytest.raises(HistoryError, match="there is no history"):
        History(path, "w", "s", readonly=True)
    assert not path.exists()
    with History(path, "w", "s") as history:
        history.put(evaluations(5))
    before = path.read_bytes()
    for weights in ("w", "unknown"):
        with History(path, weights, "s", readonly=True) as history:
            assert len(history) == (5 if weights == "w" else 0)
            with pytest.raises(HistoryError, match="readonly"):
                history.put(evaluations(1))
            with pytest.raises(HistoryError, match="readonly"):
                history.begin_search("{}")
    assert path.read_bytes() == before


def test_a_folder_nobody_may_write_to_can_be_read(path: Path) -> None:
    with History(path, "w", "s") as history:
        history.put(evaluations(5))
    program = (
        "import sys; from superformer.search.history import History; "
        "print(len(History(sys.argv[1], 'w', 's', readonly=True)))"
    )
    path.parent.chmod(0o500)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, str(path)], capture_output=True, text=True, preexec_fn=ordinary
        )
        assert done.stdout == "5\n", done.stderr
    finally:
        path.parent.chmod(0o700)


@pytest.mark.parametrize("settings", ["{", "[]", "3"])
def test_settings_are_an_object(path: Path, settings: str) -> None:
    with History(path, "w", "s") as history, pytest.raises(HistoryError, match="settings"):
        history.begin_search(settings)
