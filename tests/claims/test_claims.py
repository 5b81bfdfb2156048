"""Claims: the rule, on made-up runs with a known effect and with none; small claims for real, killed and resumed."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from superformer import claims
from superformer.claims import lengths, measures, searches
from superformer.claims.arms import Arm
from superformer.claims.declaration import Claim, declared
from superformer.claims.searches import found_by
from superformer.claims.store import Store
from superformer.claims.summary import summary
from superformer.claims.verdict import HOLDS, OPEN, REVERSED, UNSEEN, differences, interval, verdict
from superformer.data.sources import label
from superformer.errors import SuperformerError
from superformer.runs import Run
from superformer.train.step import Trainer

SIMULATED, SEEDS = 1000, 3


def judged(rng: np.random.Generator, effects: list[float], seeds: int = SEEDS) -> tuple[str, bool]:
    """The verdict of made-up runs, whose arms share the luck of a seed; whether all intervals cover the truth."""
    luck = rng.normal(0, 3, seeds)
    arms = [f"arm {k}" for k in range(len(effects))]
    values = {a: dict(enumerate(luck + e + rng.normal(0, 1, seeds))) for a, e in zip(arms, effects, strict=True)}
    found = differences(values, list(pairwise(arms)))
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


def test_losses_are_better_the_lower_and_two_seeds_tell_nothing():
    values = {"a": {0: 1.0, 1: 1.1, 2: 1.05}, "b": {0: 2.0, 1: 2.1, 2: 2.06}}
    pair = [("a", "b")]
    assert verdict(differences(values, pair, low_is_better=True), 1) == HOLDS
    assert verdict(differences(values, pair), 1) == REVERSED
    for n, told in ((1, "one seed"), (2, "two seeds")):
        some = {arm: {k: own[k] for k in range(n)} for arm, own in values.items()}
        assert verdict(differences(some, pair), 1) == f"{told}: no verdict yet"
    assert verdict(differences({"a": values["a"]}, pair), 1) == OPEN


def test_as_good_has_a_margin():
    """One point worse is as good where a claim says so; two are not."""
    other = {0: 0.5, 1: 0.501, 2: 0.502}
    near, far = ({"a": {k: v - by for k, v in other.items()}, "b": other} for by in (0.005, 0.02))
    for values, without, within in ((near, REVERSED, HOLDS), (far, REVERSED, REVERSED)):
        found = differences(values, [("a", "b")])
        assert (verdict(found, 1), verdict(found, 1, 0.01)) == (without, within)


def test_one_pair_of_several_reverses_a_claim_and_is_named():
    rng = np.random.default_rng(0)
    values = {a: dict(enumerate(m + 0.1 * rng.normal(size=4))) for a, m in (("a", 3), ("b", 1), ("c", 2))}
    found = differences(values, [("a", "b"), ("b", "c")])
    assert [d.said() for d in found] == [HOLDS, REVERSED]
    assert verdict(found, 2) == REVERSED
    assert all(np.mean(d.each) == pytest.approx(d.mean) for d in found)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Claim:
    own = declared()["warm-up"]
    short = {"common": ["train.epochs=0.5", "watch.networks=0"], "order": ["warm-up", "none"], "epochs": None}
    own = own.model_copy(update=short)
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
    assert {(r["epochs"], r["length"]) for r in found["runs"]} == {(0.5, 0.5)}
    trained = [Run(folder).recipe() for folder in (tmp_path / "supernets").iterdir()]
    assert len(trained) == 4
    assert {(own.train.epochs, own.optimizer.warmup_epochs) for own in trained} == {(0.5, 0.5 / 3)}
    assert [(r["arm"], r["seed"]) for r in found["runs"]] == [("none", 0), ("none", 1), ("warm-up", 0), ("warm-up", 1)]
    assert all(0 < r["value"] <= 1 and r["values"]["late_loss"] > 0 for r in found["runs"])
    assert found["verdict"] == "two seeds: no verdict yet"
    kept = json.loads((tmp_path / "claims" / "warm-up.json").read_text())
    assert kept == json.loads(json.dumps(found))
    page = (tmp_path / "claims.md").read_text()
    links = re.findall(r"\]\((claims/[\w-]+\.svg)\)", page)
    assert len(links) == 1
    drawn = ElementTree.parse(tmp_path / links[0]).getroot()
    svg = "{http://www.w3.org/2000/svg}"
    assert len(list(drawn.iter(f"{svg}circle"))) == 4 + 2  # runs, paired differences
    assert len(list(drawn.iter(f"{svg}polyline"))) == 2
    with Store(tmp_path / "claims.db") as store:
        assert summary("warm-up", small, store.rows("warm-up")) == found
    (again,) = claims.run([], "digits", tmp_path / "elsewhere", seeds=2, out=tmp_path)  # from the files alone
    assert (again, len(seen)) == (found, 5)
    (tmp_path / "claims" / "warm-up.json").write_text("[]")
    with pytest.raises(SuperformerError, match=r"warm-up\.json.*delete it"):
        claims.run([], "digits", tmp_path / "third", seeds=2, out=tmp_path)


def made_up(monkeypatch: pytest.MonkeyPatch, **changes: object) -> list[Arm]:
    """One claim whose runs are made up; those that are asked for."""
    own = declared()["weak-augmentation"].model_copy(update=changes)
    monkeypatch.setattr(claims, "named", lambda names: {"weak-augmentation": own})
    asked = []

    def measured(arm: Arm) -> dict[str, float]:
        asked.append(arm)
        return {"median": 0.5 + 0.1 * (arm.name == "weak") + 0.001 * arm.seed}

    monkeypatch.setattr(claims, "measured", measured)
    return asked


def test_longer_trainings_stand_beside_shorter_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest one with all seeds is the result, the others are told; nothing is measured twice."""
    asked = made_up(monkeypatch)
    for epochs, seeds in ((2, 3), (4, 3), (8, 2)):
        (found,) = claims.run([], "digits", tmp_path, seeds, epochs=epochs)
    assert {arm.recipe.train.epochs for arm in asked} == {2, 4, 8}
    assert [(j["length"], j["verdict"]) for j in found["judged"]] == [
        (4, HOLDS),
        (2, HOLDS),
        (8, "two seeds: no verdict yet"),
    ]
    page = (tmp_path / "claims.md").read_text()
    assert re.search(r"on digits, 4 epochs.*Holds\.", page)
    assert re.search(r"Also tried:\n- 2 epochs on digits: holds; .*means.*\n- 8 epochs .*no verdict yet", page)
    claims.run([], "digits", tmp_path, 3, epochs=4)
    claims.run([], "digits", tmp_path, 0)
    assert len(asked) == 6 + 6 + 4
    with pytest.raises(SuperformerError, match="leave one of them out"):
        claims.run([], "digits", tmp_path, budget=3, epochs=4)


