"""Networks in 8 bits: what is quantised, on which pictures, and what is told of it."""

from __future__ import annotations

import importlib.util
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import superformer as sf
from superformer import data
from superformer.analysis import bench
from superformer.cli.arguments import Int8Command
from superformer.data.dataset import DataSet
from superformer.errors import SuperformerError
from superformer.interop import int8
from superformer.report import write as write_report
from superformer.runs import stored
from superformer.train.retrain import network_to_export

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
Command = Callable[..., tuple[int, str, str]]


def operations(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def test_a_network_in_8_bits(trained: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamic by the command, static by the function, and all networks of a run by the benchmark."""
    words = ("--run", str(trained), "--to", "onnx", "--arch", "largest", "--out", str(tmp_path / "out"))
    status, out, err = command("export", *words, "--int8")
    assert status == 0, err
    assert "largest difference of a logit" in out
    assert "int8, dynamic" in out
    folder, run = tmp_path / "out", sf.Run.open(trained)
    made, before = operations(folder / int8.INT8_FILE), operations(folder / "model.onnx")
    assert made["MatMulInteger"] > 0
    assert made["LayerNormalization"] == before["LayerNormalization"] > 0
    assert made["Softmax"] == before["Softmax"] > 0
    told, plain = (
        {p.key: p.value for p in onnx.load(folder / f).metadata_props} for f in (int8.INT8_FILE, "model.onnx")
    )
    assert told == plain | {"int8": "dynamic"}

    given: list[np.ndarray] = []
    tests: list[bool] = []
    real, test = int8.quantise, DataSet.test

    def quantise(source: Path, target: Path, how: str, batches: Any) -> None:
        assert not tests  # the test pictures are read afterwards
        given.extend(batches)
        real(source, target, how, batches)

    monkeypatch.setattr(int8, "quantise", quantise)
    monkeypatch.setattr(DataSet, "test", lambda self: (tests.append(True), test(self))[1])
    network = network_to_export(trained, "largest")
    row = int8.add_int8(run, network, folder, "largest", "static", seconds=0.01)
    assert tests
    pictures = data.load(run.facts()["data"], run.recipe().data, run.facts()["img_size"])
    whole = [x.numpy() for x, _ in data.eval_batches(pictures.train, run.recipe().data, run.facts()["img_size"], 64)]
    training = {x.tobytes() for batch in whole for x in batch}
    assert sum(map(len, given)) == int8.CALIBRATED
    assert all(x.tobytes() in training for batch in given for x in batch)
    quantised = operations(folder / int8.INT8_FILE)
    assert quantised["QuantizeLinear"] > 0
    assert quantised["Softmax"] == before["Softmax"]
    weights = {t.name: t for t in onnx.load(folder / int8.INT8_FILE).graph.initializer}
    scales = [onnx.numpy_helper.to_array(t) for name, t in weights.items() if name.endswith("_scale")]
    assert any(scale.size > 1 for scale in scales)  # one for each channel
    assert any(t.data_type == onnx.TensorProto.INT8 for t in weights.values())
    assert row["int8_size"] < row["size"]
    assert row["agreed"] > 0.9
    assert abs(row["int8_accuracy"] - row["accuracy"]) <= 1 - row["agreed"]

    monkeypatch.setattr(bench, "export", lambda net, out, to, console: shutil.copy(folder / "model.onnx", out))
    tests.clear()
    monkeypatch.setattr(int8, "quantise", real)
    assert bench.bench_int8(str(trained), "dynamic", 1, 0.01, ["largest"])[0]["name"] == "largest"
    rows = stored.read(trained / "int8.json")["rows"]
    assert [r["how"] for r in rows] == ["static", "dynamic"]  # one of a kind
    assert rows[1]["accuracy"] == rows[0]["accuracy"]
    page = write_report(trained).read_text()
    assert "In 8 bits" in page
    assert "int8, static" in page


def test_the_word_may_be_left_out() -> None:
    asked: list[list[str]] = []

    class Noting(Int8Command):
        def __init__(self) -> None: ...

    parent = Int8Command.__mro__[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parent, "parse_args", lambda self, ctx, args: asked.append(args) or args)
        for words in (["--int8"], ["--int8", "static", "x"], ["--int8", "--to", "onnx"], ["--int8", "runs/first"]):
            Noting().parse_args(None, words)
    expected = [["--int8", "dynamic"], ["--int8", "static", "x"], ["--int8", "dynamic", "--to", "onnx"]]
    assert asked == [*expected, ["--int8", "dynamic", "runs/first"]]


def test_mistakes(trained_once: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    run = str(trained_once)
    status, _, told = command("export", "--run", run, "--to", "timm", "--arch", "largest", "--int8")
    assert (status, "--int8 is for --to onnx" in told) == (2, True)
    status, _, told = command("bench", "s3_tiny", "--int8", "static")
    assert (status, "--int8 needs a run" in told) == (2, True)
    with pytest.raises(SuperformerError, match="did you mean 'static'"):
        int8.check("statik")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnx" else True)
    with pytest.raises(SuperformerError, match=r"needs onnx, not installed here: pip install 'superformer\[onnx\]'"):
        int8.check("dynamic")
