"""Retraining found networks: the weights they begin with, larger pictures, and what a run holds afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers.training import superformer

import superformer as sf
from superformer import data
from superformer.errors import SuperformerError
from superformer.evaluation.evaluator import TrainedRun
from superformer.runs import Run
from superformer.runs.storage import load_network, load_supernet
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


def test_larger_pictures(searched: Path) -> None:
    """Windows grow with the pictures; the recipe's changes for larger pictures hold; everything but the tables' sizes
    is copied."""
    done = retrain(searched, "best", "img_size=32", "train.epochs=0.1")
    row = done.rows[-1]
    assert row["img_size"] == 32
    arch = load_network(searched / "model").net.space.smallest()
    front = Run.open(searched).front()
    before = sf.Arch.from_json(json.dumps(next(r["arch"] for r in front["front"] if r["key"] == front["best"])))
    windows = [[b["window"] for s in a.stages for b in s.blocks] for a in (before, arch)]
    assert windows[1] == [2 * w for w in windows[0]]
    assert Run.open(searched / "retrained" / f"{arch.key}-finetuned").recipe().optimizer.schedule == "constant"


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
