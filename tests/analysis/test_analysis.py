"""What a run tells about its method: numbers by hand, and a small run for real."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from helpers.strategies import spaces
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

import superformer as sf
from superformer import files
from superformer.analysis import correlation
from superformer.analysis.distributions import Distribution, conflict_ratios, distributions, known_errors
from superformer.analysis.run import analyse, predicted_latency
from superformer.analysis.subject import Subject, standalone
from superformer.evaluation.evaluator import Evaluator
from superformer.recipes import dump
from superformer.recipes.searching import SpaceEvolution
from superformer.report import write as write_report
from superformer.runs import Run, stored
from superformer.runs.processes import World
from superformer.runs.storage import load_network
from superformer.search import search
from superformer.search.space_evolution import _measure
from superformer.space import Space, Stage

numbers = st.lists(st.floats(0, 100), min_size=1, max_size=30)


# --- distributions ---


@given(numbers, st.floats(-1, 101))
def test_a_distribution_is_the_share_of_smaller_errors(errors, bound):
    found = Distribution.of("some", errors)
    assert float(found(bound)) == sum(e < bound for e in errors) / len(errors)
    assert found(-1) == 0
    assert found(101) == 1
    assert found.to_dict()["errors"] == sorted(errors)


# --- correlation ---


@given(st.lists(st.integers(0, 10**6), min_size=3, max_size=30, unique=True), st.integers(0, 2**32))
def test_coefficients_of_ranks(values, seed):
    """Kendall's as eq. 16 counts pairs, Spearman's as eq. 15; the same order gives 1 and the reverse -1."""
    a = np.array(values, dtype=float)
    b = np.random.default_rng(seed).permutation(a)
    found = correlation.coefficients(a, b)
    n = len(a)
    signs = [np.sign(a[i] - a[j]) * np.sign(b[i] - b[j]) for i in range(n) for j in range(i)]
    assert found["kendall"] == pytest.approx(sum(signs) / len(signs))
    r, s = a.argsort().argsort(), b.argsort().argsort()
    assert found["spearman"] == pytest.approx(1 - 6 * ((r - s) ** 2).sum() / (n * (n * n - 1)))
    assert found["pearson"] == pytest.approx(np.corrcoef(a, b)[0, 1])
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=3)
    for k, row in enumerate(counts):
        again = correlation.coefficients(*(np.repeat(side, row) for side in (a, b)))
        for name, values in correlation.resampled(a, b, counts.astype(float)).items():
            assert again[name] is None or values[k] == pytest.approx(again[name], abs=1e-6)
    assert correlation.coefficients(a, 2 * a + 1) == pytest.approx({"pearson": 1, "spearman": 1, "kendall": 1})
    assert correlation.coefficients(a, -a)["kendall"] == pytest.approx(-1)


def test_intervals_and_groups():
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    points = list(zip(x, x + rng.normal(size=200), strict=True))
    found = correlation.correlate("some", points, ["left" if a < 0 else "right" for a in x], seed=1)
    for name in correlation.COEFFICIENTS:
        low, high = found["intervals"][name]
        assert low < found[name] < high
        assert high - low < 0.3
    assert found == correlation.correlate("some", points, ["left" if a < 0 else "right" for a in x], seed=1)
    assert found["intervals"] != correlation.correlate("some", points, seed=2)["intervals"]
    assert sum(group["n"] for group in found["groups"]) == 200
    assert all(
        group["pearson"] < found["pearson"] for group in found["groups"]
    )  # a part of the range has less to correlate
    alike = correlation.correlate("constant", [(1, 2), (1, 3), (1, 4)])
    assert alike["kendall"] is None
    assert alike["intervals"]["kendall"] is None
    json.dumps(alike, allow_nan=False)
    with pytest.raises(sf.SuperformerError, match="same length"):
        correlation.coefficients([1, 2], [1, 2, 3])


# --- conflicts ---


def line(step, **layers):
    return {"kind": "conflict", "step": step, "layers": {name.replace("_", "."): c for name, c in layers.items()}}


def test_conflict_ratios():
    lines = [
        {"kind": "step", "step": 10, "epoch": 0.5},
        line(1, stages_0_blocks_0=-0.1, stages_0_enter=0.2, head=-0.3),
        line(11, stages_0_blocks_0=0.1, stages_0_enter=0.2),
        line(20, stages_0_blocks_0=-0.1, stages_0_enter=0.2),  # the last step of the first epoch
        line(21, stages_0_blocks_0=0.1, stages_1_blocks_10=-0.2, stages_1_blocks_9=0.1, stem=-1.0),
    ]
    found = [(row["epoch"], row["layer"], row["ratio"]) for row in conflict_ratios(lines)]
    assert found == [
        (1, "stages.0.enter", 0),
        (1, "stages.0.blocks.0", 2 / 3),
        (1, "head", 1),
        (1, "all", 3 / 7),
        (2, "stem", 1),
        (2, "stages.0.blocks.0", 0),
        (2, "stages.1.blocks.9", 0),
        (2, "stages.1.blocks.10", 1),
        (2, "all", 2 / 4),
    ]
    assert conflict_ratios([lines[0]]) == []


# --- seeds ---

SPACE = Space(
    "s",
    "vit",
    (Stage({"heads": (1, 2, 4), "attn": 4, "mlp": (4, 8)}, depth=(1, 2)),),
    {"patch_size": 8, "width": (4, 6, 8)},
    16,
)


def front(*points, archs=None):
    archs = archs or SPACE.sample(len(points), seed=len(points))
    return correlation.Front(tuple(archs), *np.asarray(points, dtype=float).T)


def test_fronts_of_seeds():
    a = front((0.5, 10), (0.7, 20))
    b = front((0.6, 10), (0.9, 40))
    found = correlation.fronts_summary([a, b], SPACE, budgets=[5, 10, 30, 40])
    assert found["reference"] == {"accuracy": 0.5, "macs": 40}
    assert found["hypervolume"]["each"] == pytest.approx([0.2 * 20, 0.1 * 30])
    assert found["best"]["mean"] == pytest.approx(0.8)
    assert found["best"]["std"] == pytest.approx(0.2 / math.sqrt(2))
    assert [row.get("mean") for row in found["attainment"]] == pytest.approx([None, 0.55, 0.65, 0.8])
    assert [row["n"] for row in found["attainment"]] == [0, 2, 2, 2]
    with pytest.raises(sf.SuperformerError, match="two or more"):
        correlation.fronts_summary([a], SPACE)


def test_overlap_of_architectures():
    base = np.array([[0, *[0] * (len(SPACE.bounds) - 1)]])
    changes = {name: k for k, name in enumerate(SPACE.gene_names)}
    wide, deep = base.copy(), base.copy()
    wide[0, changes["width"]] = 2
    deep[0, changes["stage0.depth"]] = 1
    same, wider, deeper = (SPACE.decode(genes) for genes in (base, wide, deep))
    assert correlation.overlap([same, same], SPACE) == {
        "jaccard": 1,
        "distance": 0,
        "by_choice": dict.fromkeys(("width", "depth", "heads", "mlp"), 0),
    }
    found = correlation.overlap([same, wider], SPACE)
    assert found["jaccard"] == 0
    assert found["by_choice"] == {"width": 1, "depth": 0, "heads": 0, "mlp": 0}
    assert found["distance"] == pytest.approx(1 / 4)  # the choices of the block that both have, the width and the depth
    both = correlation.overlap([same, [*same, *deeper]], SPACE)
    assert both["jaccard"] == 0.5
    assert both["distance"] == pytest.approx(1 / 4 / 3)  # of three architectures one has no equal in the other list


@given(spaces, st.integers(2, 4), st.integers(0, 2**32))
def test_overlap_is_a_share(space, n, seed):
    rng = np.random.default_rng(seed)
    found = correlation.overlap([space.sample(int(rng.integers(1, 6)), rng) for _ in range(n)], space)
    for value in (found["jaccard"], found["distance"], *found["by_choice"].values()):
        assert 0 <= value <= 1


def test_latency_of_a_front():
    rows = [
        {"latency": 1.0, "measured": 1.1},
        {"latency": 2.0, "measured": 2.0},
        {"latency": 4.0, "measured": 3.0},
        {"latency": 9.0},
    ]
    found = predicted_latency({"front": rows})
    assert found["points"] == [[1.0, 1.1], [2.0, 2.0], [4.0, 3.0]]
    assert found["median_error"] == pytest.approx(0.1 / 1.1)
    assert found["spearman"] == pytest.approx(1)
    assert predicted_latency({"front": [{"macs": 1}]}) is None


# --- a run ---


def evaluations(run: Path) -> int:
    return int(sqlite3.connect(run / "history.db").execute("SELECT COUNT(*) FROM evaluations").fetchone()[0])


def test_what_is_cheap(trained: Path) -> None:
    told = Console(record=True, width=300, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    found = analyse(trained, told)
    assert set(found) == {"conflicts", "supernet"}
    assert "depths: left out (no networks" in told.export_text(clear=False)
    assert found == stored.read(trained / "analysis.json")
    assert {row["epoch"] for row in found["conflicts"]} == {1, 2}
    assert "distributions: left out (no random network" in told.export_text()
    assert not (trained / "history.db").exists()


def test_distributions_of_spaces(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, trained / "spaces" / "0")
    found = analyse(trained, parts=["distributions"], changes={"samples": 8})["distributions"]
    assert [one["name"] for one in found] == ["space 0", "space 1"]
    assert found[0]["errors"] == found[1]["errors"] == sorted(found[0]["errors"])
    subject = Subject.open(trained)
    archs = subject.space.sample(8, np.random.default_rng([0, 6]))
    want = sorted(
        100 * (1 - a)
        for a in Evaluator.of(subject.net, subject.recipe, subject.pictures, subject.pictures.search, 16)(archs)
    )
    assert found[1]["errors"] == pytest.approx(want)
    count = evaluations(trained)
    assert sorted(known_errors(subject)) == pytest.approx(
        sorted({a.path: e for a, e in zip(archs, want_of(subject, archs), strict=True)}.values())
    )
    assert analyse(trained, parts=["distributions"], changes={"samples": 8})["distributions"] == found
    assert evaluations(trained) == count
    assert [d.name for d in distributions(trained)] == ["space 0", "space 1"]


def want_of(subject: Subject, archs: list[sf.Arch]) -> list[float]:
    return [100 * (1 - a) for a in subject.inherited(archs)]


def test_supernet_against_macs(trained: Path) -> None:
    found = analyse(trained, parts=["budgets"], changes={"architectures": 9, "groups": 3})["budgets"]
    space = sf.Run.open(trained).space()
    macs = [point[0] for point in found["points"]]
    assert len(set(macs)) > 3
    assert [group["n"] for group in found["groups"]] == [3, 3, 3]
    least, most = (sf.cost(space, [arch], 10).macs[0] for arch in (space.smallest(), space.largest()))
    edges = np.linspace(least, most, 4)
    assert [int(np.searchsorted(edges[1:-1], m, side="right")) for m in macs] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    with pytest.raises(sf.SuperformerError, match="cannot be drawn in 5 groups"):
        analyse(trained, parts=["budgets"], changes={"architectures": 3, "groups": 5})


def test_stand_alone_networks(trained: Path) -> None:
    """Trained by themselves once, for both parts; with inherited weights they begin where the supernet ended."""
    words = {"architectures": 2, "groups": 2, "epochs": 1}
    found = analyse(trained, parts=["correlations"], changes=words)["correlations"][0]
    assert found["points"] == [[row["supernet"], row["standalone"]] for row in found["table"]]
    stamps = {f: f.stat().st_mtime_ns for f in trained.glob("standalone/*/scratch-1/supernet.safetensors")}
    assert len(stamps) == 2
    whole = analyse(trained, parts=["weights"], changes=words)
    assert whole["correlations"] == [found]  # what was found before stays
    assert stamps == {f: f.stat().st_mtime_ns for f in stamps}
    subject = Subject.open(trained)
    for row, other in zip(whole["weights"], found["table"], strict=True):
        assert (row["key"], row["inherited"], row["scratch"]) == (other["key"], other["supernet"], other["standalone"])
        assert 0.05 < row["finetuned"] <= 1
        own = load_network(trained / "standalone" / row["key"] / "inherited").net
        judge = Evaluator.of(own, subject.recipe, subject.pictures, subject.pictures.search, 16)
        assert judge([own.space.smallest()])[0] == row["inherited"]
        alone = sf.Run.open(trained / "standalone" / row["key"] / "finetuned-1")
        assert alone.space().size == 1
        assert alone.recipe().train.epochs == 1
    moved = trained.rename(trained.with_name("moved"))
    for supernet in moved.glob("standalone/*/finetuned-1/supernet.safetensors"):
        supernet.unlink()  # as if it had been killed at the very end
    assert analyse(moved, parts=["weights"], changes=words)["weights"] == whole["weights"]
    with pytest.raises(sf.SuperformerError, match="scratch or finetuned"):
        standalone(subject.run, subject.space.smallest(), "scrach", 1)  # type: ignore[arg-type]


def test_another_way_to_train(trained: Path) -> None:
    """The parts take any function that trains; here accuracy is what the supernet says, so the ranks agree."""
    subject = Subject.open(trained)
    asked = []

    def same(run: sf.Run, arch: sf.Arch, weights: str, epochs: float) -> float:
        asked.append((arch.key, weights, epochs))
        return subject.inherited([arch])[0]

    found = analyse(trained, parts=["correlations"], changes={"architectures": 6, "epochs": 3}, train=same)[
        "correlations"
    ][0]
    assert {(weights, epochs) for _, weights, epochs in asked} == {("scratch", 3.0)}
    assert len({key for key, *_ in asked}) == len(asked) == 6
    assert found["spearman"] is None or found["spearman"] == pytest.approx(1)


def test_searches_with_several_seeds(trained: Path) -> None:
    words = {"seeds": 2, "method": "random", "search": {"evaluations": 12}, "macs_max": 3e5}
    found = analyse(trained, parts=["seeds"], changes=words)["seeds"]
    assert found["seeds"] == 2
    assert found["reference"]["macs"] <= 3e5
    count = evaluations(trained)
    assert 12 < count <= 24
    assert not (trained / "front.json").exists()
    assert analyse(trained, parts=["seeds"], changes=words)["seeds"] == found
    assert evaluations(trained) == count
    search(trained, {}, "random", {"evaluations": 6})
    same = correlation.fronts_summary(correlation.fronts([trained, trained]), sf.Run.open(trained).space())
    assert same["overlap"]["jaccard"] == 1
    assert same["overlap"]["distance"] == same["best"]["std"] == same["hypervolume"]["std"] == 0


def test_attention_of_a_run(trained: Path) -> None:
    found = analyse(trained, parts=["attention"], changes={"pictures": 20, "arch": "smallest"})["attention"]
    assert [row["block"] for row in found] == ["1-1", "2-1"]
    assert {row["arch"] for row in found} == {sf.Run.open(trained).space().smallest().key}
    assert all(0 < row["top5"] < 16 for row in found)


def test_maps_of_a_run(trained: Path) -> None:
    found = analyse(trained, parts=["maps"], changes={"picture": 3, "arch": "largest", "query": "0.4,0.6"})["maps"]
    assert [row["block"] for row in found["maps"]] == ["1-1", "1-2", "2-1"]
    assert found["maps"][0]["query"] == [1, 2]
    drawn = (trained / "attention.svg").read_text()
    assert "picture 3 of the search split" in drawn
    page = write_report(trained).read_text()
    assert "What blocks look at" in page
    assert found["picture"] in page
    Image.new("L", (40, 30), 90).save(trained / "grey.png")
    changes = {"picture": str(trained / "grey.png"), "blocks": "1-1", "heads": True}
    assert [row["head"] for row in analyse(trained, parts=["maps"], changes=changes)["maps"]["maps"]] == [0, 1]
    for words, says in (
        ({"picture": 10**6}, "search split has 0 to"),
        ({"picture": "nowhere.png"}, "cannot be read"),
        ({"query": "class"}, "no block of this network has a class token"),
        ({"query": "1.5,0"}, "query"),
        ({"blocks": "9-9"}, "no block '9-9'"),
    ):
        with pytest.raises(sf.SuperformerError, match=says):
            analyse(trained, parts=["maps"], changes=words)


def test_errors_by_the_number_of_blocks(trained: Path) -> None:
    """S3, figure 3."""
    with pytest.raises(sf.SuperformerError, match="depths samples=100"):
        analyse(trained, parts=["depths"])
    rows = analyse(trained, parts=["depths"], changes={"samples": 8, "top": 2})["depths"]
    assert [(row["stage"], row["blocks"]) for row in rows] == [(0, 1), (0, 2)]  # the second stage has one number
    subject = Subject.open(trained)
    part = subject.space.narrow(depth={0: 2})
    archs = part.sample(8, np.random.default_rng([0, 7, 2]))
    want = sorted(want_of(subject, archs))
    assert rows[1]["errors"] == pytest.approx(want)
    assert rows[1]["top_tier"] == pytest.approx(np.mean(want[:2]))
    assert "2 blocks" in (trained / "depths.svg").read_text()
    assert "Errors by the number of blocks" in write_report(trained).read_text()


def test_what_measured_a_space_is_its_own_draw(trained: Path) -> None:
    """Draws of sub-spaces have the same value in all blocks of a stage: they are no draws of the space."""
    run = Run.open(trained)
    recipe = run.recipe().model_copy(update={"evolve": SpaceEvolution(samples=6)})
    run.recipe_file.write_text(files.seal(dump(recipe)))
    entry, _ = _measure(run, run.recipe(), World(), lambda text: None)
    errors = known_errors(Subject.open(trained))
    assert len(errors) == 6
    assert np.mean(errors) == pytest.approx(entry["expected"])
    (found,) = distributions(trained)
    assert found.errors == pytest.approx(sorted(errors))
    rows = analyse(trained, parts=["depths"])["depths"]  # of the sub-spaces that were measured, too
    assert [len(row["errors"]) for row in rows] == [6, 6]


def test_mistakes(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(sf.SuperformerError, match="did you mean 'conflicts'"):
        analyse(trained, parts=["conflict"])
    with pytest.raises(sf.SuperformerError, match="did you mean 'samples'"):
        analyse(trained, changes={"sample": 3})
    with pytest.raises(sf.SuperformerError, match="samples=100"):
        analyse(trained, parts=["distributions"])
    with pytest.raises(sf.SuperformerError, match="was not searched yet"):
        analyse(trained, parts=["latency"])
    with pytest.raises(sf.SuperformerError, match="there is no run"):
        analyse(tmp_path / "nothing")
    (trained / "analysis.json").write_text("{")
    with pytest.raises(sf.SuperformerError, match=r"analysis.json is damaged.*delete it"):
        analyse(trained)
    (trained / "metrics.jsonl").unlink()
    (trained / "analysis.json").unlink()
    with pytest.raises(sf.SuperformerError, match=r"sampling\.rule=sandwich"):
        analyse(trained, parts=["conflicts"])
