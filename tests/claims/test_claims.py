"""Claims: the rule, on made-up runs with a known effect and with none; every declaration; a small claim for real."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from superformer import claims
from superformer.claims import measures
from superformer.claims.declaration import Claim, declared, left_out, named
from superformer.claims.page import drawing, write_page
from superformer.claims.store import Store, label, summary
from superformer.claims.verdict import HOLDS, OPEN, REVERSED, UNSEEN, differences, interval, verdict
from superformer.errors import SuperformerError
from superformer.recipes import resolve, space_of
from superformer.runs import Run
from superformer.train.step import Trainer

SIMULATED, SEEDS = 1000, 3


def judged(rng: np.random.Generator, effects: list[float], seeds: int = SEEDS) -> tuple[str, bool]:
    """The verdict of made-up runs, whose arms share the luck of a seed; whether all intervals cover the truth."""
    luck = rng.normal(0, 3, seeds)
    arms = [f"arm {k}" for k in range(len(effects))]
    values = {a: dict(enumerate(luck + e + rng.normal(0, 1, seeds))) for a, e in zip(arms, effects, strict=True)}
    found = differences(values, arms)
    true = [a - b for a, b in pairwise(effects)]
    covered = all(d.low <= t <= d.high for d, t in zip(found, true, strict=True))
    return verdict(found, len(arms) - 1), covered


@pytest.mark.parametrize(
    ("effects", "expected", "least"),
    [
        ([20.0, 0.0], HOLDS, 0.98),
        ([0.0, 20.0], REVERSED, 0.98),
        ([0.0, 0.0], UNSEEN, 0.92),
        ([40.0, 20.0, 0.0], HOLDS, 0.97),
    ],
)
def test_verdicts_of_known_effects(effects, expected, least):
    """A large effect is seen; without one a claim is rarely said to hold or to be reversed (2.5 % each)."""
    rng = np.random.default_rng(0)
    found = [judged(rng, effects)[0] for _ in range(SIMULATED)]
    assert found.count(expected) >= least * SIMULATED


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_cover_as_often_as_they_say(seeds):
    rng = np.random.default_rng(seeds)
    covered = sum(judged(rng, [1.0, 0.0], seeds)[1] for _ in range(SIMULATED))
    assert covered == pytest.approx(0.95 * SIMULATED, abs=3 * (0.95 * 0.05 * SIMULATED) ** 0.5)


def test_the_interval_is_students():
    from scipy import stats

    values = [1.0, 2.0, 4.0]
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert interval(values) == pytest.approx((low, high))


def test_losses_are_better_the_lower_and_one_seed_tells_nothing():
    values = {"a": {0: 1.0, 1: 1.1, 2: 1.05}, "b": {0: 2.0, 1: 2.1, 2: 2.06}}
    assert verdict(differences(values, ["a", "b"], low_is_better=True), 1) == HOLDS
    assert verdict(differences(values, ["a", "b"]), 1) == REVERSED
    assert verdict(differences({k: {0: v[0]} for k, v in values.items()}, ["a", "b"]), 1) == OPEN
    assert verdict(differences({"a": values["a"]}, ["a", "b"]), 1) == OPEN


@pytest.mark.parametrize("name", list(declared()))
def test_every_claim_can_be_run(name):
    """Its arms are recipes with spaces, all different, and cost the same pictures."""
    claim = declared()[name]
    recipes = []
    for words in claim.arms.values():
        own = [] if claim.of_one_supernet else words
        recipes.append(resolve(claim.recipe, [*claim.common, *own]))
        space_of(recipes[-1])
    if not claim.of_one_supernet:
        assert len({r.model_dump_json() for r in recipes}) == len(recipes)
    assert len({(r.train.epochs, r.train.batch_size) for r in recipes}) == 1
    assert claim.title[0].isupper()
    assert not claim.title.endswith(".")


def test_what_is_refused():
    with pytest.raises(SuperformerError, match=r"no claim 'cyclic-los'.*cyclic-loss"):
        named(["cyclic-los"])
    tree = declared()["warm-up"].model_dump() | {"order": ["warm-up", "nothing"]}
    with pytest.raises(SuperformerError, match="order must name two or more of the arms"):
        Claim.read(tree, "here")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Claim:
    own = declared()["warm-up"]
    own = own.model_copy(update={"common": ["train.epochs=0.5", "watch.networks=0"], "order": ["warm-up", "none"]})
    monkeypatch.setattr(claims, "named", lambda names: {"warm-up": own})
    return own


@pytest.mark.xdist_group("claims")
def test_a_claim_for_real_and_killed(small: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two arms, two seeds; killed after the first run it goes on; numbers, page and drawing are there."""
    whole, seen = claims.measured, []

    def dies(*args: object) -> object:
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return whole(*args)

    monkeypatch.setattr(claims, "measured", dies)
    with pytest.raises(KeyboardInterrupt):
        claims.run([], "digits", tmp_path, seeds=2)
    (found,) = claims.run([], "digits", tmp_path, seeds=2)
    assert len(seen) == 5  # the first run was not repeated
    assert {r["epochs"] for r in found["runs"]} == {0.5}
    trained = [Run(folder).recipe() for folder in (tmp_path / "supernets").iterdir()]
    assert len(trained) == 4
    assert {(own.train.epochs, own.optimizer.warmup_epochs) for own in trained} == {(0.5, 0.5 / 3)}
    assert [(r["arm"], r["seed"]) for r in found["runs"]] == [("none", 0), ("none", 1), ("warm-up", 0), ("warm-up", 1)]
    assert all(0 < r["values"]["median"] <= 1 and r["values"]["late_loss"] > 0 for r in found["runs"])
    assert found["verdict"] in (HOLDS, REVERSED, UNSEEN)
    kept = json.loads((tmp_path / "claims" / "warm-up.json").read_text())
    assert kept == json.loads(json.dumps(found))
    page = (tmp_path / "claims.md").read_text()
    links = re.findall(r"\]\((claims/[\w-]+\.svg)\)", page)
    assert links
    for link in links:
        drawn = ElementTree.parse(tmp_path / link).getroot()
        assert len(list(drawn.iter("{http://www.w3.org/2000/svg}circle"))) == 4
    with Store(tmp_path / "claims.db") as store:
        assert summary("warm-up", small, store.rows("warm-up")) == found
    (again,) = claims.run([], "digits", tmp_path / "elsewhere", seeds=2, out=tmp_path)  # from the files alone
    assert (again, len(seen)) == (found, 5)
    (tmp_path / "claims" / "warm-up.json").write_text("[]")
    with pytest.raises(SuperformerError, match=r"warm-up\.json.*delete it"):
        claims.run([], "digits", tmp_path / "third", seeds=2, out=tmp_path)


