"""Training runs, for real: killed and resumed, on two processes, with a full disk, with bad losses, with changed
words."""

from __future__ import annotations

import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers.training import MOMENTS, THOROUGH, as_earlier_version, command, environment, ordinary, recipe, superformer
from rich.console import Console
from safetensors.torch import load_file

from superformer import data
from superformer.errors import StoppedError, SuperformerError
from superformer.recipes import RecipeError, names, resolve, space_of
from superformer.runs import Run, RunError
from superformer.runs.processes import World
from superformer.runs.storage import list_checkpoints, load_supernet
from superformer.train.loop import train
from superformer.train.optimizer import unmatched
from superformer.train.preparation import build_trainer, recipe_skeleton
from superformer.train.retrain import retrain


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from beginning to end, in a process of its own."""
    folder = tmp_path_factory.mktemp("finished")
    done = superformer("train", "--recipe", recipe(folder), "--data", "digits", "--run", str(folder / "run"))
    assert done.returncode == 0, done.stderr
    return folder


def same(a: Path, b: Path) -> bool:
    one, two = load_file(a / "supernet.safetensors"), load_file(b / "supernet.safetensors")
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def test_a_run_holds_what_was_promised(finished: Path) -> None:
    run = Run.open(finished / "run")
    assert run.recipe().train.epochs == 2
    kinds = [m["kind"] for m in run.metrics()]
    steps = [m["step"] for m in run.metrics() if m["kind"] == "step"]
    assert steps == list(range(1, len(steps) + 1))
    assert {"step", "health", "conflict"} <= set(kinds)
    health = [m for m in run.metrics() if m["kind"] == "health"]
    assert len(health) == 2
    assert set(health[-1]["accuracy"]) == {"smallest", "largest", "random 1"}
    assert health[-1]["accuracy"]["largest"] > 0.2  # ten classes, two epochs
    net = load_supernet(run.supernet_file)
    assert net.space == run.space()


@pytest.mark.xdist_group("kill")
def test_killed_at_some_moments_it_ends_with_the_same_weights(finished: Path, tmp_path: Path) -> None:
    """SIGKILL at random moments: in steps, in checks, while checkpoints are written."""

    def words(name: str) -> list[str]:
        changes = ("train.epochs=4", "watch.checkpoint_steps=2", "watch.every=0.5")
        return command(
            "train",
            "--recipe",
            str(finished / "tiny.yaml"),
            "--data",
            "digits",
            "--run",
            str(tmp_path / name),
            *changes,
        )

    whole = subprocess.run(words("whole"), env=environment(), capture_output=True, text=True, check=False)
    assert whole.returncode == 0, whole.stderr
    rng, kills = random.Random(0), 0
    while kills < MOMENTS:
        before = newest(tmp_path / "broken")
        process = subprocess.Popen(
            words("broken"), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while newest(tmp_path / "broken") <= before and process.poll() is None:
            time.sleep(0.005)  # let it get somewhere
        time.sleep(0.25 * rng.random())
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    done = subprocess.run(words("broken"), env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert kills >= 3
    assert same(tmp_path / "whole", tmp_path / "broken")
    told = [
        [m["step"] for m in Run.open(tmp_path / name).metrics() if m["kind"] in ("step", "health")]
        for name in ("whole", "broken")
    ]
    assert told[0] == told[1]


def newest(run: Path) -> str:
    """The newest checkpoint's name."""
    found = list_checkpoints(run / "checkpoints")
    return found[-1].name if found else ""


def test_interrupted_it_says_how_to_go_on(finished: Path, tmp_path: Path) -> None:
    words = command(
        "train", "--recipe", str(finished / "tiny.yaml"), "--data", "digits", "--run", str(tmp_path / "run")
    )
    process = subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not list_checkpoints(tmp_path / "run" / "checkpoints") and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the same command goes on" in said
    assert said.count("\n") == 1
    train(recipe(tmp_path), "digits", tmp_path / "run")
    assert same(finished / "run", tmp_path / "run") or torch.get_num_threads() != 1


