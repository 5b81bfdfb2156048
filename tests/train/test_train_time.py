"""Time as a budget, with a clock that the tests move: no real time is looked at."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from unittest import mock

import pytest
import torch
from helpers.training import recipe
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from superformer.errors import SuperformerError
from superformer.recipes import resolve
from superformer.runs import Run
from superformer.train import loop, preparation, time_budget
from superformer.train.loop import train
from superformer.train.retrain import retrain
from superformer.train.step import Trainer
from superformer.train.time_budget import Costs, Revision, Stopwatch, Timekeeper, Timetable, choose


class FakeClock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A step of training takes a second of this clock, and nothing else takes any."""
    own, step = FakeClock(), Trainer.step
    own.pace = lambda n: 1.0

    def slow(self, n, batch):
        own.time += own.pace(n)
        return step(self, n, batch)

    monkeypatch.setattr(time_budget, "now", own)
    monkeypatch.setattr(Trainer, "step", slow)
    return own


@given(
    st.integers(1, 200), st.lists(st.tuples(st.integers(1, 50), st.integers(0, 100)), max_size=4), st.integers(0, 400)
)
def test_whatever_is_revised_the_schedule_goes_forward_and_ends_where_it_should(planned, changes, n):
    table, done = Timetable(planned), 0
    for after, more in changes:
        done += after
        if done >= table.steps(done):
            break
        table.revisions.append(Revision(done, done + more, 0.0))
    total = table.steps(done)
    places = [table.at(k) for k in range(total + 1)]
    assert places == sorted(places)
    assert places[-1] == pytest.approx(planned)
    assert all(0 <= place <= planned + 1e-9 for place in places)
    if not table.revisions:
        assert [type(p) for p in places] == [int] * len(places)  # what it was without a time, to the last bit
        assert places == list(range(total + 1))


