"""From a network to faster ones: the whole way in small, going on, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from rich.console import Console
from safetensors.torch import save_file

import superformer as sf
from superformer import fitting
from superformer.cost.latency import measure_in_turn
from superformer.evaluation.evaluator import Evaluator, TrainedRun
from superformer.fitting import Aim, aim, fit
from superformer.fitting.aim import pick, room_below
from superformer.report import write
from superformer.runs import stored
from superformer.runs.storage import load_network, load_supernet, save_network
from superformer.train import loop
from superformer.train.importance import Orders
from superformer.train.warm_start import from_network

BLOCK = {"heads": 3, "attn": sf.times(8, of="heads"), "mlp": 96}
SPACE = sf.Space("one", "vit", (sf.Stage(BLOCK, depth=4),), {"patch_size": 2, "width": 48}, 8)
WORDS = [f"{part}data.{key}" for part in ("", "original.") for key in ("augment=none", "mirror=0", "workers=0")]
WORDS += ["original.train.epochs=5", "original.train.batch_size=16", "original.optimizer.lr=3e-3"]
WORDS += ["train.epochs=1", "optimizer.lr=1e-3"]
WORDS += ["search.population=6", "search.generations=2", "retrain.finetuned.train.epochs=1", "train.threads=1"]
AIM = Aim(macs=400e3, networks=2)
pytestmark = pytest.mark.xdist_group("fitting")


@pytest.fixture(autouse=True, scope="module")
def short_measurements() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "SECONDS", 0.1)
        patch.setattr(aim, "SECONDS", 0.05)
        yield


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Something to begin with; that it knows nothing yet does not matter here."""
    folder = tmp_path_factory.mktemp("network")
    net = sf.supernet(SPACE, 10, seed=1).extract(SPACE.smallest()).eval()
    save_network(net, folder, [str(k) for k in range(10)], (0.5,) * 3, (0.5,) * 3)
    return folder


