"""Racing and ranking: what is stopped changes neither what a method asks nor the front; equal accuracies are told apart
by loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import superformer as sf
from superformer.errors import SuperformerError
from superformer.evaluation.evaluator import Score, count_copies, varied_copies
from superformer.recipes.searching import Options, split_options
from superformer.search import method
from superformer.search import scores as racing
from superformer.search.problem import front
from superformer.search.scores import agreed, race, ranked

SEARCHES = {
    "evolution": {"first": 30, "rounds": 8, "parents": 6, "mutants": 12, "crossovers": 12},
    "nsga2": {"population": 4, "generations": 30},
    "predictor": {"first": 24, "trees": 5, "rounds": 3, "parents": 8, "mutants": 8, "crossovers": 8, "front": 6},
    "random": {"evaluations": 200, "batch": 20},
    "exhaustive": {"batch": 5000, "most": 10**9},
}
FEW = 8
"""Finalists."""


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("objectives", [("accuracy",), ("accuracy", "macs")])
def test_what_a_race_stops_changes_neither_the_questions_nor_the_front(known, monkeypatch, name, objectives):
    monkeypatch.setattr(racing, "FINALISTS", FEW)

    def search(on):
        asked, scores, stopped = [], [], 0
        own = method(known.problem(objectives, seed=1), name, **SEARCHES[name])
        while len(genes := own.ask()):
            told = known.scores[known.at(genes), : len(objectives)].copy()
            for part in np.array_split(np.arange(len(genes)), 3):
                lost = race(Options(racing=on), own, genes[part])
                if lost is not None:
                    out = told[part, 0] < lost.needed
                    told[part[out]] = np.nan
                    stopped += int(out.sum())
                own.tell(genes[part], told[part])
            asked.append(genes)
            scores.append(told)
        found = np.concatenate(scores)
        maximise = (True, False)[: len(objectives)]
        best = set(map(tuple, found[front(found, maximise)]))
        return np.concatenate(asked), best, np.sort(-found[:, 0])[:FEW].tolist(), stopped

    whole, best, final, none = search(False)
    raced, same, finalists, stopped = search(True)
    assert np.array_equal(whole, raced)
    assert best == same
    assert final == finalists
    assert none == 0
    assert (stopped > 0) == (name != "predictor")  # a forest learns from all of them


losses = st.sampled_from((0.0, 0.01, 0.3, 5.0, math.inf, math.nan))
scores = st.lists(st.tuples(st.integers(0, 143).map(lambda n: n / 143), losses), min_size=2)


@given(scores)
def test_ranks_are_accuracies_and_of_equals_the_lower_loss_is_first(given_):
    rank = ranked([Score(*pair) for pair in given_])
    for (a, x), r in zip(given_, rank, strict=True):
        assert a - 1e-6 < r <= a
        for (b, y), s in zip(given_, rank, strict=True):
            x_, y_ = (math.inf if math.isnan(v) else v for v in (x, y))
            assert (r > s) == ((a, -x_) > (b, -y_))


@given(scores)
def test_who_is_better_in_both_is_better_by_both_together(given_):
    places = agreed([Score(*pair) for pair in given_])
    both = [(a, -math.inf if math.isnan(x) else -x) for a, x in given_]
    for one, place in zip(both, places, strict=True):
        for other, its in zip(both, places, strict=True):
            if one != other and one[0] >= other[0] and one[1] >= other[1]:
                assert place > its
            if one == other:
                assert place == its


def test_words_of_a_race():
    own, rest = split_options({"racing": True, "margin": 2, "population": 4})
    assert own == Options(racing=True, margin=2.0)
    assert rest == {"population": 4}
    with pytest.raises(SuperformerError, match="margin"):
        split_options({"margin": -1})


@pytest.mark.parametrize(
    ("words", "n"), [("shift", 5), ("shift mirror", 10), ("mirror", 2), ("none", 1), ("none mirror", 1)]
)
def test_moved_copies(words, n):
    """As training moves pictures: black comes in, and what is in the middle stays."""
    augment = "timm" if words == "mirror" else words.split()[0]
    changes = {"augment": augment, "shift": 0.25, "mirror": 0.5 * ("mirror" in words)}
    settings = sf.recipe("s3-laptop").data.model_copy(update=changes)
    x = torch.full((2, 3, 8, 8), -1.0)  # black: mean and deviation are a half
    x[:, :, 3:5, 2:5] = torch.rand(2, 3, 2, 3)
    found = list(varied_copies(x, settings))
    assert len(found) == count_copies(settings, 8) == n
    assert torch.equal(found[0], x)
    assert len({tuple(c.flatten().tolist()) for c in found}) == n
    for c in found:
        assert c.shape == x.shape
        assert c.flatten(1).sort().values.equal(x.flatten(1).sort().values)  # moved by two: nothing is lost
