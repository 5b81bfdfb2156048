"""Runs listed, compared and gone on with; what every command answers to a mistake."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.training import recipe, superformer
from safetensors.torch import load_file

from superformer import runs
from superformer.errors import SuperformerError
from superformer.runs import last_command
from superformer.train.loop import train

pytestmark = pytest.mark.xdist_group("runs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("runs")
    words = ("train", "--recipe", recipe(here), "--data", "digits", "--run", "one", "train.epochs=0.2")
    done = superformer(*words, cwd=here)
    assert done.returncode == 0, done.stderr
    train(recipe(here), "digits", here / "two", "train.epochs=0.2", "optimizer.lr=1e-3")
    return here


def test_runs_are_listed_and_compared(folder: Path) -> None:
    rows, lines = runs.overview([folder])
    assert [Path(row["run"]).name for row in rows] == ["one", "two"]
    assert {row["state"] for row in rows} == {"trained"}
    assert all(0 <= row["best"] <= 1 and row["of"] == "search" for row in rows)
    assert lines == []
    _, lines = runs.overview([folder / "one", folder / "two"])
    assert len(lines) == 1
    assert "optimizer.lr: 0.002 there, 0.001 here" in lines[0]
    with pytest.raises(SuperformerError, match="there are no runs"):
        runs.overview([folder / "one" / "checkpoints"])


def test_the_command_is_noted_and_gone_on_with(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "runs")
    noted = last_command(folder / "one")
    assert noted is not None
    assert noted["words"][0] == "train"
    assert noted["torch"]
    assert last_command(folder / "two") is None  # a call of the library, not a command
    (folder / "one" / "supernet.safetensors").unlink()
    again = superformer("resume", "--run", str(folder / "one"), cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    one, two = (load_file(f / "one" / "supernet.safetensors") for f in (folder, tmp_path / "runs"))
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert len((folder / "one" / runs.COMMANDS).read_text().splitlines()) == 1
    refused = superformer("resume", "--run", str(folder / "two"))
    assert refused.returncode == 2
    assert "give the words that began it" in refused.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("search", "--run", "{}/none"), "there is no run"),
        (("retrain", "--run", "{}/one"), "was not searched yet"),
        (("export", "--run", "{}/one", "--to", "onnx"), "no retrained network yet"),
        (("export", "--run", "{}/one", "--arch", "smallest", "--to", "onx"), "did you mean 'onnx'"),
        (("eval", "--run", "{}/one", "--arch", "swin-7"), "unknown architecture 'swin-7'"),
        (("report", "--run", "{}/none"), "there is no run"),
        (("bench", "{}/none"), "none"),
        (("runs", "{}/none"), "there are no runs"),
        (("retrain", "--run", "{}/one", "--arch", "smallest", "optimizer.rl=1"), "optimizer.lr"),
        (("exprt", "--run", "{}/one"), "Did you mean 'export'"),
    ],
)
def test_mistakes_are_one_helpful_line(folder: Path, words: tuple[str, ...], says: str, command) -> None:
    status, _, error = command(*(w.format(folder) for w in words))
    assert status == 2
    assert says in error
    assert len(error.strip().splitlines()) == 1


def test_ctrl_c_says_that_the_same_command_goes_on(folder: Path, command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it comes: training and search finish what they are at and say more (tests/test_train_loop.py,
    tests/test_search_run.py)."""

    def pressed(*words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("superformer.report.rendered", pressed)
    status, _, error = command("report", "--run", str(folder / "one"))
    assert status == 1
    assert "the same command goes on" in error
    assert not (folder / "one" / "report.html").exists()


def test_machine_readable(folder: Path) -> None:
    done = superformer("runs", str(folder), "--json")
    assert len(json.loads(done.stdout)["runs"]) == 2


def test_mistakes_are_told_before_torch_is_imported(folder: Path) -> None:
    """What takes seconds to import is not waited for."""
    run = str(folder / "one")
    mistakes = [
        ["train", "--recipe", "s3-laptopp", "--data", "digits", "--run", "x"],
        ["train", "--recipe", "s3-laptop", "--data", "digits", "--run", "x", "optimizer.rl=1"],
        ["evolve-space", "--recipe", "s3-laptopp", "--data", "digits", "--run", "x"],
        ["search", "--run", "none"],
        ["search", "--run", run, "--method", "nsga3"],
        ["search", "--run", run, "populaton=3"],
        ["retrain", "--run", run],
        ["eval", "--run", run, "--arch", "swin-7"],
        ["export", "--run", run, "--to", "onnx"],
        ["export", "--run", run, "--arch", "smallest", "--to", "onx"],
        ["report", "--run", "none"],
        ["analyse", "--run", "none"],
        ["analyse", "--run", run, "distances"],
        ["analyse", "--run", run, "architecturs=3"],
        ["retrain", "--run", run, "--arch", "smallest", "train.epoch=3"],
        ["bench", run, "--arch", "swin-7"],
        ["bench", run, "--runtimes", "onx"],
    ]
    code = f"""
import sys
sys.argv[0] = "superformer"  # as the program does
from superformer.cli import main
for words in {mistakes}:
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        assert end.code == 2, words
    assert "torch" not in sys.modules, words
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == len(mistakes)
