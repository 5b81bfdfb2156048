"""Exports to ONNX and timm, what all exports share, and the forms of operations that a trace needs."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import timm
import torch
from helpers.exported import CLASSES, CROP, MEAN, SPACES, STD, stored
from helpers.timm_networks import made
from rich.console import Console
from safetensors.torch import load_file, save_file
from timm.layers.drop import drop_path
from timm.models._features import feature_take_indices

import superformer as sf
from superformer.elastic.transformer import Cell
from superformer.errors import StoppedError
from superformer.families.timm_api import _taken
from superformer.interop import export as export_module
from superformer.interop.export import export
from superformer.interop.huggingface import ALLOWED, sources
from superformer.interop.timm_weights import from_timm
from superformer.runs.storage import StoredNetwork, load_network, save_network
from superformer.space.schema import FAMILIES

SMALLEST = "vit"


@pytest.mark.parametrize("name", SPACES)
def test_onnx(name: str, tmp_path: Path) -> None:
    network = stored(name)
    console = Console(record=True, force_terminal=False, quiet=True)
    found = export(network, tmp_path / "out", "onnx", console)
    assert found.files == (tmp_path / "out" / "model.onnx",)
    assert found.pictures == 12
    assert found.difference <= 1e-4
    assert f"{found.difference:.1e}" in str(found)
    session = onnxruntime.InferenceSession(found.files[0], providers=["CPUExecutionProvider"])
    size = network.net.space.smallest().resolution
    assert session.get_inputs()[0].shape == ["batch", 3, size, size]
    assert session.get_outputs()[0].shape == ["batch", 5]
    words = session.get_modelmeta().custom_metadata_map
    assert sf.Arch.from_json(words["arch"]) == network.net.space.smallest()
    told = [json.loads(words[k]) for k in ("classes", "mean", "std", "input_size", "resize")]
    assert told == [list(CLASSES), list(MEAN), list(STD), [3, size, size], int(size / CROP)]
    assert words["superformer"] == sf.__version__
    assert b"superformer/elastic" not in found.files[0].read_bytes()  # torch would note the source of every operation
    x = torch.randn(2, 3, size, size)
    logits = session.run(None, {"pixel_values": x.numpy()})[0]
    assert np.abs(logits[0] - logits[1]).max() > 1e-3  # that it depends on the picture


def test_timm(tmp_path: Path) -> None:
    for name in SPACES:
        network = stored(name)
        folder = tmp_path / name
        assert export(network, folder, "timm").difference <= 1e-6
        model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        size = network.net.space.smallest().resolution
        x = torch.randn(2, 3, size, size)
        torch.testing.assert_close(model(x), network.net(x))
        assert model.pretrained_cfg["label_names"] == list(CLASSES)
        prepared = timm.data.resolve_model_data_config(model)
        assert [tuple(prepared[key]) for key in ("input_size", "mean", "std")] == [(3, size, size), MEAN, STD]
        assert (prepared["crop_pct"], prepared["interpolation"]) == (CROP, "bicubic")
        features = timm.create_model(f"local-dir:{folder}", pretrained=True, features_only=True).eval()
        expected = network.net.forward_intermediates(
            x, list(features.feature_info.out_indices), intermediates_only=True
        )
        assert features.feature_info.channels() == [y.shape[1] for y in expected]
        torch.testing.assert_close(features(x), expected)
        assert timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=3)(x).shape == (2, 3)
    with pytest.raises(sf.SuperformerError, match="local-dir:FOLDER"):
        timm.create_model("superformer")


def test_our_loader_reads_timm_folders(tmp_path: Path) -> None:
    network = stored("swin")
    export(network, tmp_path / "a", "timm")
    again = load_network(tmp_path / "a")
    assert (again.classes, again.mean, again.std, again.config["crop"]) == (CLASSES, MEAN, STD, CROP)
    assert all(
        torch.equal(a, b)
        for a, b in zip(again.net.state_dict().values(), network.net.state_dict().values(), strict=True)
    )
    export(again, tmp_path / "b", "timm")
    assert (tmp_path / "a" / "config.json").read_text() == (tmp_path / "b" / "config.json").read_text()


FREE = """
import sys
sys.modules["superformer"] = None  # as if it were not installed
import timm, torch
from safetensors.torch import load_file, save_file
for folder in sys.argv[1:]:
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert type(model).__module__.startswith("timm.models"), type(model)
    with torch.no_grad():
        save_file({"logits": model(load_file(f"{folder}/asked")["x"])}, f"{folder}/answered")
