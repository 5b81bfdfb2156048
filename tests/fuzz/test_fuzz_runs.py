"""Damaged run folders: whatever happens to a file, every command gives a clear line or the right answer.

``SUPERFORMER_FUZZ=20`` tries each damage that often; from 10 on, with every command."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from helpers.training import recipe

from superformer.cli import arguments, main
from superformer.train.retrain import retrain

ROUNDS = int(os.environ.get("SUPERFORMER_FUZZ", 1))
EPOCHS = "train.epochs=0.2"
COMMANDS = {
    "runs": ("runs", "{run}", "--json"),
    "eval": ("eval", "--run", "{run}", "--arch", "best", "--split", "search", "--json"),
    "search": ("search", "--run", "{run}", "--macs-max", "300k", "--method", "random", "evaluations=12", "--json"),
    "retrain": ("retrain", "--run", "{run}", EPOCHS, "--json"),
    "report": ("report", "--run", "{run}"),
    "export": ("export", "--run", "{run}", "--to", "timm", "--out", "{run}/timm"),
    "analyse": ("analyse", "--run", "{run}", "conflicts", "--json"),
    "train": ("train", "--recipe", "{recipe}", "--data", "digits", "--run", "{run}", "watch.conflicts=5"),
    "resume": ("resume", "--run", "{run}"),
}
READ_BY = {
    "recipe.yaml": ("eval", "train"),
    "run.json": ("runs", "eval"),
    "space.json": ("eval", "report"),
    "metrics.jsonl": ("runs", "analyse"),
    "commands.jsonl": ("report", "resume"),
    "front.json": ("runs", "eval"),
    "retrained.json": ("runs", "retrain"),
    "analysis.json": ("analyse", "report"),
    "history.db": ("search", "report"),
    "supernet.safetensors": ("eval",),
    "model/config.json": ("export",),
    "model/model.safetensors": ("export",),
}
MOVING = ("seconds", "time")


@pytest.fixture(scope="module")
def whole(searched_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every file, and beside it what commands answer."""
    folder = tmp_path_factory.mktemp("whole")
    shutil.copytree(searched_once, folder / "run")
    retrain(folder / "run", "best", EPOCHS)
    places = {"run": str(folder / "run"), "recipe": recipe(folder)}
    for word in ("analyse", "train"):  # as commands: they are noted
        assert call(tuple(w.format(**places) for w in COMMANDS[word]))[0] == 0
    return folder


def call(words: tuple[str, ...]) -> tuple[int, str, str]:
    """The command line in this process; an error that no user should see goes through."""
    out, before = {}, (sys.argv, sys.stdout, sys.stderr, os.getcwd())
    sys.argv, sys.stdout, sys.stderr = ["superformer", *words], StringIO(), StringIO()
    arguments.console.file = sys.stdout
    try:
        main()
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        out = {"out": sys.stdout.getvalue(), "error": sys.stderr.getvalue()}
        sys.argv, sys.stdout, sys.stderr = before[:3]
        arguments.console._file = None  # wherever standard output goes
        os.chdir(before[3])
    return status, out["out"], out["error"]


def damages(path: Path, rng: random.Random) -> Iterator[str]:
    """The file in every damaged state, one after another."""
    data = path.read_bytes()
    for _ in range(ROUNDS):
        cut = rng.randrange(len(data))
        path.write_bytes(data[:cut])
        yield f"cut off at {cut}"
        k, bit = rng.randrange(len(data)), rng.randrange(8)
        path.write_bytes(data[:k] + bytes([data[k] ^ 1 << bit]) + data[k + 1 :])
        yield f"bit {bit} of {k} flipped"
        head = min(len(data), 200)  # where formats say what follows
        k, bit = rng.randrange(head), rng.randrange(8)
        path.write_bytes(data[:k] + bytes([data[k] ^ 1 << bit]) + data[k + 1 :])
        yield f"bit {bit} of {k} flipped"
        path.write_bytes(rng.randbytes(len(data)))
        yield "random bytes"
        digits = [k for k, byte in enumerate(data) if chr(byte).isdigit()]
        k = rng.choice(digits) if digits else 0
        path.write_bytes(data[:k] + (b"7" if data[k : k + 1] != b"7" else b"3") + data[k + 1 :])
        yield f"a digit changed at {k}"
    path.write_bytes(b"")
    yield "empty"
    path.write_text('{"rows": 3, "front": [3], "spaces": [[]], "data": [], "step": "x"}\n')
    yield "something else"
    path.unlink()
    path.mkdir()
    yield "a folder"
    path.rmdir()
    path.write_bytes(data)


def plain(text: str, run: Path) -> str:
    """An answer without what differs from time to time."""
    try:
        found = json.loads(text)
    except ValueError:
        return ""
    rows = found if isinstance(found, list) else [found]
    kept = [{k: v for k, v in r.items() if k not in MOVING} if isinstance(r, dict) else r for r in rows]
    return json.dumps(kept).replace(str(run), "RUN")


@pytest.mark.parametrize("name", READ_BY)
def test_damage_is_told_or_does_no_harm(whole: Path, tmp_path: Path, name: str) -> None:
    words = tuple(COMMANDS) if ROUNDS >= 10 else READ_BY[name]
    places = {"run": str(tmp_path / "run"), "recipe": str(whole / "tiny.yaml")}
    run, sides, right, bad, cases = tmp_path / "run", tmp_path / "side", {}, [], 0

    def answer(word: str) -> tuple[int, str, str]:
        return call(tuple(w.format(**places) for w in COMMANDS[word]))

    shutil.copytree(whole / "run", run)
    for word in words:
        status, out, error = answer(word)
        assert status == 0, (word, error)
        right[word] = plain(out, run)
    shutil.copytree(whole / "run", sides)
    for what in damages(sides / name, random.Random(name)):
        for word in words:
            shutil.rmtree(run)
            shutil.copytree(sides, run)
            case, cases = f"{word}, {name} {what}", cases + 1
            try:
                status, out, error = answer(word)
            except BaseException as caught:
                bad.append(f"{case}: {type(caught).__name__} {caught}")
                continue
            lines = error.strip().splitlines()
            if status and (len(lines) != 1 or not lines[0].startswith("superformer: ")):
                bad.append(f"{case}: status {status}, {error!r}")
            elif not status and plain(out, run) != right[word] and "damaged" not in out:
                cut = (name.endswith("jsonl") and "cut off" in what) or what == "empty"  # lines that are gone
                if not cut:
                    bad.append(f"{case}: another answer, {out[:300]!r}")
    print(f"{name}: {cases} cases, {len(bad)} bad")
    assert not bad, "\n".join(bad)
