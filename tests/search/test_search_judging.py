"""Few pictures first: what is kept has seen all of them, the best is found, killing changes nothing, and what is known
of some pictures is never taken for more."""

from __future__ import annotations

import itertools
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superformer.errors import SuperformerError
from superformer.evaluation.evaluator import Evaluator, TrainedRun
from superformer.recipes.searching import split_options
from superformer.runs import Run
from superformer.search import judging, search
from superformer.search.history import History
from superformer.search.judging import contested_first, ends, predicted
from superformer.search.scores import history_of
from superformer.space.arch import Arch

SEARCHES = {
    "evolution": {"first": 24, "rounds": 3, "parents": 4, "mutants": 8, "crossovers": 8},
    "predictor": {"first": 24, "trees": 5, "rounds": 2, "parents": 8, "mutants": 8, "crossovers": 8, "front": 6},
}
RACING = {"judging": "racing", "few": 16}
LIMITS = {"macs": (0, 3e5)}


@given(st.integers(1, 5000), st.none() | st.integers(1, 6000))
def test_parts_grow_and_end_with_all_pictures(pictures, few):
    found = ends(pictures, few)
    assert found[-1] == pictures
    assert all(a < b <= 2.25 * a + 2 for a, b in itertools.pairwise(found))


def test_what_a_panel_disagrees_about_comes_first():
    share = np.array([1.0, 0.5, 0.0, 0.75, 0.5, 1.0])
    order = contested_first(share)
    assert sorted(order) == list(range(6))
    assert set(order[:2]) == {1, 4}
    assert order[2] == 3


def test_predictions_and_their_error():
    """Candidates whose rest follows from what they have so far are predicted without error, but for the shrinking."""
    seen = np.arange(10.0) + 20
    guess, error = predicted(np.array([24.5]), seen, 40 + 0 * seen)
    assert guess == pytest.approx(64.5)
    assert error == pytest.approx(0)
    rng = np.random.default_rng(0)
    _, error = predicted(np.array([24.5]), seen, 40 + rng.normal(size=10))
    assert 0.4 < error < 2


@pytest.fixture
def few_finalists(monkeypatch):
    monkeypatch.setattr(judging, "RACED", 3)
    monkeypatch.setattr("superformer.search.RACED", 3)


def known(folder, limit=None):
    trained = TrainedRun.of(Run.open(folder))
    with history_of(trained, limit, readonly=True) as history:
        return trained, {row.key: row for row in history.all()}


@pytest.mark.parametrize("method", ["evolution", "predictor"])
def test_a_race_is_exact_for_what_it_keeps_and_goes_on_where_it_was_killed(trained, tmp_path, few_finalists, method):
    """Killed in the middle of parts of rounds, again and again."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        shutil.copytree(trained, folder)
    found = search(whole, LIMITS, method, {**SEARCHES[method], **RACING})
    opened, rows = known(whole)
    full = opened.evaluator()
    archs = [opened.space.decode(opened.space.encode([a]))[0] for a in map(_arch, rows.values())]
    for row, score in zip(rows.values(), full.scores(archs), strict=True):
        assert row.values["accuracy"] == score.accuracy
        assert row.values["loss"] == pytest.approx(score.loss, rel=1e-5)

    real, left = Evaluator.scores, [3]

    def dies(self, *words, **more):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return real(self, *words, **more)

    for kills in range(5):
        left[0] = (3, 5, 9, 17, -1)[kills]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Evaluator, "scores", dies)
            try:
                search(broken, LIMITS, method, {**SEARCHES[method], **RACING})
                break
            except KeyboardInterrupt:
                continue
    assert kills > 1
    again = search(broken, LIMITS, method, {**SEARCHES[method], **RACING})
    assert [row["key"] for row in again["front"]] == [row["key"] for row in found["front"]]
    assert again["best"] == found["best"]
    assert known(broken)[1].keys() == rows.keys()


def _arch(row):
    return Arch.from_json(row.arch_json)


def test_a_race_saves_pictures_and_nobody_takes_a_part_for_the_whole(trained, few_finalists, monkeypatch):
    seen, real = [0], Evaluator._one_tree

    def counted(self, archs, race):
        seen[0] += len(archs) * self.pictures * (self.pictures <= 143)  # not those that are judged again
        return real(self, archs, race)

    monkeypatch.setattr(Evaluator, "_one_tree", counted)
    search(trained, LIMITS, "random", {"evaluations": 60, "batch": 60, **RACING})
    opened, rows = known(trained)
    pictures = len(opened.pictures.search)
    assert len(rows) < 60
    assert seen[0] < 0.95 * 60 * pictures
    latest = History.latest(opened.run.history_file, opened.run.fingerprint())
    assert {row.key for row in latest.all()} == rows.keys()  # parts of the pictures are another subject
    latest.close()
    before = seen[0]
    search(trained, LIMITS, "random", {"evaluations": 60, "batch": 60, "judging": "full"})
    assert len(known(trained)[1]) == 60
    assert seen[0] - before >= (60 - len(rows)) * pictures


def test_few_first_is_for_many_pictures(trained):
    opened = TrainedRun.of(Run.open(trained))
    assert not judging.wanted(split_options({})[0], opened)
    assert judging.wanted(split_options({"judging": "racing"})[0], opened)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "ENOUGH", 100)
        assert judging.wanted(split_options({})[0], opened)
        assert not judging.wanted(split_options({"judging": "full"})[0], opened)
        assert not judging.wanted(split_options({"pictures": 50})[0], opened)
    with pytest.raises(SuperformerError, match="judging"):
        split_options({"judging": "some"})
