"""Candidates evaluated together are what they are one by one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.strategies import sharings, spaces
from helpers.supernets import double, pictures
from helpers.training import as_earlier_version
from hypothesis import given, settings
from hypothesis import strategies as st

import superformer as sf
from superformer import data
from superformer.elastic.conv import BatchNorm
from superformer.errors import SuperformerError
from superformer.evaluation.evaluator import Evaluator, Race, TrainedRun, calibration_batches, needs_recalibration
from superformer.evaluation.prefix_tree import grow, prefix_order, walk
from superformer.recipes import dump, resolve, space_of
from superformer.runs import Run
from superformer.search.scores import history_of
from superformer.space.genes import mutate


@given(spaces, sharings, st.integers(0, 99))
def test_a_tree_gives_the_logits_of_separate_networks(space, sharing, seed):
    """Of every family, with mutants that share a beginning; batch norms estimated for each network by itself."""
    rule, side = sharing
    net = double(space, rule)
    for norm in (m for m in net.modules() if isinstance(m, BatchNorm)):
        norm.momentum = None
    parents = space.encode(space.sample(2, seed=seed))
    children = mutate(space, np.repeat(parents, 3, 0), np.random.default_rng(seed), p=0.1)
    archs = space.decode(np.concatenate([parents, children]))
    batches, calibration = ([pictures(3, space, seed=k) for k in some] for some in (range(2), range(10, 12)))
    calibration = calibration if needs_recalibration(net) else []
    models = [net.extract(arch, side=side) for arch in archs]
    models = [sf.recalibrate(m, calibration) if calibration else m for m in models]
    root = grow(net, archs, (space.img_size, space.img_size), side)
    for n, x in enumerate(batches):
        for k, logits in walk(root, x, calibration if n == 0 else ()):
            torch.testing.assert_close(logits, models[k](x), rtol=1e-9, atol=1e-9)


def test_equal_beginnings_run_once() -> None:
    space = sf.space("autoformer-tiny").narrow(depth=12, width=192)
    net = sf.supernet(space, 5)
    first = space.smallest()
    genes = space.encode([first])
    late = genes.copy()
    late[0, -2] = 1  # a choice of the last block
    early = genes.copy()
    early[0, next(n for n, name in enumerate(space.gene_names) if "heads" in name)] = 1
    alone = len(grow(net, [first], (224, 224)))
    assert len(grow(net, [first, *space.decode(late)], (224, 224))) <= alone + 4
    assert len(grow(net, [first, *space.decode(early)], (224, 224))) == 2 * alone - 1


@settings(max_examples=12)
@given(spaces, st.integers(0, 99))
def test_an_order_in_which_equal_beginnings_follow_one_another(space, seed):
    archs = space.sample(8, seed=seed)
    order = prefix_order([*archs, *archs])
    assert sorted(order) == list(range(16))
    net = sf.supernet(space, 3)
    size = (space.img_size, space.img_size)
    seen: list[object] = []
    for k in order:  # what leads into the first stage: each kind once in a row
        key = next(iter(grow(net, [archs[k % 8]], size).children))
        if not seen or seen[-1] != key:
            assert key not in seen
            seen.append(key)


def test_the_supernet_stays_as_it_is() -> None:
    space = space_of(sf.recipe("nasvit-laptop"))
    net = sf.supernet(space, 5)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    x = torch.randn(8, 3, 32, 32)
    batches = [(x, torch.arange(8) % 5)]
    found = Evaluator(net, lambda: batches, [x, x])(space.sample(5, seed=0))
    assert len(found) == 5
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in before.items())
    with pytest.raises(SuperformerError, match="calibration"):
        Evaluator(net, lambda: batches)


def judge_of(space, n=40, seed=0):
    net = double(space, "ordinal")
    batches = [(pictures(n // 2, space, seed=seed + k), torch.arange(n // 2) % net.num_classes) for k in range(2)]
    calibration = [pictures(4, space, seed=9)] if needs_recalibration(net) else []
    return Evaluator(net, lambda: batches, calibration, pictures=n)


@settings(max_examples=6)
@given(spaces, st.integers(0, 9))
def test_accuracy_and_loss_are_those_of_separate_networks(space, seed):
    judge = judge_of(space, 8, seed)
    archs = space.sample(3, seed=seed)
    for arch, score in zip(archs, judge.scores(archs), strict=True):
        model = judge.net.extract(arch).eval()
        model = sf.recalibrate(model, judge.calibration) if judge.calibration else model
        with torch.no_grad():
            logits = [(model(x), y) for x, y in judge.batches()]
        loss = sum(float(torch.nn.functional.cross_entropy(z.float(), y, reduction="sum")) for z, y in logits) / 8
        assert score.loss == pytest.approx(loss, rel=1e-5)
        assert score.accuracy == sum(int((z.argmax(1) == y).sum()) for z, y in logits) / 8


def test_a_race_stops_those_that_cannot_win_and_changes_no_score_of_the_others():
    judge = judge_of(space_of(sf.recipe("nasvit-laptop")), 160)
    archs = judge.net.space.sample(12, seed=3)
    whole = judge.scores(archs)
    middle = sorted(score.accuracy for score in whole)[6]
    raced = judge.scores(archs, Race([middle] * 12))
    for before, after in zip(whole, raced, strict=True):
        assert math.isnan(after.accuracy) == math.isnan(after.loss)
        if math.isnan(after.accuracy):
            assert before.accuracy < middle
        else:
            assert after == pytest.approx(before)
    assert any(math.isnan(score.accuracy) for score in judge.scores(archs, Race([0.9] * 12)))
    assert np.asarray(judge.scores(archs, Race([0.0] * 12))) == pytest.approx(np.asarray(whole))
    assert all(
        math.isnan(score.accuracy) for score in judge.scores(archs, Race([1.1] * 12))
    )  # before the first picture


@given(st.integers(1, 300), st.floats(0, 1), st.floats(0, 3), st.data())
def test_the_bound_of_a_race_is_exact_and_a_margin_only_lowers_it(pictures, needed, margin, data):
    seen = data.draw(st.integers(0, pictures))
    right = data.draw(st.integers(0, seen))
    lost = bool(Race([needed]).lost(torch.tensor([right], dtype=torch.float64), seen, pictures))
    assert lost == ((right + pictures - seen) / pictures < needed)
    if lost:
        assert Race([needed], margin).lost(torch.tensor([right], dtype=torch.float64), seen, pictures)


def sorted_by_class(folder: Path, classes: int = 40, each: int = 10) -> str:
    """Class after class, as folders are; every pixel is the picture's class."""
    labels = np.repeat(np.arange(classes), each)
    images = np.broadcast_to(labels.astype(np.uint8)[:, None, None, None], (len(labels), 8, 8, 3))
    np.savez(folder / "sorted.npz", images=images, labels=labels)
    return str(folder / "sorted.npz")


