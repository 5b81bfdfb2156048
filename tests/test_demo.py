"""The demo, in a hurry: the same way, with hardly any training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

import superformer as sf
from superformer.demo import Pace, handmade, run

HURRY = Pace(epochs=1, scratch=0.5, finetuned=0.5, samples=3, generations=2, table_seconds=1, networks=1)


@pytest.mark.xdist_group("demo")
def test_the_whole_way(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as file:
        page = run(tmp_path / "run", Console(file=file, width=120), HURRY)
    assert page == tmp_path / "run" / "report.html"
    rows = json.loads((tmp_path / "run" / "comparison.json").read_text())["rows"]
    names = [row["kind"] for row in rows]
    assert list(dict.fromkeys(names)) == ["hand-made", "random", "found", "found, tuned"]
    assert names.count("random") == 1
    found = rows[-1]
    assert all(abs(row["macs"] - found["macs"]) < 0.25 * found["macs"] for row in rows if row["kind"] != "found")
    assert all(row["macs"] < 1.02 * found["macs"] + 1 for row in rows if row["kind"] == "found")
    told = (tmp_path / "log").read_text()
    assert "largest difference" in told
    assert "random: " in told
    assert "standard error" in told
    assert "random " in page.read_text()
    assert str(page) in told.replace("\n", "")
    for name in (
        "recipe.yaml",
        "space.json",
        "supernet.safetensors",
        "history.db",
        "front.json",
        "metrics.jsonl",
        "evolution.json",
    ):
        assert (tmp_path / "run" / name).exists(), name
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    assert (tmp_path / "run" / "model" / "config.json").exists()
    assert (tmp_path / "run" / "export" / "onnx" / "model.onnx").exists()
    assert json.loads((tmp_path / "run" / "bench.json").read_text())["rows"]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_hand_made_networks_are_uniform_and_cost_what_is_asked(share: float) -> None:
    space = sf.recipe("demo-laptop").space
    space = sf.Space.from_json(json.dumps({"name": "twins", **space}))
    low, high = sf.cost(space, [space.smallest(), space.largest()], num_classes=10).macs
    archs = handmade(space, low + share * (high - low), 10)
    assert len(set(archs)) == len(archs) > 1
    for arch in archs:
        assert arch in space
        for stage in arch.stages:
            assert len({tuple(sorted(block.items())) for block in stage.blocks}) == 1
        assert abs(sf.cost(space, [arch], num_classes=10).macs[0] - (low + share * (high - low))) < 0.15 * high