SHORT = ["train.epochs=0.15", "watch.networks=0", "retrain.scratch.train.epochs=0.1"]


@pytest.mark.xdist_group("claims")
@pytest.mark.parametrize("name", ["something-to-find", "cyclic-ranges", "ratios-grow", "chosen-in-time"])
def test_measures_for_real(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first arm of a claim, with numbers that can be; a second time nothing is trained or measured again."""
    monkeypatch.setattr(measures, "SPREAD", 2)
    monkeypatch.setattr(measures, "GROUPED", measures.GROUPED.model_copy(update={"architectures": 12, "groups": 3}))
    few = {
        "chosen-in-time": ["population=6", "generations=1"],
        "ratios-grow": ["first=6", "parents=4", "mutants=2", "crossovers=2", "rounds=1"],
    }
    own = declared()[name].model_copy(update={"common": SHORT, "search": few.get(name, [])})
    words = tuple(own.arms[own.order[-1]])
    arm = measures.Arm(own, words, 0, "digits", tmp_path)
    values = measures.measured(arm, lambda other: arm.trained())
    assert own.measure in values
    assert 0 < values["median"] <= 1
    if own.measure == "spread":
        assert values["spread"] == pytest.approx((values["most"] - values["least"]) / 2**0.5)  # of two
    elif own.measure == "kendall_macs":
        assert -1 <= values["kendall_macs"] <= 1
    elif own.measure == "ratio":
        assert 2 / 3 < values["ratio"] < 3 / 2  # ratios of 2 and 3
    else:
        assert 0 < values["chosen"] <= 1
        archs = json.loads(next(arm.trained().folder.glob("like-latency-*.json")).read_text())["archs"]
        assert len(archs) == measures.ALIKE
    monkeypatch.setattr(Trainer, "step", None)
    monkeypatch.setattr(measures, "train", lambda *_, **__: arm_run)
    arm_run = Run(arm.folder("supernets", arm.recipe))
    assert measures.measured(arm, lambda other: arm_run) == values


def test_equal_time_has_a_length_for_each_arm() -> None:
    timed, counted = declared()["many-in-time"], declared()["many-in-a-batch"]
    assert len({timed.length(arm) for arm in timed.arms}) == len(timed.arms)
    assert {counted.length(arm) for arm in counted.arms} == {declared()["warm-up"].length("none")}


def test_what_is_left_out_is_told_with_its_reason(tmp_path: Path) -> None:
    page = write_page([], tmp_path).read_text()
    assert left_out()
    for own in left_out():
        assert own.title in page
        assert own.why in page


def test_a_drawing_without_runs() -> None:
    claim = {"claim": "x", **declared()["warm-up"].model_dump()}
    ElementTree.fromstring(drawing(claim, []))


def test_pictures_are_told_by_their_name() -> None:
    assert label("train=/home/me/cifar/train.npz,test=/home/me/cifar/test.npz") == "train.npz"
    assert (label("digits"), label("/data/pets")) == ("digits", "pets")
