"""The space of a run evolves, for real; interrupted, it goes on."""

from __future__ import annotations

import json

import pytest
from training import recipe

import superformer as sf
from superformer.errors import StoppedError
from superformer.evaluation.report import evaluate
from superformer.search import evolve as module
from superformer.search.evolve import evolve_space

WORDS = ("evolve.rounds=1", "evolve.samples=6", "evolve.gamma={depth: 1, width: 8, heads: 1}", "train.epochs=2", "watch.networks=0")


def test_a_space_evolves(tmp_path, monkeypatch):
    words = (recipe(tmp_path), "digits", tmp_path / "run", *WORDS)

    def broken(*given, **more):
        raise StoppedError("stopped between two steps")

    with monkeypatch.context() as patch:
        patch.setattr(module, "evolved", broken)
        with pytest.raises(StoppedError):
            evolve_space(*words)
    first = tmp_path / "run" / "spaces" / "0" / "supernet.safetensors"
    stamp = first.stat().st_mtime_ns
    trace = evolve_space(*words)["spaces"]
    assert first.stat().st_mtime_ns == stamp  # it was not trained again
    assert trace == json.loads((tmp_path / "run" / "evolution.json").read_text())["spaces"]
    assert len(trace) == 2
    assert {t["dimension"]["name"] for t in trace[0]["trends"]} == {"depth", "width", "heads"}
    for entry in trace:
        assert entry["best"] <= entry["et_error"] <= entry["expected"]
    run = sf.Run.open(tmp_path / "run")
    moved = [t for t in trace[0]["trends"] if t["after"] != t["dimension"]["values"]]
    assert moved
    assert json.loads(run.space().to_json()) == trace[1]["space"] != trace[0]["space"]
    assert evaluate(tmp_path / "run", ["largest"], "search")[0]["accuracy"] > 0.15
    with pytest.raises(sf.SuperformerError, match="no dimension"):
        evolve_space(*words[:3], "evolve.gamma={widht: 8}")
