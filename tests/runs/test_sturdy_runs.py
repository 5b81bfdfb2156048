"""Runs that were damaged, killed, begun with wrong words or by an earlier version."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from helpers.training import THOROUGH, environment, recipe
from helpers.training import command as words_of
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from superformer import files, progress
from superformer.errors import SuperformerError
from superformer.machine import busy_notice
from superformer.recipes import resolve
from superformer.runs import Run, RunError, stored
from superformer.runs.storage import digest_tensors, list_checkpoints, load_supernet, read_tensors, write_tensors
from superformer.search import search
from superformer.search.history import History
from superformer.search.space_evolution import evolve_space
from superformer.train import loop
from superformer.train.loop import train
from superformer.train.retrain import retrain, write_inherited


def same(a: Path, b: Path) -> bool:
    return (a / "supernet.safetensors").read_bytes() == (b / "supernet.safetensors").read_bytes()


def earlier(folder: Path) -> None:
    """A run as the earlier version wrote it: no format, no checksums."""
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(
        json.dumps({k: facts[k] for k in facts if k not in ("format", "space", "checksum")})
    )
    text = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(text.rpartition(files.LAST_LINE)[0])
    for path in (folder / "metrics.jsonl", folder / "commands.jsonl"):
        if path.exists():
            path.write_text("".join(re.sub(r', "checksum": "\w+"}', "}", line) for line in path.open()))
    for path in folder.glob("*.json"):
        content = json.loads(path.read_text())
        content.pop("checksum", None)
        path.write_text(json.dumps(content))


# --- checksums ---


@given(st.dictionaries(st.text(), st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
       | st.text(), lambda own: st.lists(own) | st.dictionaries(st.text(), own))), st.randoms())  # fmt: skip
def test_what_was_written_is_read_and_no_bit_changes_it(tmp_path_factory, content: dict, rng: random.Random) -> None:
    content.pop("checksum", None)
    content.pop("format", None)
    path = tmp_path_factory.mktemp("object") / "x.json"
    files.write_object(path, content)
    assert files.read_object(path, "delete it", sealed=True) == content
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    with suppress(files.DamagedError):
        assert files.read_object(path, "delete it", sealed=True) == content  # a space that became another one
    path.write_text(files.line(content))
    assert files.read_lines(path, "", sealed=True) == [content]


@pytest.mark.parametrize("given_format", [3, 0, "2", None])
def test_a_format_that_is_not_known_is_refused(trained: Path, given_format: object) -> None:
    facts = files.read_object(trained / "run.json", "")
    files.write_object(trained / "run.json", {**facts, "format": given_format})
    with pytest.raises(RunError, match="update superformer"):
        Run.open(trained)


def test_a_changed_weight_or_evaluation_is_told(searched: Path) -> None:
    net = searched / "supernet.safetensors"
    whole = bytearray(net.read_bytes())
    whole[-5] ^= 1
    net.write_bytes(whole)
    with pytest.raises(SuperformerError, match=r"supernet.safetensors is not as it was written.*superformer train"):
        load_supernet(net)
    path = searched / "history.db"
    weights, split = _subject(path)
    data = path.read_bytes()
    place = data.index(b'{"accuracy": 0.') + len(b'{"accuracy": 0.')
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    with pytest.raises(SuperformerError, match=r"history.db is damaged \(row \d+ of evaluations"):
        History(path, weights, split, readonly=True)


def _subject(path: Path) -> tuple[str, str]:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return db.execute("SELECT weights, split FROM subjects").fetchone()


def test_a_list_of_runs_shows_those_that_can_be_read(searched: Path, command) -> None:
    shutil.copytree(searched, searched.parent / "other")
    (searched / "front.json").write_bytes(b"\xff")
    status, out, _ = command("runs", str(searched.parent), "--json")
    found = json.loads(out)
    assert status == 0
    assert sorted(row["state"] for row in found["runs"]) == ["damaged", "searched"]
    assert "front.json is damaged" in found["differences"][0]


# --- files of weights ---


def test_the_same_tensors_are_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    code = """
import sys, torch
from pathlib import Path
from superformer.runs.storage import write_tensors
names = sorted({"b", "a", "long name", "ä", "z.weight"}, key=hash)
kinds = {"b": torch.int64, "z.weight": torch.bfloat16, "ä": torch.bool}
tensors = {n: torch.arange(6).reshape(2, 3).to(kinds.get(n, torch.float32)) for n in names}
facts = {n: n * 3 for n in names}
print(write_tensors(Path(sys.argv[1]), tensors, facts))
"""
    found = []
    for seed in range(2):
        path = tmp_path / f"{seed}.safetensors"
        env = environment() | {"PYTHONHASHSEED": str(seed)}
        subprocess.run([sys.executable, "-c", code, str(path)], env=env, check=True, capture_output=True)
        found.append(path.read_bytes())
    assert len(set(found)) == 1
    plain = load_file(path)  # any reader of safetensors
    assert plain["ä"].dtype == torch.bool
    assert plain["z.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    with safe_open(path, "pt") as file:
        assert file.metadata()["long name"] == "long name" * 3
    again = tmp_path / "again.safetensors"
    tensors, header = read_tensors(path, "")
    header.pop("checksum")
    write_tensors(again, tensors, header)
    assert again.read_bytes() == path.read_bytes()


def test_two_trainings_give_the_same_files(trained_once: Path, tmp_path: Path) -> None:
    train(recipe(tmp_path), "digits", tmp_path / "run", "watch.conflicts=5")
    assert same(trained_once, tmp_path / "run") or torch.get_num_threads() != 1


# --- checkpoints ---


@pytest.mark.parametrize("how", ["step", "tensors", "folder"])
def test_a_damaged_only_checkpoint_begins_the_run_again_with_its_warm_start(
    trained: Path, tmp_path: Path, how: str
) -> None:
    start = write_inherited(Run(trained), Run(trained).space().smallest(), tmp_path / "start")
    words = ("train.epochs=0.3", f"start.network={start}", "watch.checkpoint_seconds=1000")
    whole = train(recipe(tmp_path), "digits", tmp_path / "whole", *words)
    run = Run(shutil.copytree(whole.folder, tmp_path / "again"))
    run.supernet_file.unlink()
    (only,) = list_checkpoints(run.checkpoints)
    data = bytearray(only.read_bytes())
    if how == "step":
        place = data.index(b'"step":"') + len(b'"step":"')
        data[place] ^= 1
    else:
        data[-9] ^= 1
    only.write_bytes(data)
    if how == "folder":
        only.unlink()
        only.mkdir()
    train(recipe(tmp_path), "digits", run.folder, *words)
    assert same(whole.folder, run.folder) or torch.get_num_threads() != 1
    steps = [[r["step"] for r in Run(f).metrics() if r["kind"] == "step"] for f in (whole.folder, run.folder)]
    assert steps[0] == steps[1]


def test_a_run_of_the_earlier_version_goes_on(trained: Path, tmp_path: Path) -> None:
    run = Run(shutil.copytree(trained, tmp_path / "earlier"))
    earlier(run.folder)
    for path in list_checkpoints(run.checkpoints):
        tensors, header = read_tensors(path, "")
        header.pop("checksum")
        save_file(tensors, path, header | {"digest": digest_tensors(tensors)})
    list_checkpoints(run.checkpoints)[-1].unlink()
    run.supernet_file.unlink()
    train(recipe(tmp_path), "digits", run.folder, "watch.conflicts=5")
    assert same(trained, run.folder) or torch.get_num_threads() != 1
    assert stored.of_earlier_version(run.folder)
    search(run.folder, None, "random", {"evaluations": 3})
    assert run.front()["front"]
    front = json.loads(run.front_file.read_text())
    run.front_file.write_text(json.dumps({**front, "best": "other"}))  # what is written into it is checked
    with pytest.raises(files.DamagedError, match=r"front.json is not as it was written"):
        run.front()


# --- nothing is written until everything was checked ---

WRONG = [
    ("sampling.macs=[2,1]", "macs"),
    ("data.mean=[0,0]", "data.mean"),
    ("img_size=1", "1"),
    ("train.accumulate=3", "accumulate"),
    ("sampling.macs=[1,2]", "macs"),
]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


@pytest.mark.parametrize(("word", "says"), WRONG)
def test_wrong_words_leave_no_folder(tmp_path: Path, word: str, says: str) -> None:
    for begin in (train, evolve_space):
        with pytest.raises(SuperformerError, match=says):
            begin(recipe(tmp_path), "digits", tmp_path / "run", word)
        assert not (tmp_path / "run").exists()
    train(recipe(tmp_path), "digits", tmp_path / "run", "train.epochs=0.05")


def test_limits_that_nobody_meets_leave_no_folder(tmp_path: Path) -> None:
    with pytest.raises(SuperformerError, match="macs"):
        evolve_space(recipe(tmp_path), "digits", tmp_path / "run", "evolve.macs_max=5")
    assert not (tmp_path / "run").exists()


def test_wrong_words_leave_a_run_as_it_was(trained: Path) -> None:
    before = tree(trained)
    for word in ("train.accumulate=3", "data.mean=[0,0]", "train.batch_size=1000000"):
        with pytest.raises(SuperformerError):
            retrain(trained, "smallest", word)
        assert tree(trained) == before
    with pytest.raises(SuperformerError):
        search(trained, {"macs": (0, 5)}, "random", {"evaluations": 3})
    assert tree(trained) == before
    retrain(trained, "smallest", "train.epochs=0.05")


def test_other_settings_are_told_and_the_runs_own_go_on(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "later").mkdir()
    later = Path(recipe(tmp_path / "later"))
    later.write_text(later.read_text().replace("drop_path: 0.1", "drop_path: 0.2"))  # as in another version
    with pytest.raises(
        RunError, match=rf"train.drop_path: 0.1 before, 0.2 now.*--recipe {trained}/recipe.yaml goes on"
    ):
        train(str(later), "digits", trained, "watch.conflicts=5")
    whole = (trained / "supernet.safetensors").read_bytes()
    (trained / "supernet.safetensors").unlink()
    train(str(trained / "recipe.yaml"), "digits", trained)
    assert (trained / "supernet.safetensors").read_bytes() == whole or torch.get_num_threads() != 1
    earlier(trained)
    assert resolve(trained / "recipe.yaml") == Run(trained).recipe()


# --- processes ---


def _rank(parent: int, rank: int) -> int | None:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            own = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if own == parent and f"\0RANK={rank}\0".encode() in (entry / "environ").read_bytes():
                return int(entry.name)
        except OSError:
            continue
    return None


def test_killed_ranks_bring_all_back_to_the_last_checkpoint(tmp_path: Path) -> None:
    """torchrun --max-restarts: killed once, or, where there is time, ten times."""
    kills = 10 if THOROUGH else 1
    words = ["train", "--recipe", recipe(tmp_path), "--data", "digits", "--run"]
    changes = [f"train.epochs={2 if THOROUGH else 0.5}", "watch.checkpoint_steps=2", "watch.checkpoint_seconds=1000"]
    whole = words_of(*words, str(tmp_path / "whole"), *changes, processes=2)
    subprocess.run(whole, env=environment(), check=True, capture_output=True, timeout=300)
    again = words_of(*words, str(tmp_path / "run"), *changes, processes=2)
    again.insert(again.index("--standalone"), f"--max-restarts={kills}")
    process = subprocess.Popen(again, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    newest, old = "", set[int | None]()
    try:
        for k in range(kills):
            while process.poll() is None:
                found = [path.name for path in list_checkpoints(tmp_path / "run" / "checkpoints")]
                victim = _rank(process.pid, 1 - k % 2)
                if victim not in old and found and found[-1] > newest:
                    break
                time.sleep(0.02)
            assert victim is not None
            newest = found[-1]
            old.add(victim)
            os.kill(victim, signal.SIGKILL)
        assert process.wait(timeout=240) == 0
    finally:
        process.kill()
    assert same(tmp_path / "whole", tmp_path / "run")


def test_a_worker_that_outlives_its_run_does_not_hold_the_lock(tmp_path: Path) -> None:
    """As the workers of a data loader do when their process is killed."""
    run, (out, into) = Run(tmp_path / "run"), os.pipe()
    if (killed := os.fork()) == 0:
        with run.lock():
            if (worker := os.fork()) == 0:
                os.write(into, str(os.getpid()).encode())
                time.sleep(60)
            os.waitpid(worker, 0)
    worker = int(os.read(out, 20))
    try:
        with pytest.raises(RunError, match="another process"), run.lock():
            pass
        os.kill(killed, signal.SIGKILL)
        os.waitpid(killed, 0)
        with run.lock():
            pass
    finally:
        os.kill(worker, signal.SIGKILL)


# --- interrupts, and a busy machine ---


def test_ctrl_c_that_a_library_caught_stops_the_work_nevertheless(
    tmp_path: Path, command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imports that catch everything swallow it: the run must not go on as if nobody had asked."""
    load = loop.data.load

    def swallows(*given: object) -> object:
        with suppress(BaseException):
            signal.raise_signal(signal.SIGINT)
        return load(*given)

    monkeypatch.setattr(loop.data, "load", swallows)
    monkeypatch.setattr(signal, "default_int_handler", signal.getsignal(signal.SIGINT))
    words = ("train", "--recipe", recipe(tmp_path), "--data", "digits", "--run", str(tmp_path / "run"))
    before = signal.getsignal(signal.SIGINT)
    try:
        status, _, error = command(*words)
    finally:
        signal.signal(signal.SIGINT, before)
        progress._asked.clear()
    assert status == 1
    assert "the same command goes on" in error
    assert not (tmp_path / "run" / "supernet.safetensors").exists()


@pytest.mark.parametrize(
    ("threads", "cores", "load", "runs", "says"),
    [
        (1, 2, 0.3, 0, None),
        (2, 2, 0.3, 0, None),
        (2, 2, 0.9, 0, "2 threads and 1 free of 2 cores.*train.threads=1.*OMP_NUM_THREADS=1"),
        (2, 2, 0.0, 1, "1 other run of superformer.*train.threads=1"),
        (1, 2, 2.2, 0, "1 thread and 0 free of 2 cores.*longer"),
        (32, 64, 40.0, 2, "32 threads and 24 free.*train.threads=24"),
    ],
)
def test_a_busy_machine_is_told(threads: int, cores: int, load: float, runs: int, says: str | None) -> None:
    found = busy_notice(threads, cores, load, runs)
    assert found is None if says is None else re.search(says, found or "")
