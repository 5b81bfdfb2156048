"""Retraining found networks: the weights they begin with, larger pictures, and what a run holds afterwards."""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path

import pytest
import torch
import yaml
from helpers.training import as_earlier_version, superformer
from safetensors.torch import load_file

import superformer as sf
from superformer import data, files
from superformer.analysis.run import analyse
from superformer.analysis.subject import _standalone_recipe
from superformer.errors import SuperformerError
from superformer.evaluation.evaluator import TrainedRun, evaluate
from superformer.report import write
from superformer.runs import Run
from superformer.runs.storage import list_checkpoints, load_network, load_supernet
from superformer.space.schema import family
from superformer.train.loop import train
from superformer.train.retrain import network_to_export, retrain


def test_inherited_finetuned_and_scratch(searched: Path) -> None:
    """The table of S3's figure 5, and the network that the run hands over."""
    front = Run.open(searched).front()
    tuned = retrain(searched, "best", "train.epochs=1", "optimizer.lr=1e-3")
    scratch = retrain(searched, "best", "weights=scratch", "train.epochs=1")
    assert [row["weights"] for row in scratch.rows] == ["finetuned", "inherited", "scratch"]
    assert {row["key"] for row in scratch.rows} == {front["best"]}
    assert scratch.rows == json.loads((searched / "retrained.json").read_text())["rows"]
    by = {row["weights"]: row["accuracy"] for row in scratch.rows}
    assert by["finetuned"] > by["scratch"]  # two epochs more
    best = next(row for row in front["front"] if row["key"] == front["best"])
    assert {row["macs"] for row in scratch.rows} == {best["macs"]}
    stored = load_network(searched / "model")
    assert stored.net.space.smallest().key == front["best"]
    assert stored.classes == tuple("0123456789")
    assert tuned.model == searched / "model"