def seen(batch: torch.Tensor) -> list[int]:
    return (255 * (batch[:, 0, 0, 0] * 0.5 + 0.5)).round().int().tolist()


def test_calibration_sees_every_class_alike(tmp_path: Path) -> None:
    words = ["data.augment=none", "data.search=1", "data.calibration=2"]
    recipe = resolve("nasvit-laptop", words)
    pictures = data.load(f"train={sorted_by_class(tmp_path)},test={tmp_path / 'sorted.npz'}", recipe.data, 32)
    batches = list(map(seen, calibration_batches(pictures, recipe, 32, None)))
    assert [len(b) for b in batches] == [64, 64]
    for some, most in ((batches[0], 2), ([*batches[0], *batches[1]], 4)):
        counts = np.bincount(some, minlength=40)
        assert counts.max() == most
        assert counts.min() >= most - 1, "a class that was never seen"
        assert np.abs(np.diff(some)).mean() > 5, "neighbouring classes in a batch"
    assert batches == list(map(seen, calibration_batches(pictures, recipe, 32, None)))
    other = resolve("nasvit-laptop", [*words, "seed=1"])
    assert batches != list(map(seen, calibration_batches(pictures, other, 32, None)))
    many = resolve("nasvit-laptop", [*words, "data.calibration=64"])  # whole batches of the 360 that there are
    assert [len(b) for b in calibration_batches(pictures, many, 32, None)] == [64] * 5


def test_a_run_from_before_calibration_was_a_setting_keeps_its_own(tmp_path: Path) -> None:
    """It is calibrated as before, so that its history still holds, and the words that began it go on with it."""
    words = ["train.epochs=0.1", "watch.every=9", "data.calibration=1", "space.options.scale=none"]
    run = sf.train("nasvit-laptop", "digits", tmp_path / "run", *words)
    with history_of(TrainedRun.of(run)) as history:
        now = history._subject
    with history_of(TrainedRun.of(run)) as again:
        assert again._subject == now
    as_earlier_version(run)
    trained = TrainedRun.of(Run.open(tmp_path / "run"))
    assert trained.recipe.data.calibration == 0
    batches = list(calibration_batches(trained.pictures, trained.recipe, 32, None))
    subset = data.eval_batches(trained.pictures.train, trained.recipe.data, 32, 64, limit=512)
    assert all(torch.equal(a, b) for a, (b, _) in zip(batches, subset, strict=True))
    with history_of(trained) as old:
        assert old._subject != now, "evaluations with other statistics must not be mixed"
        assert old.others == 0
    sf.train(str(run.recipe_file), "digits", tmp_path / "run")  # no other settings
    assert "calibration" in dump(run.recipe())