def test_a_damaged_checkpoint_is_passed_over(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished / "run", tmp_path / "run")
    (tmp_path / "run" / "supernet.safetensors").unlink()
    newest = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    whole = bytearray(newest.read_bytes())
    whole[len(whole) // 2] ^= 1
    newest.write_bytes(whole)
    said = superformer(
        "train", "--recipe", str(finished / "tiny.yaml"), "--data", "digits", "--run", str(tmp_path / "run")
    )
    assert said.returncode == 0, said.stderr
    assert f"{newest} is not as it was written" in said.stdout
    assert "going on after step" in said.stdout
    assert same(finished / "run", tmp_path / "run")


def test_a_full_disk_stops_the_run_and_loses_nothing(finished: Path, tmp_path: Path) -> None:
    """Files may not grow beyond what the recipe needs: the first checkpoint does not fit, as on a full disk."""
    words = command(
        "train", "--recipe", str(finished / "tiny.yaml"), "--data", "digits", "--run", str(tmp_path / "run")
    )

    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    stopped = subprocess.run(words, env=environment(), capture_output=True, text=True, preexec_fn=small, check=False)
    assert stopped.returncode == 1
    assert "the disk is full" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert same(finished / "run", tmp_path / "run")


def test_a_folder_that_cannot_be_written(finished: Path, tmp_path: Path) -> None:
    """A new run in such a folder, and a run whose checkpoints' folder has become one: the last checkpoint stays."""
    shutil.copytree(finished / "run", tmp_path / "locked" / "run")
    run = tmp_path / "locked" / "run"
    (run / "supernet.safetensors").unlink()
    list_checkpoints(run / "checkpoints")[-1].unlink()
    kept = {f.name: f.read_bytes() for f in list_checkpoints(run / "checkpoints")}
    for folder in (tmp_path / "locked", run / "checkpoints"):
        folder.chmod(0o500)
    try:
        for name in ("new", "run"):
            words = (
                "train",
                "--recipe",
                str(finished / "tiny.yaml"),
                "--data",
                "digits",
                "--run",
                str(tmp_path / "locked" / name),
            )
            said = subprocess.run(
                command(*words), env=environment(), capture_output=True, text=True, preexec_fn=ordinary, check=False
            )
            assert said.returncode == 2
            assert "cannot be written" in said.stderr
            assert said.stderr.count("\n") == 1
    finally:
        for folder in (tmp_path / "locked", run / "checkpoints"):
            folder.chmod(0o700)
    assert {f.name: f.read_bytes() for f in list_checkpoints(run / "checkpoints")} == kept
    assert not (tmp_path / "locked" / "new").exists()


def test_a_run_does_not_change_under_way(finished: Path) -> None:
    path = str(finished / "tiny.yaml")
    with pytest.raises(RunError, match=r"optimizer.lr: 0.002 before, 0.001 now.*another --run"):
        train(path, "digits", finished / "run", "optimizer.lr=0.001")
    train(path, "digits", finished / "run")  # nothing to do


def test_other_pictures_are_refused(finished: Path, tmp_path: Path) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", images=rng.integers(0, 255, (300, 8, 8, 3), dtype=np.uint8), labels=np.arange(300) % 3)
    train(str(finished / "tiny.yaml"), str(tmp_path / "a.npz"), tmp_path / "run", "train.epochs=1")
    np.savez(tmp_path / "a.npz", images=rng.integers(0, 255, (300, 8, 8, 3), dtype=np.uint8), labels=np.arange(300) % 3)
    with pytest.raises(RunError, match="fingerprint"):
        train(str(finished / "tiny.yaml"), str(tmp_path / "a.npz"), tmp_path / "run", "train.epochs=1")


def test_a_folder_that_is_no_run_is_left_alone(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("mine")
    with pytest.raises(RunError, match="is not a run"):
        train(str(finished / "tiny.yaml"), "digits", tmp_path)
    assert {f.name for f in tmp_path.iterdir()} <= {"letters.txt", ".lock"}


def test_losses_that_are_no_numbers_stop_it(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(StoppedError, match=r"3 steps in a row .* smaller learning rate"):
        train(
            str(finished / "tiny.yaml"),
            "digits",
            tmp_path / "run",
            "optimizer.lr=1e12",
            "watch.patience=3",
            "optimizer.warmup_epochs=0",
        )
    skipped = [m for m in Run.open(tmp_path / "run").metrics() if m["kind"] == "skipped"]
    assert len(skipped) == 3


def test_only_one_process_writes(finished: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    with run.lock(), pytest.raises(RunError, match="another process"):
        train(str(finished / "tiny.yaml"), "digits", tmp_path / "run")


def test_keys_that_do_not_exist(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"did you mean 'sampling.rule'"):
        train(str(finished / "tiny.yaml"), "digits", tmp_path / "run", "sampling.rul=multi")
    assert not (tmp_path / "run").exists()


@pytest.mark.xdist_group("two")
@pytest.mark.parametrize(
    "changes", [(), ("sampling.rule=multi", "sampling.networks=4", "gradients.rule=sum", "loss.distill=none")]
)
def test_two_processes_are_as_one(finished: Path, tmp_path: Path, changes: tuple[str, ...]) -> None:
    """Half the batch each, 21 steps: the same weights to 1e-5 (sandwich with projection; several networks in a batch).
    Adam makes steps of the learning rate even of gradients that are mere rounding, so it is a moderate one."""
    steps = ("train.epochs=1.06", "optimizer.lr=5e-4", "train.drop_path=0", "train.ema=null", *changes)
    for processes in (1, 2):
        words = ("--recipe", str(finished / "tiny.yaml"), "--data", "digits", "--run", str(tmp_path / f"{processes}"))
        done = superformer("train", *words, *steps, processes=processes)
        assert done.returncode == 0, done.stderr[-2000:]
    one, two = (load_file(tmp_path / n / "supernet.safetensors") for n in ("1", "2"))
    assert max(float((one[k] - two[k]).abs().max()) for k in one) < 1e-5


@pytest.mark.xdist_group("two")
@pytest.mark.parametrize("name", ["nasvit-laptop", "vit-resnas-laptop"] if THOROUGH else ["nasvit-laptop"])
def test_batch_norms_take_the_pictures_of_all_processes(tmp_path: Path, name: str) -> None:
    """Networks with batch norm, ten steps. A norm's bias before another norm has no gradient but rounding, of which
    Adam makes steps."""
    steps = ("train.epochs=0.25", "train.batch_size=32", "optimizer.lr=1e-4", "watch.networks=0")
    for processes in (1, 2):
        words = ("--recipe", name, "--data", "digits", "--run", str(tmp_path / f"{processes}"))
        done = superformer("train", *words, *steps, processes=processes)
        assert done.returncode == 0, done.stderr[-2000:]
    one, two = (load_file(tmp_path / n / "supernet.safetensors") for n in ("1", "2"))
    for key in (k for k in one if not k.endswith("norm.bias")):
        torch.testing.assert_close(one[key], two[key], rtol=1e-3, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")


def test_progress_in_a_log(finished: Path, tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as file:
        train(
            str(finished / "tiny.yaml"),
            "digits",
            tmp_path / "run",
            "train.epochs=1",
            console=Console(file=file, width=100),
        )
    assert "accuracy on the search split smallest" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    "rule", [("sampling.rule=sandwich", "gradients.rule=project"), ("sampling.rule=multi", "sampling.networks=4")]
)
def test_a_batch_in_two_parts_gives_the_same_step(finished: Path, rule: tuple[str, ...]) -> None:
    """Gradients accumulated over halves of a batch are those of the whole one."""
    grads = []
    for parts in (1, 2):
        words = (*rule, f"train.accumulate={parts}", "train.drop_path=0", "loss.distill=kl")
        own = resolve(
            finished / "tiny.yaml",
            words if "multi" not in rule[0] else (*words, "gradients.rule=sum", "loss.distill=none"),
        )
        pictures = data.load("digits", own.data, 16)
        batches = data.train_batches(pictures.train, own.data, own.mix, 16, seed=0, epoch=0, batch_size=64)
        trainer = build_trainer(own, space_of(own), pictures.classes, 20, 20, World())
        with batches:
            trainer.step(0, next(batches))
        grads.append({name: p.grad.clone() for name, p in trainer.net.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[0].items():
        torch.testing.assert_close(
            grads[1][name], grad, rtol=1e-3, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_a_recipe_says_how_many_threads_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resumed on another machine, a run goes on with as many."""
    seen, before = [], torch.get_num_threads()
    monkeypatch.setattr(sys.modules[train.__module__], "_train", lambda *words: seen.append(torch.get_num_threads()))
    for threads in (2, 1):
        train(recipe(tmp_path), "digits", tmp_path / "run", f"train.threads={threads}")
    assert seen == [2, 1]
    assert torch.get_num_threads() == before


# --- words of no_decay that match nothing ---


def test_words_that_match_no_weight_are_refused(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(SuperformerError, match=r"optimizer.no_decay.*'relative_bais'.*did you mean 'relative_bias'"):
        train(str(finished / "tiny.yaml"), "digits", tmp_path / "run", "optimizer.no_decay=[qkv, relative_bais]")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", names())
def test_every_recipe_has_words_that_match(name: str) -> None:
    recipe = resolve(name)
    assert unmatched(recipe.optimizer.no_decay, recipe_skeleton(recipe, 10)) == []


def test_a_run_of_an_earlier_version_goes_on(finished: Path, tmp_path: Path) -> None:
    """Its own recipe.yaml means what it meant then: a family's own names decayed, and words could match nothing. The
    recipe of today is another; and what is retrained of it keeps its meaning."""
    path, words = str(finished / "tiny.yaml"), ("watch.checkpoint_steps=10", "optimizer.weight_decay=0.5")
    run = train(path, "digits", tmp_path / "run", *words, "optimizer.own_no_decay=false")
    shutil.copytree(run.folder, tmp_path / "before")
    train(path, "digits", tmp_path / "new", *words)
    assert not same(tmp_path / "new", run.folder)
    as_earlier_version(run)
    run.recipe_file.write_text(run.recipe_file.read_text().replace("no_decay: []", "no_decay:\n  - bias_table"))
    settings = run.recipe().optimizer
    assert (settings.no_decay, settings.own_no_decay) == (("bias_table",), False)
    run.supernet_file.unlink()
    list_checkpoints(run.checkpoints)[-1].unlink()
    train(str(run.recipe_file), "digits", run.folder)
    assert same(tmp_path / "before", run.folder)
    with pytest.raises(RunError, match=r"optimizer\.own_no_decay: false before, true now"):
        train(path, "digits", run.folder, *words)
    with pytest.raises(SuperformerError, match="has 'bias_table' in its name"):
        train(str(run.recipe_file), "digits", tmp_path / "other")
    retrain(run.folder, "smallest", "train.epochs=0.1")
    with pytest.raises(SuperformerError, match="has 'fc3' in its name"):
        retrain(run.folder, "smallest", "weights=scratch", "train.epochs=0.1", "optimizer.no_decay=[fc3]")