@pytest.mark.parametrize("load", [0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("change", [0.0, 0.4, 0.8])
def test_a_training_ends_in_time_whatever_the_load_becomes(monkeypatch, load, change):
    """From some moment on everything takes ``load`` times as long. Checks and checkpoints take time, too."""
    clock = FakeClock()
    monkeypatch.setattr(time_budget, "now", clock)
    seconds, costs, every, saving = 1000.0, Costs(0.5, 4.0, 0.2), 50, 60.0
    planned = math.floor((seconds - costs.end) / costs.each(every, saving))
    table = Timetable(planned)
    keeper, done, saved = Timekeeper(seconds / 60, table, Stopwatch(), costs, every, saving), 0, 0.0
    while done < table.steps(done):
        factor = load if clock.time >= change * seconds else 1.0
        clock.time += factor * costs.step
        done += 1
        if (found := keeper.stepped(done)) is not None:
            table.revise(None, found)
        last = done >= table.steps(done)
        for kind, due in (("check", done % every == 0 or last), ("save", clock.time - saved > saving or last)):
            if due:
                clock.time += factor * getattr(costs, kind)
                keeper.other(kind, factor * getattr(costs, kind))
                saved = clock.time if kind == "save" else saved
    assert clock.time == pytest.approx(seconds, rel=0.1)
    assert len(table.revisions) <= 30
    assert load != 1 or not table.revisions


def test_epochs_are_chosen_by_what_a_step_costs(tmp_path):
    own = resolve(recipe(tmp_path))
    found = choose(own, Costs(1.0), 10, 1.0, 10.0)
    assert found.train.epochs == 5
    assert found.optimizer.warmup_epochs == own.optimizer.warmup_epochs  # more epochs do not lengthen it
    assert choose(own, Costs(1.0), 45, 1.0, 0.0).optimizer.warmup_epochs == pytest.approx(1 * 60 / 45 / 2)
    with pytest.raises(SuperformerError, match=r"too short to train for one epoch.* 100 seconds.*minutes 1\.9"):
        choose(own, Costs(1.0), 100, 1.0, 0.0)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "supernet.safetensors")


def same(a: Path, b: Path) -> bool:
    one, two = weights(a), weights(b)
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def test_a_timed_run_is_told_kept_to_resumed_and_not_chosen_again(tmp_path, clock, monkeypatch):
    """The load doubles on the way; killed after that, the run goes on with what it decided."""
    words, changes = (recipe(tmp_path), "digits"), ("watch.checkpoint_steps=4", "watch.every=100")
    monkeypatch.setattr(preparation, "measured_steps", lambda steps: itertools.repeat(0))
    clock.pace = lambda n: 4.0 if n >= 24 else 2.0
    train(*words, tmp_path / "whole", *changes, minutes=1.5)
    run = Run.open(tmp_path / "whole")
    began, table = clock.time, Timetable.read(run.folder, 0)
    assert clock.time == pytest.approx(90, rel=0.1)
    assert table.revisions
    assert run.recipe().train.epochs > 2
    steps = [m for m in run.metrics() if m["kind"] == "step"]
    assert steps[-1]["step"] == table.revisions[-1].steps
    assert steps[-1]["lr"] < 0.02 * max(m["lr"] for m in steps)  # it ends where the schedule ends

    clock.time, killed = 0.0, clock.pace

    def dies(n):
        if n == 30:
            raise KeyboardInterrupt
        return killed(n)

    clock.pace = dies
    with pytest.raises(KeyboardInterrupt):
        train(*words, tmp_path / "broken", *changes, minutes=1.5)
    before = Timetable.read(tmp_path / "broken", 0).revisions
    assert before
    clock.time, clock.pace = clock.time + 1e6, killed  # time without a process does not count
    start = clock.time
    train(*words, tmp_path / "broken", *changes, minutes=1.5)
    after = Timetable.read(tmp_path / "broken", 0).revisions
    assert after[: len(before)] == before
    assert clock.time - start < 0.6 * began
    assert Run.open(tmp_path / "broken").recipe() == run.recipe()
    assert same(tmp_path / "whole", tmp_path / "broken")  # as nothing was lost, nothing was decided otherwise
    clock.pace = lambda n: pytest.fail("nothing is left to train")
    train(*words, tmp_path / "broken", *changes, minutes=1.5)
    with pytest.raises(SuperformerError, match=r"was begun with 1\.5 minutes, not with 2"):
        train(*words, tmp_path / "broken", *changes, minutes=2)


def test_a_time_too_short_for_an_epoch_is_refused_and_leaves_nothing(tmp_path, clock, searched):
    with pytest.raises(SuperformerError, match="too short to train for one epoch"):
        train(recipe(tmp_path), "digits", tmp_path / "new", minutes=0.2)
    assert not (tmp_path / "new").exists()
    before = sorted(searched.rglob("*"))
    with pytest.raises(SuperformerError, match="too short to train for one epoch"):
        retrain(searched, minutes=0.2)
    assert sorted(searched.rglob("*")) == before
    for wrong in (0, -1, math.nan, math.inf):
        with pytest.raises(SuperformerError, match="above 0"):
            train(recipe(tmp_path), "digits", tmp_path / "run", minutes=wrong)


def test_retraining_shares_its_time_among_seeds(clock, searched):
    done = retrain(searched, "best", "data.search=0", seeds=2, minutes=3)
    assert clock.time == pytest.approx(180, rel=0.15)
    assert done.rows[-1]["seeds"] == [0, 1]
    folders = sorted(p.parent for p in (searched / "retrained").glob("*/recipe.yaml"))
    given_ = [Run(f).facts()["time"]["minutes"] for f in folders]
    assert len(given_) == 2
    assert given_[0] == pytest.approx(given_[1])
    with mock.patch.object(Trainer, "step", side_effect=AssertionError):
        assert retrain(searched, "best", "data.search=0", seeds=2, minutes=3).rows == done.rows


def test_words_of_time(command, tmp_path):
    words = ("train", "--recipe", "s3-laptop", "--data", "digits", "--run", str(tmp_path / "run"))
    assert "above 0" in command(*words, "--minutes", "0")[2]
    assert "leave one of them out" in command(*words, "--hours", "1", "train.epochs=3")[2]


def test_training_ends_where_checks_do_not_become_better(tmp_path, monkeypatch):
    """Killed between that decision and the end it ends there again."""
    words = recipe(tmp_path), "digits", tmp_path / "run"
    changes = "optimizer.lr=1e-12", "train.epochs=20", "train.ema=null", "watch.stop=2", "watch.checkpoint_steps=30"
    save = loop.save_supernet

    def dies(*args: object, **given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "save_supernet", dies)
    with pytest.raises(KeyboardInterrupt):
        train(*words, *changes)
    monkeypatch.setattr(loop, "save_supernet", save)
    run = train(*words, *changes)
    steps = {row["step"] for row in run.metrics() if row["kind"] == "health"}
    per_epoch = min(steps)
    assert steps == {per_epoch, 2 * per_epoch, 3 * per_epoch}  # the first is the best, two epochs without a better one
    assert run.supernet_file.exists()
    before = run.supernet_file.stat().st_mtime
    assert train(*words, *changes).supernet_file.stat().st_mtime == before  # it is already trained
