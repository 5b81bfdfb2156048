"""Searches that time ends, with a clock that the test moves."""

from __future__ import annotations

import pytest

from superformer.errors import SuperformerError
from superformer.evaluation.evaluator import Evaluator
from superformer.recipes.searching import Evolution, Nsga2, Predictor, Random
from superformer.runs import Run, stored
from superformer.search import front, search
from superformer.search.timing import MEASURING, fitting, sized
from superformer.train import time_budget

LIMITS = {"macs": (0, 3e5)}


class FakeClock:
    time = 0.0
    load = 1.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock(monkeypatch):
    """A candidate takes a second for a hundred pictures of this clock, and nothing else takes any."""
    own, real = FakeClock(), Evaluator._one_tree

    def slow(self, archs, race):
        own.time += own.load * len(archs) * self.pictures / 100
        return real(self, archs, race)

    monkeypatch.setattr(time_budget, "now", own)
    monkeypatch.setattr(Evaluator, "_one_tree", slow)
    return own


def test_what_fits():
    found = fitting(1000, 0.001, 1000, 5, 1.0)
    assert found.pictures == 1000
    assert 1000 * (found.candidates + 5 * found.judged + 1) * 0.001 == pytest.approx(1000, abs=2)
    fewer = fitting(50, 0.001, 1000, 5, 1.0)
    assert fewer.pictures < 1000
    assert fewer.candidates >= 48
    with pytest.raises(SuperformerError, match="too short to judge 16 candidates"):
        fitting(3, 0.001, 1000, 5, 1.0)


@pytest.mark.parametrize("own", [Evolution(), Nsga2(), Predictor(), Random()])
def test_rounds_are_short(own):
    found = sized(own, 160)
    assert type(found).model_validate(found.model_dump()) == found
    for name, most in {"mutants": 10, "population": 32, "batch": 10}.items():  # a generation may be cut short
        assert isinstance(own, Predictor) or getattr(found, name, 0) <= most


def test_time_is_left_to_measure_the_front(trained, clock, monkeypatch):
    monkeypatch.setattr(front, "SECONDS", 0.01)
    words = {"judging": "full", "objectives": "accuracy,latency", "table_seconds": 0.2}
    search(trained, {"latency": (0, 1.0)}, "random", words, minutes=4)
    assert 0.8 * 240 < clock.time <= (1 - MEASURING) * 240


@pytest.mark.parametrize(("method", "load"), [("evolution", 1.0), ("random", 2.0)])
def test_a_search_ends_in_time_and_is_not_chosen_again(trained, clock, method, load):
    def go():
        return search(trained, LIMITS, method, {"judging": "full"}, minutes=4)

    real, lots = Evaluator.scores, [0]

    def dies(self, *words, **more):
        lots[0] += 1
        clock.load = load if lots[0] > 4 else 1.0
        if lots[0] == 8:
            raise KeyboardInterrupt
        return real(self, *words, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluator, "scores", dies)
        with pytest.raises(KeyboardInterrupt):
            go()
        spent, clock.time = clock.time, clock.time + 1e6
        found = go()
    assert clock.time - 1e6 == pytest.approx(240, rel=0.15)
    assert clock.time - 1e6 > spent
    plans = stored.read(Run.open(trained).folder / "searches.json")["searches"]
    assert len(plans) == 1
    assert method == "predictor" or plans[0]["ended"] > 16
    before = clock.time
    again = go()
    assert again["best"] == found["best"]
    assert again["evaluated"] == found["evaluated"]
    assert clock.time - before < 30  # the hand-made network is judged again


def test_too_short_a_time_is_refused(trained, clock):
    before = sorted(trained.rglob("*"))
    with pytest.raises(SuperformerError, match="too short"):
        search(trained, LIMITS, "random", minutes=0.3)
    assert sorted(p for p in trained.rglob("*") if p.name != ".lock") == [p for p in before if p.name != ".lock"]
