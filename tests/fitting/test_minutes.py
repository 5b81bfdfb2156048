"""How the time of a fit is spread: shares of what is left, as noted, however often it is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from superformer.errors import SuperformerError
from superformer.fitting.minutes import END, MOST, Minutes
from superformer.runs import Run
from superformer.train import time_budget
from superformer.train.time_budget import Stopwatch, TooShortError


class Clock:
    time = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    own = Clock()
    monkeypatch.setattr(time_budget, "now", lambda: own.time)
    return own


def minutes_of(home: Path, minutes: float | None = 10.0) -> Minutes:
    return Minutes(home, minutes, Stopwatch(), Run(home / "original"))


def test_each_part_has_a_share_of_what_is_left(tmp_path, clock):
    time, seen = minutes_of(tmp_path), []

    def work(minutes: float | None) -> None:
        seen.append(minutes)
        clock.time += 60 * minutes * 1.2  # it takes longer than it was given

    time.spend("original", 0.2, work)
    time.spend("supernet", 0.5, work)
    whole = (1 - END) * 10
    assert seen == pytest.approx([0.2 * whole, 0.5 * (whole - 1.2 * 0.2 * whole)])
    assert time.of("search", 0.1) == pytest.approx(0.1 * (whole - 1.2 * sum(seen)))
    clock.time += 1e6  # no process ran
    again = minutes_of(tmp_path)
    again.spend("original", 0.2, seen.append)
    again.spend("supernet", 0.5, seen.append)
    assert seen[2:] == seen[:2]
    assert again.of("search", 0.7) == time.of("search", 0.1)
    left = whole - 1.2 * sum(seen[:2]) - again.of("search", 0.7)
    assert again.of("retrain a", 0.5) == pytest.approx(0.5 * left)  # what was killed has had its minutes


def test_an_epoch_that_needs_more_gets_it_or_is_refused(tmp_path, clock):
    time, given = minutes_of(tmp_path), []

    def work(minutes: float) -> float:
        given.append(minutes)
        if minutes < needed:
            raise TooShortError("too short", needed)
        return minutes

    needed = 0.9 * MOST["original"] * (1 - END) * 10
    assert time.spend("original", 0.1, work) == needed == minutes_of(tmp_path).parts["original"]["minutes"]
    needed = 9.0
    with pytest.raises(SuperformerError, match=r"10 minutes are too short .* give --minutes \d+ or more"):
        minutes_of(tmp_path).spend("supernet", 0.1, work)


def test_another_time_is_refused_and_none_is_none(tmp_path):
    minutes_of(tmp_path).of("search", 0.5)
    for other, told in ((5.0, "with 10 minutes, not with 5"), (None, "with 10 minutes, not without")):
        with pytest.raises(SuperformerError, match=told):
            minutes_of(tmp_path, other)
    free = minutes_of(tmp_path / "free", None)
    assert free.of("search", 0.5) is None
    assert free.spend("supernet", 0.5, lambda minutes: minutes) is None
    assert not (tmp_path / "free").exists()


def begun(home: Path, time: dict[str, float]) -> Run:
    """As a training of the first part leaves it, before anything is noted."""
    first = Run(home / "original")
    first.folder.mkdir(parents=True)
    first.recipe_file.touch()
    first.facts = lambda: {"time": time}  # type: ignore[method-assign]
    return first


def test_a_refused_time_leaves_nothing_behind(tmp_path, clock):
    first = begun(tmp_path, {})
    with pytest.raises(SuperformerError, match="begun without a time, not with 5 minutes"):
        Minutes(tmp_path, 5.0, Stopwatch(), first)
    assert Minutes(tmp_path, None, Stopwatch(), first).of("search", 0.5) is None  # the words that began it
    with pytest.raises(SuperformerError, match="begun with a time, not without"):
        Minutes(tmp_path / "timed", None, Stopwatch(), begun(tmp_path / "timed", {"minutes": 2.0}))


def test_another_limit_has_its_time_again(tmp_path, clock):
    def fitted(aim: str, done: bool = True) -> Minutes:
        time = Minutes(tmp_path, 10.0, Stopwatch(), Run(tmp_path / "original"), aim)

        def work(minutes: float) -> None:
            clock.time += 0 if done else 60 * minutes

        time.spend("original", 0.2, work)
        time.spend("supernet", 0.3, work)
        return time

    one = fitted("speed_up=2", done=False)
    given = one.of("search", 0.5)
    clock.time += 600
    assert one.of("retrain a", 1.0) < 0.01  # all is spent
    two = fitted("speed_up=3")
    assert two.of("search", 0.5) == pytest.approx(given, rel=0.1)
    assert two.of("retrain b", 0.5) > 1
    assert fitted("speed_up=3").of("search", 0.5) == two.of("search", 0.5)


def test_what_is_too_short_is_told_by_what_it_is_too_short_for(tmp_path, clock):
    time = minutes_of(tmp_path, 0.01)
    clock.time += 60

    def work(minutes: float) -> None:
        assert minutes > 0
        raise TooShortError("too short", 1.5)

    with pytest.raises(SuperformerError, match=r"0.01 minutes are too short .* give --minutes \d+ or more"):
        time.spend("original", 0.2, work)