def test_runs_of_another_declaration_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An arm whose words changed is run anew; what it had is kept, and not shown as its own."""
    made_up(monkeypatch)
    claims.run([], "digits", tmp_path, epochs=2)
    asked = made_up(monkeypatch, arms={"weak": ["mix.smoothing=0.01"], "strong": ["mix.mixup=0.5"]})
    (found,) = claims.run([], "digits", tmp_path, 0)
    assert (found["verdict"], found["runs"], len(found["others"])) == (OPEN, [], 6)
    (found,) = claims.run([], "digits", tmp_path / "elsewhere", out=tmp_path, epochs=2)
    assert (len(asked), len(found["runs"]), len(found["others"])) == (6, 6, 6)


def test_two_processes_that_share_a_page_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other one wrote meanwhile is learned again before anything is written."""
    made_up(monkeypatch)
    whole, others = claims.measured, iter([1])

    def meanwhile(arm: Arm) -> dict[str, float]:
        if next(others, None):
            claims.run([], "digits", tmp_path / "b", 3, epochs=2, out=tmp_path)
        return whole(arm)

    monkeypatch.setattr(claims, "measured", meanwhile)
    (found,) = claims.run([], "digits", tmp_path / "a", 3, epochs=4, out=tmp_path)
    assert [j["length"] for j in found["judged"]] == [4, 2]


