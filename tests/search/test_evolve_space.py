"""The space of a run evolves, for real; interrupted, it goes on."""

from __future__ import annotations

import io
import json
import shutil
from xml.etree import ElementTree

import pytest
from helpers.training import TINY, as_earlier_version, recipe, superformer
from rich.console import Console

import superformer as sf
from superformer.draw.evolution import draw
from superformer.errors import StoppedError
from superformer.evaluation.evaluator import evaluate
from superformer.runs import Run
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


def test_several_processes_evolve_the_space_of_one(tmp_path):
    """Trained together, measured together: on the same supernets to the last bit."""
    words = ("evolve-space", "--recipe", recipe(tmp_path), "--data", "digits", "--run", "run", *WORDS)

    def evolve(name, processes):
        (folder := tmp_path / name).mkdir(exist_ok=True)
        done = superformer(*words, processes=processes, cwd=folder)
        assert done.returncode == 0, done.stderr
        return json.loads((folder / "run" / "evolution.json").read_text())["spaces"], done.stdout

    alone, _ = evolve("alone", 1)
    shutil.copytree(tmp_path / "alone", tmp_path / "measured")
    for old in ("evolution.json", "history.db", "spaces/0/history.db"):
        (tmp_path / "measured" / "run" / old).unlink()
    together, said = evolve("measured", 2)
    assert together == alone
    assert said.count("space 0: E-T error") == 1  # the first process alone talks
    both, _ = evolve("both", 2)
    assert [s["space"] for s in both[:1]] == [s["space"] for s in alone[:1]]
    assert [t["label"] for t in both[0]["trends"]] == [t["label"] for t in alone[0]["trends"]]
    for ours, theirs in zip(both, alone, strict=True):
        assert ours["et_error"] == pytest.approx(theirs["et_error"], abs=5)
    assert Run.open(tmp_path / "both" / "run").supernet_file.exists()


@pytest.mark.parametrize(("start", "inherits"), [("previous", True), ("fresh", False)])
def test_later_supernets_inherit_or_begin_anew(tmp_path, start, inherits):
    """Table 5 and figure 6 compare supernets that were trained by themselves."""
    said = io.StringIO()
    words = (*WORDS, "evolve.samples=2", f"evolve.start={start}", "train.epochs=0.2")
    console = Console(file=said, width=200)
    evolve_space(recipe(tmp_path), "digits", tmp_path / "run", *words, console=console)
    assert (Run.open(tmp_path / "run").recipe().start.run is not None) == inherits
    assert Run.open(tmp_path / "run").recipe().evolve.start == start
    assert ("starts from tiny" in said.getvalue()) == inherits


def test_a_run_goes_on_with_its_own_recipe_and_space(tmp_path):
    """S3's recipes had heads that choose, and a round less to search: runs of that time go on by the same command."""
    words = ("evolve-space", "--recipe", "s3-laptop", "--data", "digits", "--run", "run", "evolve.rounds=1")
    few = ("evolve.samples=2", "train.epochs=0.2", "watch.networks=0", "evolve.gamma={depth: 1}")
    assert superformer(*words, *few, cwd=tmp_path).returncode == 0
    run = Run.open(tmp_path / "run" / "spaces" / "0")
    as_earlier_version(run)
    text = run.recipe_file.read_text().replace("rounds: 12", "rounds: 11")
    for file, old in ((run.recipe_file, text), (run.space_file, run.space_file.read_text())):
        file.write_text(old.replace('"name": "s3-laptop"', '"name": "old"').replace("name: s3-laptop", "name: old"))
    for file in ("recipe.yaml", "evolution.json"):
        (tmp_path / "run" / file).unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    for file in ("metrics.jsonl", "supernet.safetensors", "history.db", "evolution.svg", "run.json", "space.json"):
        (tmp_path / "run" / file).unlink()
    stamp = (run.folder / "supernet.safetensors").stat().st_mtime_ns
    again = superformer(*words, *few, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (run.folder / "supernet.safetensors").stat().st_mtime_ns == stamp
    assert Run.open(tmp_path / "run").recipe().search.rounds == 11
    other = superformer(*words, *few, "train.epochs=0.3", cwd=tmp_path)
    assert other.returncode != 0
    assert "begun with other settings" in other.stderr + other.stdout