@pytest.fixture(scope="module")
def fitted(network: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("fit") / "run"
    return folder, fit(str(network), "digits", folder, *WORDS, aim=AIM)


def test_the_whole_way(fitted: tuple[Path, dict[str, Any]]) -> None:
    folder, found = fitted
    winner = next(row for row in found["found"] if row["key"] == found["winner"])
    assert found["original"]["accuracy"] > 0.5  # it was tuned
    assert winner["macs"] <= AIM.macs < found["original"]["macs"]
    assert winner["accuracy"] > 0.2  # one epoch each; chance is 0.1
    for row in (found["original"], *found["found"]):
        assert set(row) == {"key", "accuracy", "latency", "macs", "params"}
        assert 0 < row["latency"] < 1
    assert load_network(folder / "model").net.space.smallest().key == winner["key"]
    assert stored.read(folder / "fit.json").items() >= found.items()
    space = sf.Run.open(folder).space()
    assert space.stages[0].ranked == Orders.load(folder / "orders.json").blocks[0]
    teacher = sf.Run.open(folder).recipe().loss.teachers
    assert teacher == (str(folder / "teacher"),)


def test_times_are_of_the_device_that_the_search_measures_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit from times of the processor would say nothing about an accelerator's."""
    seen = []

    def measured(nets: Any, **how: Any) -> list[Any]:
        seen.append(how["device"])
        return measure_in_turn(nets, **how | {"device": "cpu"})

    monkeypatch.setattr(aim, "measure_in_turn", measured)
    monkeypatch.setattr(aim, "device_here", lambda: torch.device("cuda", 0))
    net = sf.model(SPACE.smallest()).eval()
    aim.times([net], "eager", 0.01)
    aim.times([net], "onnx", 0.01)  # which runs on the processor
    assert seen == ["cuda", "cpu"]


def test_the_report_sets_them_beside_the_original(fitted: tuple[Path, dict[str, Any]]) -> None:
    folder, found = fitted
    page = write(folder, Console(quiet=True)).read_text()
    for text in ("Fitted to your pictures", "What went first", "stage 1, block 2: hidden units", "channels of tokens"):
        assert text in page, text
    assert f"winner ({found['winner']})" in page
    assert f"on {found['pictures']:,} test pictures" in page


def test_what_the_original_knew_is_kept_before_any_training(fitted: tuple[Path, dict[str, Any]]) -> None:
    """At three quarters of its MACs the best sub-network has half of its accuracy, without a step of training."""
    folder, _ = fitted
    run = sf.Run.open(folder)
    space, original = run.space(), load_supernet(folder / "original" / "supernet.safetensors")
    net = sf.supernet(space, 10)
    from_network(net, original.extract(original.space.smallest()), Orders.load(folder / "orders.json"))
    most = float(sf.cost(space, [space.largest()], 10).macs[0])
    archs = space.sample(40, seed=0, macs=(0.6 * most, 0.75 * most), num_classes=10)
    trained = TrainedRun.of(run, net.eval())
    best = max(trained.evaluator(trained.pictures.search)(archs))
    whole = trained.evaluator(trained.pictures.search)([space.largest()])[0]
    assert best > 0.5 * whole


def accuracies(found: dict[str, Any]) -> dict[str, float]:
    return {row["key"]: row["accuracy"] for row in (found["original"], *found["found"])}


def test_the_same_words_go_on(
    network: Path, fitted: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is trained or measured twice; the networks are the same."""
    folder, found = fitted

    def never(*args: object, **words: object) -> None:
        raise AssertionError("this was done")

    monkeypatch.setattr(loop.Loop, "go", never)
    monkeypatch.setattr(fitting, "measure", never)
    monkeypatch.setattr(fitting, "room_below", never)
    again = fit(str(network), "digits", folder, *WORDS, aim=AIM)
    assert accuracies(again) == accuracies(found)


def test_a_fit_that_was_moved_goes_on(
    network: Path, fitted: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from another working folder: what it began with and its teacher lie in it."""
    folder, found = fitted
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    monkeypatch.chdir(tmp_path)
    for run in (Path("moved"), Path("moved") / "retrained" / f"{found['winner']}-finetuned"):
        teachers = sf.Run.open(run).recipe().loss.teachers
        assert teachers == (str(Path("moved") / "teacher"),)
    assert str(folder) not in (moved / "recipe.yaml").read_text()
    monkeypatch.setattr(loop.Loop, "go", dying(loop.Loop, "go", 1))  # nothing is trained again
    assert accuracies(fit(str(network), "digits", "moved", *WORDS, aim=AIM)) == accuracies(found)


def dying(owner: Any, name: str, calls: int) -> Any:
    """A function that ends the program the so-many-th time it is called."""
    whole, seen = getattr(owner, name), []

    def wrapper(*args: Any, **words: Any) -> Any:
        seen.append(1)
        if len(seen) == calls:
            raise KeyboardInterrupt
        return whole(*args, **words)

    return wrapper


def test_killed_anywhere(network: Path, fitted: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """In each part and between them; it ends with the same networks."""
    folder, found = fitted
    moments = (
        (loop.Loop, "_tell", 7),  # while the original is tuned
        (fitting, "measure", 1),
        (loop.Loop, "_tell", 5),  # in the supernet's training
        (Evaluator, "scores", 2),
        (fitting, "pick", 1),
        (loop.Loop, "_tell", 3),  # while a network is trained by itself
        (fitting, "times", 1),
    )
    for owner, name, calls in moments:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, dying(owner, name, calls))
            with pytest.raises(KeyboardInterrupt):
                fit(str(network), "digits", tmp_path / "run", *WORDS, aim=AIM)
    again = fit(str(network), "digits", tmp_path / "run", *WORDS, aim=AIM)
    assert accuracies(again) == accuracies(found)
    assert again["winner"] == found["winner"]
    for name in ("supernet.safetensors", "original/supernet.safetensors"):
        a, b = (load_supernet(f / name).state_dict() for f in (folder, tmp_path / "run"))
        assert all(torch.equal(a[k], b[k]) for k in a)
    one, two = (load_network(f / "model").net.state_dict() for f in (folder, tmp_path / "run"))
    assert all(torch.equal(one[k], two[k]) for k in one)


def test_what_is_refused(network: Path, tmp_path: Path) -> None:
    cases = {
        "possible: vit_tiny_patch16_224": ("vit_tinny_patch16_224", {}),
        "there is no checkpoint": ("vit_tiny_patch16_224", {"checkpoint": "none.safetensors"}),
        "MobileNetV3": ("mobilenetv3_small_100", {}),  # before any weight is fetched
        "has its own weights": (str(network), {"checkpoint": "some.safetensors"}),
        "at most 100 MACs; the least has": (str(network), {"aim": Aim(macs=100)}),
        "one limit": (str(network), {}),
    }
    for text, (model, words) in cases.items():
        if text == "one limit":
            with pytest.raises(sf.SuperformerError, match=text):
                Aim(latency=1.0, macs=1.0)
            continue
        with pytest.raises(sf.SuperformerError, match=text):
            fit(model, "digits", tmp_path / "none", **words)
    for word in ("optimizer.rl=1e-3", "original.optimizer.rl=1e-3", "data.views=3.5"):
        with pytest.raises(sf.SuperformerError, match=word.partition("=")[0].removeprefix("original.")):
            fit(str(network), "digits", tmp_path / "none", word, aim=AIM)
    (tmp_path / "file").mkdir()
    with pytest.raises(sf.SuperformerError, match="no folder of a network"):
        fit(str(tmp_path / "file"), "digits", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_folder_that_is_no_place_for_a_fit_is_left_as_it_was(network: Path, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "holiday.jpg").touch()
    cases = {"file": "is a file", "file/sub": "is a file", "mine": "is not a run", str(trained): "a run of its own"}
    for folder, told in cases.items():
        before = sorted(str(f) for f in tmp_path.rglob("*"))
        with pytest.raises(sf.SuperformerError, match=told):
            fit(str(network), "digits", tmp_path / folder, *WORDS, aim=AIM)
        assert sorted(str(f) for f in tmp_path.rglob("*")) == before


def test_a_checkpoint_of_other_classes_is_taken(tmp_path: Path) -> None:
    own = timm.create_model("test_vit", num_classes=7)
    save_file(own.state_dict(), tmp_path / "own.safetensors")
    source = fitting.Source.of("test_vit", str(tmp_path / "own.safetensors"))
    assert source.net.num_classes == 7
    x = torch.randn(2, 3, 160, 160)
    assert torch.allclose(source.net.eval()(x), own.eval()(x), atol=1e-5)


def test_a_folder_of_timms_says_how_pictures_are_prepared(tmp_path: Path) -> None:
    own = timm.create_model("test_vit", num_classes=7)
    words = {"architecture": "test_vit", "num_classes": 7, "pretrained_cfg": {"mean": [0.5] * 3, "std": [0.25] * 3}}
    save_file(own.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(words))
    prepared = fitting.Source.of(f"local-dir:{tmp_path}").prepared
    assert (prepared["mean"], prepared["std"]) == ([0.5] * 3, [0.25] * 3)


def test_the_winner_keeps_to_the_limit_when_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a table that is too hopeful, the best that really keeps to it; none at all is told."""
    net = sf.model(SPACE.smallest()).eval()
    arch = json.loads(SPACE.smallest().to_json())
    rows = [{"key": str(k), "accuracy": 0.9 - k / 10, "latency": 0.4, "arch": arch} for k in range(6)]
    taken, told, calls = {4: 0.4, 5: 0.4}, list[str](), list[int]()

    def times(nets: Any, runtime: str, seconds: float) -> list[float]:
        first = sum(calls) if len(nets) > 2 else 4
        calls.append(len(nets) - 1)
        return [1.0, *(taken.get(first + k, 0.6) for k in range(len(nets) - 1))]

    monkeypatch.setattr(aim, "times", times)
    assert aim.measured_winner(rows, Aim(), net, told.append)["key"] == "4"
    assert [row["key"] for row in pick(rows, "latency", 0.5, 2, rows[4])][-1] == "4"
    taken.clear()
    calls.clear()
    assert aim.measured_winner(rows, Aim(), net, told.append) in rows
    assert "none of the 6 best kept to the limit" in told[-1]


def test_what_teachers_say_is_kept_where_it_comes_again(network: Path, tmp_path: Path) -> None:
    source = fitting.Source.of(str(network), None)
    settings = {
        (): (8, True), ("data.augment=none",): (0, False), ("data.repeats=2",): (0, False),
        ("mix.mixup=0.2",): (8, False), ("data.views=3",): (3, True),
    }  # fmt: skip
    for words, (views, kept) in settings.items():
        recipe = fitting._supernet(source, SPACE, tmp_path, network, network, words, 32)
        assert (recipe.data.views, recipe.loss.keep is not None) == (views, kept)


def test_networks_along_the_front() -> None:
    front = [{"key": str(k), "accuracy": 0.5 + k / 100, "macs": 100.0 * k} for k in range(1, 11)]
    assert [row["key"] for row in pick(front, "macs", 500, 3)] == ["3", "7", "5"]  # within 333, 750, and the limit
    assert [row["key"] for row in pick(front, "macs", 500, 1)] == ["5"]
    assert len(pick(front, "macs", 500, 40)) == 6  # rungs in which there is no other are passed over
    with pytest.raises(sf.SuperformerError, match="the least has 100 MACs"):
        pick(front, "macs", 50, 3)


def test_room_below_goes_further_where_it_must() -> None:
    arch = SPACE.smallest()
    most = float(sf.cost(SPACE, [arch], 1000).macs[0])
    assert room_below(arch, Aim(macs=most / 2))["shrink"] >= 2