def test_others_of_the_same_name_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are told by their content, too."""
    asked = made_up(monkeypatch)
    for name, value in (("a", 0), ("b", 9)):
        (tmp_path / name).mkdir()
        images = np.full((4, 8, 8, 3), value, np.uint8)
        np.savez(tmp_path / name / "train.npz", images=images, labels=np.arange(4))
        (found,) = claims.run([], f"{tmp_path}/{name}/train.npz", tmp_path / "r", 1, epochs=2)
    assert len(asked) == 4
    assert [(j["data"], j["runs"]) for j in found["judged"]] == [("train.npz", 2)] * 2


def test_files_and_databases_of_an_earlier_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without words have those of the declaration that was written beside them; their epochs are their length."""
    asked = made_up(monkeypatch)
    rows = [
        {
            "data": "digits",
            "arm": arm,
            "seed": seed,
            "epochs": 2.0,
            "values": {"median": 0.4},
            "seconds": 1,
            "machine": "m",
        }
        for arm in ("weak", "strong")
        for seed in range(3)
    ]
    own = declared()["weak-augmentation"].model_dump(exclude={"pairs", "margin", "place", "epochs", "retrain"})
    (tmp_path / "claims").mkdir()
    old = json.dumps({"claim": "weak-augmentation", **own, "runs": rows[1:]})
    (tmp_path / "claims" / "weak-augmentation.json").write_text(old)
    with Store(tmp_path / "claims.db") as store:
        store.db.execute(
            "CREATE TABLE runs (claim TEXT, data TEXT, arm TEXT, seed INTEGER, epochs REAL, vals TEXT, seconds REAL, "
            "machine TEXT, PRIMARY KEY (claim, data, arm, seed))"
        )
        row = ("weak-augmentation", "digits", "weak", 0, 2.0, '{"median": 0.4}', 1.0, "m")
        store.db.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    (found,) = claims.run([], "digits", tmp_path)  # their length is that of the recipe from now on
    assert not asked
    assert (len(found["runs"]), found["others"], found["verdict"]) == (6, [], UNSEEN)
    assert {r["words"] for r in found["runs"]} == {declared()["weak-augmentation"].words(a) for a in ("weak", "strong")}


@pytest.mark.xdist_group("claims")
def test_a_budget_ends_with_three_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without names a few claims; trainings are as long as fits, and so are those that go on after a kill."""
    shares = []

    def within(recipe: object, spec: str, minutes: float) -> float:
        shares.append(minutes)
        return 0.05

    monkeypatch.setattr(lengths, "epochs_within", within)
    monkeypatch.setattr(measures, "RANDOM", 1)
    console = Console(file=(tmp_path / "log").open("w"), width=200)
    found = claims.run([], "digits", tmp_path, budget=1.0, console=console)
    console.file.close()
    told = (tmp_path / "log").read_text()
    assert [f["claim"] for f in found] == list(claims.SMALL)
    assert {f["verdict"] for f in found} <= {HOLDS, REVERSED, UNSEEN}
    assert shares == pytest.approx([lengths.TRAINING / 18] * 6)  # 18 trainings; all arms are tried, the slowest counts
    assert "18 runs are missing, with 18 trainings, about 1 minutes in all" in told
    again = claims.run([], "digits", tmp_path, budget=2.0)
    assert (again, len(shares)) == (found, 6)


def test_too_small_a_budget_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(SuperformerError, match=r"--budget 0.001 leaves .* give --budget \d+ or more"):
        claims.run(["weak-augmentation"], "digits", tmp_path, budget=0.001)


SHORT = ["train.epochs=0.15", "watch.networks=0"]
FEW = ["first=6", "parents=4", "mutants=2", "crossovers=2", "rounds=1"]


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "SPREAD", 2)
    monkeypatch.setattr(measures, "DRAWN", 6)
    monkeypatch.setattr(measures, "GROUPED", measures.GROUPED.model_copy(update={"architectures": 12, "groups": 3}))


def arm_of(name: str, home: Path, which: str | None = None, **changes: object) -> Arm:
    own = declared()[name].model_copy(update={"common": SHORT, **changes})
    return Arm(own, which or own.order[-1], 0, "digits", home)


@pytest.mark.xdist_group("claims")
@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("name", ["something-to-find", "cyclic-ranges", "ratios-grow"])
def test_measures_for_real(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An arm of a claim, with numbers that can be; a second time nothing is trained or measured again."""
    arm = arm_of(name, tmp_path, search=FEW * (name == "ratios-grow"))
    own, values = arm.claim, measures.measured(arm)
    assert own.measure in values
    assert 0 < values["median"] <= 1
    if own.measure == "spread":
        assert values["spread"] == pytest.approx((values["most"] - values["least"]) / 2**0.5)  # of two
    elif own.measure == "ratio":
        assert 2 / 3 < values["ratio"] < 3 / 2  # ratios of 2 and 3
    else:
        assert -1 <= values["kendall_in_ranges"] <= 1
    monkeypatch.setattr(Trainer, "step", None)
    run = arm.trained()
    monkeypatch.setattr(Arm, "trained", lambda self: run)
    assert measures.measured(arm) == values


