"""Speed here: of models, stored networks and runs, in every runtime. No test asserts a time."""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.strategies import FAMILIES, SMALL, spaces_with_archs
from helpers.training import recipe
from hypothesis import given, settings
from rich.console import Console
from torch import Tensor, nn

import superformer as sf
from superformer.analysis import bench as module
from superformer.analysis.bench import FRONT_NETWORKS, bench, network_sources, summary
from superformer.cost.latency import Job, machine, measure_jobs, pictures, runners
from superformer.errors import SuperformerError
from superformer.evaluation.evaluator import TrainedRun
from superformer.runs import Run, stored
from superformer.runs.storage import save_network
from superformer.search import search
from superformer.space import Space
from superformer.space.arch import Arch
from superformer.spaces import arch as published
from superformer.spaces import model
from superformer.train.loop import train

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained and searched, not retrained."""
    folder = tmp_path_factory.mktemp("bench")
    train(recipe(folder), "digits", folder / "run", "train.epochs=1")
    search(folder / "run", {}, "random", {"evaluations": 12})
    return folder / "run"


# --- what is measured ---


def identity(rows: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    return [(row["name"], row["key"], row["runtime"], row["threads"], row["batch"]) for row in rows]


@pytest.mark.parametrize("name", ["resnet50", "resnet50.a1_in1k", "vit_base_resnet50_384"])
def test_models_of_timm_are_known_with_their_tags_and_by_their_former_names(name: str) -> None:
    assert [source.name for source in network_sources(name)] == [name]


def test_a_model_that_was_registered_since() -> None:
    sf.register_model("my_benched_network", published("nasvit_smallest"))
    assert [m.name for m in network_sources("my_benched_network")] == ["my_benched_network"]


def test_the_front_of_a_run(searched: Path) -> None:
    front = Run(searched).front()["front"]
    found = bench(str(searched), ["eager"], batches=(4, 1), seconds=0.01)
    assert identity(found["rows"]) == [
        (row["key"], row["key"], "eager", 1, batch) for row in front[:FRONT_NETWORKS] for batch in (1, 4)
    ]
    for row in found["rows"]:
        assert 0 < row["median"] <= row["p90"]
        assert row["throughput"] == pytest.approx(row["batch"] / row["median"])
    assert found["machine"] == machine()
    assert stored.read(searched / "bench.json") == found


def test_the_retrained_network_of_a_run_and_those_that_are_named(searched: Path) -> None:
    best = Run(searched).arch("best")
    save_network(TrainedRun.of(Run(searched)).network(best), searched / "model")
    found = bench(str(searched), ["eager"], batches=[1], seconds=0.01)
    names = [row["name"] for row in found["rows"]]
    assert (names[0], found["rows"][0]["key"]) == ("model", best.key)
    assert set(names[1:]) == {row["key"] for row in Run(searched).front()["front"][:FRONT_NETWORKS]} - {best.key}
    found = bench(str(searched), ["eager"], batches=[1], seconds=0.01, which=["smallest", "model", "largest"])
    assert [row["name"] for row in found["rows"]] == ["model", "smallest", "largest"]
    stored = bench(str(searched / "model"), ["eager"], batches=[1], seconds=0.01)
    assert identity(stored["rows"]) == [("model", best.key, "eager", 1, 1)]
    assert not (searched / "model" / "bench.json").exists()


def test_models_by_name() -> None:
    own = bench("nasvit_smallest", ["eager"], batches=[1], seconds=0.01)
    other = bench("resnet10t", ["eager"], batches=[1], seconds=0.01)  # timm's
    assert [row["name"] for row in own["rows"] + other["rows"]] == ["nasvit_smallest", "resnet10t"]


@pytest.mark.parametrize(
    ("what", "which", "said"),
    [
        ("s3_tny", (), r"did you mean 's3_tiny'\?.*any model of timm; the folder of a run"),
        ("resnet_50", (), r"did you mean 'resnet50'\?"),
        ("s3_tiny", ("best",), "--arch names a network of a run"),
        (".", (), "holds neither a run"),
    ],
)
def test_unknown_names(
    what: str, which: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SuperformerError, match=said):
        bench(what, ["eager"], which=which)


def test_mistakes(searched: Path, tmp_path: Path) -> None:
    with pytest.raises(SuperformerError, match="did you mean 'eager'"):
        bench("s3_tiny", ["eagre"])
    with pytest.raises(SuperformerError, match="positive"):
        bench("s3_tiny", batches=[0])
    with pytest.raises(SuperformerError, match="unknown architecture 'bset'"):
        bench(str(searched), ["eager"], which=["bset"])
    for name in ("recipe.yaml", "space.json", "run.json", "supernet.safetensors"):
        (tmp_path / name).write_bytes((searched / name).read_bytes())
    with pytest.raises(SuperformerError, match="was not searched yet"):
        bench(str(tmp_path), ["eager"])
    (tmp_path / "supernet.safetensors").unlink()
    with pytest.raises(SuperformerError, match="not trained yet"):
        bench(str(tmp_path), ["eager"])


# --- runtimes ---


@pytest.mark.parametrize("name", FAMILIES)
def test_onnx_runtime_computes_the_same_for_every_batch(name: str) -> None:
    @settings(max_examples=1)
    @given(spaces_with_archs(of=SMALL[name]))
    def check(drawn: tuple[Space, list[Arch]]) -> None:
        agree(model(drawn[1][0], 5), "onnx", (1, 3))

    check()


def test_compiled_networks_compute_the_same(searched: Path) -> None:
    agree(model(Run(searched).space().smallest(), 5), "compiled", (2,))


def agree(net: nn.Module, runtime: str, batches: tuple[int, ...]) -> None:
    xs = [pictures(net, None, batch, CPU) for batch in batches]
    with runners(net, xs, CPU, "eager", 1) as eager, runners(net, xs, CPU, runtime, 1) as other:
        for one, two in zip(eager, other, strict=True):
            torch.testing.assert_close(torch.as_tensor(two()), one(), atol=1e-4, rtol=1e-3)
    assert net.training


class Probe(nn.Module):
    """Writes down how it is run, or fails."""

    def __init__(self, log: list[tuple[str, int]], name: str, fails: bool = False):
        super().__init__()
        self.log, self.name, self.fails = log, name, fails

    def forward(self, x: Tensor) -> Tensor:
        if self.fails:
            raise RuntimeError("not today\nat all")
        self.log.append((self.name, len(x)))
        return x.mean((2, 3))


def test_networks_and_batches_are_measured_in_turn() -> None:
    log: list[tuple[str, int]] = []
    jobs = [Job(Probe(log, name), "eager", (1, 2), 4) for name in "ab"]
    made: list[int] = []
    found = measure_jobs(jobs, seconds=1e-9, making=made.append)
    assert made == [0, 1]
    assert [[timing.batch for timing in some] for some in found if isinstance(some, list)] == [[1, 2], [1, 2]]
    order = [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    turns = [entry for k, entry in enumerate(log) if k == 0 or entry != log[k - 1]]
    assert turns == order * (len(turns) // 4)
    assert len(turns) > 8


def test_a_network_that_fails_is_told_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[tuple[str, int]] = []
    probes = [module.BenchedNetwork(name, name, Probe(log, name, name == "bad"), 4) for name in ("good", "bad", "last")]
    monkeypatch.setattr(module, "_load", lambda sources, what: probes)
    said = io.StringIO()
    found = bench("s3_tiny", ["eager"], batches=(1, 2), seconds=1e-9, console=Console(file=said, width=200))
    assert [(row["name"], row.get("error")) for row in found["rows"] if row["batch"] == 2] == [
        ("good", None), ("bad", "RuntimeError: not today"), ("last", None),
    ]  # fmt: skip
    assert "making ready 2 of 3: bad, eager" in said.getvalue()
    told = summary(found)
    assert [row["name"] for row in told] == ["good", "bad", "last"]
    assert [math.isnan(row["latency"]) for row in told] == [False, True, False]
    assert all(
        row["throughput"] == max(r["throughput"] for r in found["rows"] if r["name"] == row["name"])
        for row in (told[0], told[2])
    )
    assert told[0]["latency"] == found["rows"][0]["median"]


def test_large_networks_are_measured_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    networks = [module.BenchedNetwork(str(k), str(k), nn.Linear(10, 10), 4) for k in range(5)]
    monkeypatch.setattr(module, "PARAMS_AT_A_TIME", 150)
    assert [[named.name for named in group] for group in module._groups(networks)] == [["0", "1"], ["2", "3"], ["4"]]


def test_a_missing_package_says_which_extra(searched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., object] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "onnxscript" else real(name, *rest)
    )
    found = bench(str(searched), ["eager", "onnx"], batches=[1], seconds=0.01, which=["smallest"])
    assert "error" not in found["rows"][0]
    assert "needs onnxscript, not installed here: pip install 'superformer[onnx]'" in found["rows"][1]["error"]
    assert "onnxruntime" not in found["machine"]
    with pytest.raises(SuperformerError, match=r"superformer\[onnx\]"):
        bench(str(searched), ["onnx"], which=["smallest"])
