"""What the command line answers to mistakes: one clear line, exit status 2, and nothing is made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.training import recipe
from PIL import Image


def folder(path: Path, classes: dict[str, int], broken: int = 0) -> Path:
    rng = np.random.default_rng(0)
    for name, count in classes.items():
        (path / name).mkdir(parents=True)
        for k in range(count):
            Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(path / name / f"{k}.png")
    for k in range(broken):
        (path / name / f"bad{k}.png").write_bytes(b"no picture")
    return path


def npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


PICTURES = np.zeros((300, 8, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (lambda p: p / "nothing", "nothing"),
        (lambda p: folder(p / "one", {"cat": 40}), "one class"),
        (lambda p: folder(p / "bad", {"cat": 60, "dog": 60}, broken=9), "decode"),
        (lambda p: npz(p / "a.npz", images=PICTURES, labels=np.full(300, -1)), "label"),
        (lambda p: npz(p / "b.npz", images=PICTURES, labels=np.zeros(299, dtype=int)), "299"),
        (lambda p: npz(p / "c.npz", pictures=PICTURES), "pictures"),
    ],
)
def test_pictures(tmp_path, command, data, said):
    words = ("--recipe", recipe(tmp_path), "--data", str(data(tmp_path)), "--run", str(tmp_path / "run"))
    status, _, error = command("train", *words)
    assert status == 2
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_a_few_pictures_that_do_not_decode_are_counted(tmp_path, command):
    pictures = folder(tmp_path / "p", {"cat": 150, "dog": 150}, broken=2)
    words = (
        "--recipe",
        recipe(tmp_path),
        "--data",
        str(pictures),
        "--run",
        str(tmp_path / "run"),
        "train.epochs=1",
        "watch.networks=0",
    )
    with pytest.warns(UserWarning, match="do not decode and are skipped"):
        assert command("train", *words)[0] == 0
    assert (tmp_path / "run" / "supernet.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--recipe", "s3-laptopp"), "did you mean 's3-laptop'"),
        (("sampling.rul=multi",), "did you mean 'sampling.rule'"),
        (("sampling.rule=multi", "sampling.networks=5"), "cannot be shared equally by 5 networks"),
        (("train.batch_size=5000",), "larger than the training set"),
        (("mix.patches=switch",), "patch head"),
        (("loss.teachers=[no_such_model]",), "no_such_model"),
        (("start.timm=no_such_model",), "no_such_model"),
        (("start.run=nowhere",), "there is no run in nowhere"),
        (("start.timm=swin_tiny_patch4_window7_224", "start.checkpoint=weights.pth"), "safetensors"),
        (("sampling.macs=[1, 2]",), "reachable"),
        (("sampling.sides=both",), "bilateral"),
        (("optimizer.name=adamq",), "unknown optimiser"),
    ],
)
def test_words(tmp_path, command, words, said):
    base = ("--recipe", recipe(tmp_path)) if "--recipe" not in words else ()
    status, _, error = command("train", *base, "--data", "digits", "--run", str(tmp_path / "run"), *words)
    assert status == 2
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run" / "supernet.safetensors").exists()


@pytest.mark.parametrize("name", ["eval", "search"])
def test_a_run_that_is_not_there(tmp_path, command, name):
    status, _, error = command(name, "--run", str(tmp_path / "nothing"))
    assert status == 2
    assert "there is no run" in error
    assert not (tmp_path / "nothing").exists()


def test_limits_that_are_no_numbers(tmp_path, command):
    status, _, error = command("search", "--run", str(tmp_path), "--macs-max", "much")
    assert status == 2
    assert "600M" in error
