"""The space of a run evolves, for real; interrupted, it goes on."""

from __future__ import annotations

import io
import json
from xml.etree import ElementTree

import pytest
from helpers.training import TINY, recipe
from rich.console import Console

import superformer as sf
from superformer.draw.evolution import draw
from superformer.errors import StoppedError
from superformer.evaluation.evaluator import evaluate
from superformer.search import space_evolution as module
from superformer.search.space_evolution import evolve_space

WORDS = (
    "evolve.rounds=1",
    "evolve.samples=6",
    "evolve.gamma={depth: 1, width: 8, heads: 1}",
    "train.epochs=2",
    "watch.networks=0",
)


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


def test_from_a_bad_space_the_errors_fall(tmp_path):
    """S3, table 5, in small: narrow networks, twice the space moves."""
    path = tmp_path / "bad.yaml"
    path.write_text(TINY.replace("width: [16, 24]", "width: [4, 8]").replace("width: [24, 32]", "width: [4, 8]"))
    words = (
        "evolve.rounds=2",
        "evolve.samples=6",
        "evolve.tau=2",
        "evolve.gamma={width: 8, depth: 1}",
        "train.epochs=3",
    )
    more = (
        "watch.networks=0",
        "watch.every=3",
        "mix.mixup=0",
        "mix.cutmix=0",
        "loss.distill=none",
        "gradients.rule=sum",
        "train.ema=null",
    )
    said = io.StringIO()
    console = Console(file=said, width=200)
    spaces = evolve_space(str(path), "digits", tmp_path / "run", *words, *more, console=console, draw=draw)["spaces"]
    for name in ("et_error", "expected", "best"):
        assert [s[name] for s in spaces] == sorted((s[name] for s in spaces), reverse=True)
    assert spaces[-1]["et_error"] < spaces[0]["et_error"] - 10
    assert sf.Space.from_json(json.dumps(spaces[-1]["space"])).widths("width", 0)[0] > 8
    drawn = ElementTree.parse(tmp_path / "run" / "evolution.svg").getroot()
    texts = ["".join(e.itertext()) for e in drawn.iter("{http://www.w3.org/2000/svg}text")]
    for s in spaces:
        assert f"{s['et_error']:.2f} %" in texts
        for t in s["trends"]:
            assert t["label"] in texts
            assert {f"{v:g}" for v in t["dimension"]["values"]} <= set(texts)
    assert "evolution.svg" in said.getvalue()