@pytest.mark.xdist_group("claims")
def test_chosen_networks_survive_another_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search has a folder of its own: what another one finds later replaces nothing, and a resume reads what was
    found; what was found is trained anew, as long as the supernet."""
    search = ["population=6", "generations=1", "table_seconds=1"]
    arm = arm_of("chosen-in-time", tmp_path, "by hand", search=search)
    values = measures.measured(arm)
    assert 0 < values["chosen"] <= 1
    run = arm.trained()
    assert not run.history_file.exists()
    (retrained,) = (run.folder / "retrained").glob("*-scratch")
    assert Run(retrained).recipe().train.epochs == 0.15
    other = arm_of("chosen", tmp_path, "searched", search=search)
    best = found_by(run, other)
    assert len(list((run.folder / "searches").iterdir())) == 2
    rows = json.loads((next((run.folder / "searches").glob("*/found.json"))).read_text())
    assert rows["best"]
    monkeypatch.setattr(searches, "search", None)  # nothing is searched again
    monkeypatch.setattr(Trainer, "step", None)
    assert measures.measured(arm) == values
    assert found_by(run, other) == best


@pytest.mark.xdist_group("claims")
def test_a_search_sees_its_own_candidates_only(tmp_path: Path) -> None:
    """A short search after a long one finds no better network than it has judged itself."""
    words = {a: [f"method={a}", f"{k}={n}"] for a, k, n in (("evolution", "first", 12), ("random", "evaluations", 2))}
    words["evolution"] += FEW[1:]
    arms = [arm_of("search-methods", tmp_path, name, arms=words, pairs=[], order=list(words)) for name in words]
    run = arms[0].trained()
    for arm in arms:
        found_by(run, arm, arm.claim.arms[arm.name])
    known = []
    for folder in (run.folder / "searches").iterdir():
        with sqlite3.connect(folder / "history.db") as db:
            known.append(db.execute("SELECT COUNT(*) FROM evaluations").fetchone()[0])
    assert sorted(known)[0] == 2
    assert (run.folder / "searches").is_dir()
    assert all(os.stat(f).st_nlink == 3 for f in (run.folder / "searches").glob("*/supernet.safetensors"))


@pytest.mark.xdist_group("claims")
@pytest.mark.usefixtures("little")
def test_spaces_of_one_evolution(tmp_path: Path) -> None:
    """All arms ask the same evolution, for the first space and later ones."""
    common = [*SHORT, "evolve.rounds=1", "evolve.samples=2", "evolve.start=fresh", "evolve.macs_max=4.4e+6"]
    arms = [arm_of("space-evolution", tmp_path, name, common=common) for name in ("first space", "evolved once")]
    found = [measures.measured(arm) for arm in arms]
    assert len(list((tmp_path / "evolved").iterdir())) == 1
    assert all(v["best_error"] <= v["et_error"] <= v["expected_error"] for v in found)
    assert lengths.count_trainings(arms) == 2


def test_trainings_are_counted_once() -> None:
    """What arms and claims share is trained once, and counted so."""

    def needed(*names: str, seeds: int = 3) -> float:
        own = [declared()[name] for name in names]
        return lengths.count_trainings(
            Arm(c, arm, seed, "digits", Path()) for c in own for arm in c.arms for seed in range(seeds)
        )

    assert needed("weak-augmentation") == 6
    assert needed("weak-augmentation", "weak-found") == 12  # as many supernets, and what they find
    assert needed("cyclic-ranks") == 9 + 24
    assert needed("chosen", seeds=1) == 1 + 1 + 1 + 3
    assert needed("space-evolution", "space-evolution-best", seeds=1) == 3
    assert needed("space-evolution", "space-by-lot", seeds=1) == 3 + 2
    assert needed("inherited-weights", seeds=1) == 1 + 10 + 2
    assert needed("something-to-find", seeds=1) == 1 + 6 + 6
    assert needed("token-labelling", seeds=1) == 3


def test_equal_time_has_a_length_for_each_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes are the length of such runs; each arm has the epochs that fit."""
    own = declared()["many-in-time"]
    monkeypatch.setattr(claims, "named", lambda names: {"many-in-time": own})
    monkeypatch.setattr(lengths, "epochs_within", lambda recipe, spec, minutes: recipe.sampling.networks * minutes)
    monkeypatch.setattr(claims, "measured", lambda arm: {"median": 0.01 * arm.recipe.train.epochs})
    (found,) = claims.run([], "digits", tmp_path, epochs=3)
    assert {r["length"] for r in found["runs"]} == {lengths.EACH}
    assert {r["epochs"] for r in found["runs"]} == {lengths.EACH * n for n in (16, 4, 1)}
    assert len(found["judged"]) == 1


def test_pictures_are_told_by_their_name() -> None:
    assert label("train=/home/me/cifar/train.npz,test=/home/me/cifar/test.npz") == "train.npz"
    assert (label("digits"), label("/data/pets")) == ("digits", "pets")