def test_a_network_begins_with_what_it_inherits(searched: Path) -> None:
    """Before the first step the network computes what the supernet does there."""
    opened = Run.open(searched)
    net, arch = load_supernet(opened.supernet_file), opened.space().sample(1, seed=3)[0]
    (searched / "one.json").write_text(arch.to_json())
    retrain(
        searched,
        str(searched / "one.json"),
        "train.epochs=0.01",
        "optimizer.lr=1e-12",
        "optimizer.warmup_lr=0",
        "train.ema=null",
    )
    x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(load_network(searched / "model").net(x), net(x, arch), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(TrainedRun.of(opened).network(arch)(x), net(x, arch), rtol=1e-5, atol=1e-6)


@pytest.fixture
def quick(searched: Path) -> Path:
    """A searched run whose recipe retrains for a moment."""
    tree = yaml.safe_load((searched / "recipe.yaml").read_text())
    tree["retrain"]["scratch"] = {"train": {"epochs": 0.3}}
    tree["retrain"]["finetuned"] = {"train": {"epochs": 0.2}, "optimizer": {"lr": 1.0e-3, "warmup_epochs": 0}}
    tree["retrain"]["larger"]["train"] = {"epochs": 0.1}
    (searched / "recipe.yaml").write_text(files.seal(yaml.safe_dump(tree)))
    return searched


def equal(run: Run, weights: dict[str, torch.Tensor]) -> bool:
    found = load_file(run.supernet_file)
    return found.keys() == weights.keys() and all(torch.equal(found[name], weights[name]) for name in found)


def best(run: Path) -> sf.Arch:
    return Run.open(run).arch("best")


@pytest.mark.parametrize("weights", ["finetuned", "scratch"])
def test_larger_pictures_in_the_papers_order(quick: Path, weights: str) -> None:
    """S3, section 4.3, and ViT-ResNAS, section 3.1: the network is trained at its own size, by either rule, and *that*
    one is tuned with the recipe's changes for larger pictures; windows grow with them."""
    done = retrain(quick, "best", "img_size=32", f"weights={weights}")
    own = best(quick)
    larger = family(own.family).rescaled(own, 32)
    assert [(r["weights"], r["img_size"], r["key"]) for r in done.rows] == [
        ("inherited", 16, own.key),
        (weights, 16, own.key),
        (weights, 32, larger.key),
    ]
    assert [r.get("from") for r in done.rows[1:]] == [
        "inherited" if weights == "finetuned" else "",
        f"{weights}, 16 pixels",
    ]
    first, second = (Run.open(quick / "retrained" / f"{a.key}-{weights}") for a in (own, larger))
    assert second.recipe().start.run == str(first.folder)
    settings = second.recipe().optimizer
    assert (settings.schedule, settings.lr, settings.weight_decay) == ("constant", 1e-5, 1e-8)
    assert (first.recipe().optimizer.schedule, second.recipe().train.epochs) == ("cosine", 0.1)
    arch = load_network(quick / "model").net.space.smallest()
    windows = [[b["window"] for s in a.stages for b in s.blocks] for a in (own, arch)]
    assert windows[1] == [2 * w for w in windows[0]]

    # a few steps at 1e-5 lead nowhere: the tuned network is the retrained one, not the inherited one
    trained, tuned = (load_supernet(run.supernet_file).head.weight for run in (first, second))
    untuned = load_network(quick / "retrained" / f"{own.key}-inherited").net.head.weight
    assert (tuned - trained).abs().max() < 0.1 * (tuned - untuned).abs().max()


def test_larger_pictures_begin_with_what_is_there(quick: Path) -> None:
    """A retraining that is finished is used, whatever words it was given; one that was stopped goes on."""
    retrain(quick, "best", "train.epochs=0.5", "watch.checkpoint_steps=3")
    first = Run.open(quick / "retrained" / f"{best(quick).key}-finetuned")
    before = first.supernet_file.stat().st_mtime_ns
    done = retrain(quick, "best", "img_size=32", "optimizer.lr=1e-4")
    assert first.supernet_file.stat().st_mtime_ns == before
    assert [r["epochs"] for r in done.rows] == [0, 0.5, 0.1]
    second = Run.open(quick / "retrained" / f"{done.rows[-1]['key']}-finetuned")
    assert (first.recipe().optimizer.lr, second.recipe().optimizer.lr) == (1e-3, 1e-4)

    weights = load_file(first.supernet_file), load_file(second.supernet_file)
    shutil.rmtree(second.folder)
    first.supernet_file.unlink()
    list_checkpoints(first.checkpoints)[-1].unlink()
    again = retrain(quick, "best", "img_size=32", "optimizer.lr=1e-4")
    assert [r["accuracy"] for r in again.rows] == [r["accuracy"] for r in done.rows]
    assert equal(first, weights[0])
    assert equal(second, weights[1])
    with pytest.raises(SuperformerError, match=r"optimizer\.lr"):  # of the tuning, words are those that began it
        retrain(quick, "best", "img_size=32", "optimizer.lr=1e-5")


def test_a_network_that_the_user_names(quick: Path, tmp_path: Path) -> None:
    """It is tuned, with no training before; another one is refused."""
    retrain(quick, "best", "weights=scratch")
    shutil.move(quick / "model", tmp_path / "mine")
    done = retrain(quick, "best", "img_size=32", f"start.network={tmp_path / 'mine'}")
    assert [(r["weights"], r["img_size"]) for r in done.rows[-2:]] == [("inherited", 16), ("finetuned", 32)]
    assert done.rows[-1]["from"] == str(tmp_path / "mine")
    mine, tuned = (load_network(f).net.head.weight for f in (tmp_path / "mine", quick / "model"))
    assert torch.allclose(mine, tuned, atol=1e-3)
    with pytest.raises(SuperformerError, match=r"is not .* at another size"):
        retrain(quick, "largest", "img_size=32", f"start.network={tmp_path / 'mine'}")
    with pytest.raises(SuperformerError, match="no complete network"):
        retrain(quick, "best", "start.network=nowhere")


def test_seeds(quick: Path) -> None:
    """Each in a folder of its own; the mean, the deviation, and the first seed's network."""
    alone = retrain(quick, "best", "seed=1").rows[-1]
    assert alone["seeds"] == [1]
    done = sf.retrain(quick, "best", seeds=3)
    row, key = done.rows[-1], best(quick).key
    assert row["seeds"] == [0, 1, 2]
    assert row["accuracies"][1] == alone["accuracy"]
    assert row["accuracy"] == pytest.approx(statistics.mean(row["accuracies"]))
    assert row["deviation"] == pytest.approx(statistics.stdev(row["accuracies"]))
    assert [r["weights"] for r in done.rows] == ["inherited", "finetuned"]  # the row of one seed is among the three
    first, second = (Run.open(quick / "retrained" / f"{key}-finetuned{s}") for s in ("", "-seed1"))
    assert (first.recipe().seed, second.recipe().seed) == (0, 1)
    model = load_network(quick / "model").net
    assert torch.equal(model.head.weight, load_supernet(first.supernet_file).head.weight)
    with pytest.raises(SuperformerError, match="at least one seed"):
        retrain(quick, "best", seeds=0)


def test_all_training_pictures_are_used(quick: Path) -> None:
    """The papers retrain on the search split, too; a word keeps some apart. The test pictures stay untouched."""
    retrain(quick, "best")
    retrain(quick, "best", "weights=scratch", "data.search=0.2")
    key, counts = best(quick).key, [Run.open(quick).facts()["pictures"]]
    for weights in ("finetuned", "scratch"):
        run = Run.open(quick / "retrained" / f"{key}-{weights}")
        counts.append(run.facts()["pictures"])
    known = counts[0]["train"] + counts[0]["search"]
    assert counts[1] == {"train": known, "search": 0}
    assert counts[2]["search"] > 0
    assert counts[2]["train"] + counts[2]["search"] == known
    alone = Run.open(quick / "retrained" / f"{key}-finetuned")
    kinds = {row["kind"] for row in alone.metrics()}
    assert "step" in kinds
    assert "health" not in kinds
    assert "none: the network is trained on all training pictures" in write(alone.folder).read_text()
    with pytest.raises(SuperformerError, match="no search split"):
        evaluate(alone.folder, ["smallest"], "search")
    assert evaluate(alone.folder, ["smallest"])[0]["accuracy"] > 0
    assert analyse(alone.folder, None, ["attention"], {"pictures": 8})["attention"]


def test_networks_that_are_compared_on_the_search_split_never_see_it(trained: Path) -> None:
    run = Run.open(trained)
    assert _standalone_recipe(run, run.space().smallest(), "scratch", 1).data.search == run.recipe().data.search > 0


def test_a_retraining_of_an_earlier_version_goes_on(quick: Path) -> None:
    """It keeps the search split that it was begun with, and what else its settings meant."""
    words = ("optimizer.own_no_decay=false", "watch.checkpoint_steps=3", "data.search=0.1")
    retrain(quick, "best", *words)
    own = Run.open(quick / "retrained" / f"{best(quick).key}-finetuned")
    weights = load_file(own.supernet_file)
    as_earlier_version(own)
    own.supernet_file.unlink()
    list_checkpoints(own.checkpoints)[-1].unlink()
    retrain(quick, "best", "watch.checkpoint_steps=3")
    assert own.recipe().data.search == 0.1
    assert equal(own, weights)
    with pytest.raises(SuperformerError, match=r"train\.epochs"):
        retrain(quick, "best", "train.epochs=3")


def test_sizes_of_published_networks() -> None:
    small, large = (sf.model(name).space.smallest() for name in ("s3_small", "s3_small_384"))
    swin = family(small.family)
    assert swin.rescaled(small, 384) == large
    assert swin.rescaled(small, 224) == small


def test_a_stopped_retraining_goes_on(searched: Path) -> None:
    words = ("retrain", "--run", str(searched), "train.epochs=2", "watch.checkpoint_steps=5")
    first = superformer(*words)
    assert first.returncode == 0, first.stderr
    again = superformer(*words)
    assert "already trained" in again.stdout
    assert [line for line in first.stdout.splitlines() if "best  finetuned" in line] == [
        line for line in again.stdout.splitlines() if "best  finetuned" in line
    ]
    other = superformer(*words, "optimizer.lr=1")
    assert other.returncode == 2
    assert "optimizer.lr" in other.stderr


@pytest.mark.parametrize(
    ("which", "word", "says"),
    [
        ("best", "weights=scrach", "did you mean 'scratch'"),
        ("best", "img_size=large", "number of pixels"),
        ("best", "train.epoch=1", "train.epochs"),
        ("swin-0", "seed=0", "unknown architecture"),
    ],
)
def test_mistakes(searched: Path, which: str, word: str, says: str) -> None:
    before = sorted(searched.rglob("*"))
    with pytest.raises(SuperformerError, match=says):
        retrain(searched, which, word)
    assert sorted(searched.rglob("*")) == before


def test_what_is_network_to_export(searched: Path) -> None:
    with pytest.raises(SuperformerError, match="superformer retrain"):
        network_to_export(searched)
    assert network_to_export(searched, "largest").net.space.smallest() == Run.open(searched).space().largest()


def test_networks_with_batch_norm_keep_their_own_statistics(tmp_path: Path) -> None:
    """The network that is handed over is the one that was measured."""
    words = ("train.epochs=0.5", "watch.networks=0", "data.search=5")
    train("nasvit-laptop", "digits", tmp_path / "run", *words)
    done = retrain(tmp_path / "run", "smallest", "train.epochs=0.3", "watch.every=10")
    stored = load_network(done.model)
    pictures = data.load("digits", Run.open(tmp_path / "run").recipe().data, stored.net.space.smallest().resolution)
    right = total = 0
    for x, labels in data.eval_batches(pictures.test(), Run.open(tmp_path / "run").recipe().data, 32, 256):
        right, total = right + int((stored.net(x).argmax(1) == labels).sum()), total + len(labels)
    assert done.rows[-1]["accuracy"] == pytest.approx(
        right / total, abs=2.5 / total
    )  # hardly trained: ties that rounding decides


def test_seeds_on_the_command_line(quick: Path) -> None:
    words = ("retrain", "--run", str(quick), "train.epochs=0.1", "--seeds")
    done = superformer(*words, "2")
    assert done.returncode == 0, done.stderr
    assert "±" in done.stdout
    assert "(seed 0)" in " ".join(done.stdout.split())  # lines may be broken
    assert json.loads(superformer(*words, "2", "--json").stdout)[-1]["seeds"] == [0, 1]
    refused = superformer(*words, "0")
    assert refused.returncode == 2
    assert "at least one seed" in refused.stderr


def test_two_processes_train_one_after_the_other(quick: Path) -> None:
    """Both trainings of a command, and every seed, in one group of processes: a group is not formed twice."""
    done = superformer("retrain", "--run", str(quick), "img_size=32", "--seeds", "2", "train.epochs=0.1", processes=2)
    assert done.returncode == 0, done.stderr
    rows = json.loads((quick / "retrained.json").read_text())["rows"]
    assert [(r["img_size"], r.get("seeds")) for r in rows] == [(16, None), (16, [0, 1]), (32, [0, 1])]
