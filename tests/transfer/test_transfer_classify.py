"""Classification of other pictures is a retraining with a new classifier, in an ordinary run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from superformer.errors import SuperformerError
from superformer.report import write
from superformer.runs import Run
from superformer.runs.storage import load_network
from superformer.train.retrain import network_to_export
from superformer.transfer import evaluate, transfer

QUIET = ("data.augment=none", "data.workers=0", "train.batch_size=16", "watch.every=10")


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Pictures of three colours."""
    rng, labels = np.random.default_rng(0), np.arange(96) % 3
    images = rng.integers(0, 90, (96, 16, 16, 3), dtype=np.uint8)
    images[np.arange(96), :, :, labels] += 130
    path = tmp_path_factory.mktemp("colours") / "colours.npz"
    np.savez(path, images=images, labels=labels, class_names=["red", "green", "blue"])
    return str(path)


def test_a_network_of_a_run_learns_other_classes(trained_once: Path, colours: str, tmp_path: Path, command) -> None:
    words = ("transfer", "--run", str(trained_once), "--arch", "smallest", "--task", "classify", "--data", colours)
    status, out, error = command(
        *words, "--out", str(tmp_path / "run"), *QUIET, "train.epochs=6", "optimizer.lr=2e-3", "--json"
    )
    assert status == 0, error
    assert json.loads(out)["accuracy"] > 0.8
    run = Run.open(tmp_path / "run")
    assert run.facts()["classes"] == ["red", "green", "blue"]
    assert load_network(run.model_folder()).classes == ("red", "green", "blue")
    status, out, _ = command("eval", "--run", str(tmp_path / "run"), "--json")
    assert json.loads(out)["accuracy"] == evaluate(tmp_path / "run")["metrics"]["accuracy"]
    assert "red" in write(tmp_path / "run").read_text("utf-8")
    again, _, error = command(*words, "--out", str(tmp_path / "run"), *QUIET, "train.epochs=7", "optimizer.lr=2e-3")
    assert again == 2
    assert "train.epochs: 6.0 before, 7.0 now" in error


def test_it_begins_with_the_networks_weights(trained_once: Path, colours: str, tmp_path: Path) -> None:
    still = ("train.epochs=1", "optimizer.lr=1e-12", "optimizer.warmup_epochs=0", "optimizer.min_lr=0")
    transfer("classify", colours, tmp_path / "run", *QUIET, *still, run=trained_once, arch="largest")
    before, after = network_to_export(trained_once, "largest").net, load_network(tmp_path / "run" / "model").net
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(before.eval().forward_features(x), after.forward_features(x), atol=1e-5)
    assert after(x).shape == (2, 3)


def test_what_cannot_be_classified_with_is_told(colours: str, tmp_path: Path) -> None:
    with pytest.raises(SuperformerError, match=r"no family here|bottleneck"):
        transfer("classify", colours, tmp_path / "run", backbone="resnet18")
    with pytest.raises(SuperformerError, match=r"name one network: --run DIR.*--backbone NAME"):
        transfer("classify", colours, tmp_path / "run")
    with pytest.raises(SuperformerError, match="no file nowhere"):
        transfer("classify", colours, tmp_path / "run", backbone="resnet50", checkpoint="nowhere.safetensors")
    assert not (tmp_path / "run").exists()