"""


def test_timms_own_classes_need_no_superformer(tmp_path: Path) -> None:
    folders, expected = [], []
    for name in ("clip", "swin", "twins", "resnet"):
        net = from_timm(made(name), **({"img_size": 64} if name == "resnet" else {})).eval()
        network, folder = StoredNetwork(net, CLASSES, MEAN, STD, {"crop": CROP}), tmp_path / name
        proof = export(network, folder, "timm")
        assert "timm loads it without superformer" in str(proof)
        again = load_network(folder)
        state = net.state_dict()
        assert all(torch.equal(tensor, state[key]) for key, tensor in again.net.state_dict().items())
        before = (folder / "config.json").read_text()
        export(again, folder, "timm")
        assert (folder / "config.json").read_text() == before
        size = net.space.smallest().resolution
        x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(2))
        save_file({"x": x}, folder / "asked")
        folders.append(folder)
        with torch.no_grad():
            expected.append(net(x))
    done = subprocess.run([sys.executable, "-c", FREE, *map(str, folders)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for folder, logits in zip(folders, expected, strict=True):
        torch.testing.assert_close(load_file(folder / "answered")["logits"], logits, rtol=1e-5, atol=1e-5)


def test_what_timms_class_cannot_be_says_so(tmp_path: Path) -> None:
    told = str(export(stored("registers"), tmp_path / "out", "timm"))
    assert "VisionTransformer cannot be this network: attn of block 0 of stage 0 is 8, there it is 12" in told
    assert "a network of superformer, which must be installed" in told


def test_what_training_alone_uses_is_left_out(tmp_path: Path) -> None:
    net = sf.model(SPACES["vit_res"].smallest(), 5, patch_head=True).eval()
    assert export(StoredNetwork(net), tmp_path / "timm", "timm").difference == 0


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, own, file = stored(SMALLEST), tmp_path / "model", tmp_path / "file"
    save_network(network.net, own)
    file.touch()
    before = {f: f.read_bytes() for f in own.iterdir()}
    cases = [
        (network, "out", "onyx", "unknown format 'onyx': did you mean 'onnx'"),
        (StoredNetwork(sf.supernet("vitas-block", 10)), "out", "onnx", "supernet of"),
        (network, "file", "timm", "is a file"),
        (network, "model", "timm", "holds another network"),
        (network, "model", "hf", "holds another network"),
    ]
    for given_, out, to, says in cases:
        with pytest.raises(sf.SuperformerError, match=says):
            export(given_, tmp_path / out, to)
    assert before == {f: f.read_bytes() for f in own.iterdir()}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for to in ("onnx", "hf"):
        with pytest.raises(sf.SuperformerError, match=rf"not installed here: pip install 'superformer\[{to}\]'"):
            export(network, tmp_path / "out", to)
    assert not (tmp_path / "out").exists()


def test_a_difference_is_an_error_and_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    export(stored(SMALLEST), out, "timm")
    (out / "notes.txt").write_text("mine")
    before = {f: f.read_bytes() for f in out.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(export_module, "TOLERANCE", -1.0)
        for folder in (out, tmp_path / "new"):
            with pytest.raises(StoppedError, match="nothing was exported"):
                export(stored("swin"), folder, "timm")
    assert {f: f.read_bytes() for f in out.iterdir()} == before
    assert list(tmp_path.iterdir()) == [out]
    broken = stored(SMALLEST)
    with torch.no_grad():
        broken.net.head.bias.fill_(torch.nan)
    with pytest.raises(StoppedError, match="differ by up to inf"):
        export(broken, tmp_path / "new", "timm")
    found = export(stored("swin"), out, "timm")  # a good one takes the earlier one's place
    assert found.files[-1] == out / "config.json"
    assert load_arch(out) == SPACES["swin"].smallest()
    assert sorted(f.name for f in out.iterdir()) == ["config.json", "model.safetensors", "notes.txt"]


def load_arch(folder: Path) -> sf.Arch:
    return sf.Arch.from_json(json.dumps(json.loads((folder / "config.json").read_text())["arch"]))


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_source_of_a_family_needs_nothing_else(name: str) -> None:
    files = sources({f"superformer.families.{name}": "family", "superformer.space.schema": "schema"}, "1")
    assert "family.py" in files
    for text in files.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                assert all(alias.name.split(".")[0] in ALLOWED | sys.stdlib_module_names for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level:
                assert f"{node.module}.py" in files
            elif isinstance(node, ast.ImportFrom):
                assert str(node.module).split(".")[0] in ALLOWED | sys.stdlib_module_names


# --- forms of operations ---


def test_stochastic_depth_and_levels_are_those_of_timm() -> None:
    class Plain(Cell):
        forward = cost = None  # type: ignore[assignment]

    cell, y = Plain().train(), torch.randn(6, 3, 2)
    for rate in (0.0, 0.3, 1.0):
        cell.drop_path = rate
        torch.manual_seed(3)
        expected = drop_path(y, rate, training=True)
        torch.manual_seed(3)
        assert torch.equal(cell.dropped(y), expected)
    assert cell.eval().dropped(y) is y
    for asked in (None, 1, 4, [0, -1], (2,), [3, 1]):
        assert _taken(4, asked) == feature_take_indices(4, list(asked) if isinstance(asked, tuple) else asked)[0]
    for asked in (0, 5, -1, [4], [-5], []):
        with pytest.raises(sf.SuperformerError, match="4 levels, 0 to 3"):
            _taken(4, asked)
