"""Exports without superformer: one clean process reads an ONNX file and Hugging Face folders of all families, and tells
what it found."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.exported import CLASSES, CROP, MEAN, SPACES, STD, stored
from PIL import Image

import superformer
from superformer.data.augment import EvalTransform
from superformer.interop import huggingface as hf
from superformer.interop import onnx
from superformer.interop.export import export
from superformer.runs.storage import StoredNetwork

pytestmark = pytest.mark.xdist_group("export_hf")  # one clean process for all
PAGE = Path(__file__).parents[2] / "docs" / "exporting.md"
SHOWN = "vit_res"
"""The network in which the examples of the docs are run."""

CLEAN = """
import contextlib, importlib.util, io, json, os, sys, tempfile
sys.path.append(sys.argv[1])
assert importlib.util.find_spec("superformer") is None
sys.modules["timm"] = None
import numpy as np

def said(code):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {})
    return out.getvalue().split()

told = {}
pages = json.load(open("pages.json"))
told["onnx"] = said(pages[0])
assert "torch" not in sys.modules
told["hf"] = said(pages[1])
exec(pages[2], {})

import torch
from PIL import Image
from transformers import AutoConfig, AutoBackbone, AutoImageProcessor, AutoModel, AutoModelForImageClassification
from transformers import DetrConfig, DetrForObjectDetection

torch.set_num_threads(1)
SMALL = dict(d_model=8, encoder_layers=1, decoder_layers=1, num_queries=2, encoder_ffn_dim=8, decoder_ffn_dim=8,
             encoder_attention_heads=2, decoder_attention_heads=2)

def check(name):
    folder, asked = f"hf/{name}/model", np.load(f"{name}.npz")
    x, found = torch.from_numpy(asked["x"]), {}
    model = AutoModelForImageClassification.from_pretrained(folder, trust_remote_code=True).eval()
    config = model.config
    found["labels"] = [config.id2label[i] for i in range(config.num_labels)]
    with torch.no_grad():
        found["logits"] = float((model(x).logits - torch.from_numpy(asked["logits"])).abs().max())
        found["one"] = float((model(x[:1]).logits - torch.from_numpy(asked["logits"][:1])).abs().max())
        pooled = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()(x).pooler_output
        found["pooled"] = float((pooled - torch.from_numpy(asked["pooled"])).abs().max())
        config.out_indices = list(range(len(config.stage_names)))
        backbone = type(AutoBackbone.from_config(config, trust_remote_code=True))
        backbone = backbone.from_pretrained(folder, config=config).eval()
        maps = backbone(x).feature_maps
        found["maps"] = max(float((m - torch.from_numpy(asked[f"map{k}"])).abs().max()) for k, m in enumerate(maps))
        assert [m.shape[1] for m in maps] == backbone.channels
        if name != "relative":
            around = DetrConfig(backbone_config=config, use_timm_backbone=False, num_labels=3, **SMALL)
            detector = DetrForObjectDetection(around).eval()
            detector.model.backbone.model.load_state_dict(backbone.state_dict())
            assert detector(pixel_values=x).logits.shape == (len(x), 2, 4)
            for a, b in zip(maps, detector.model.backbone.model(x).feature_maps, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    loss = model(x, labels=torch.zeros(len(x), dtype=torch.long)).loss
    loss.backward()
    found["no gradient"] = [n for n, p in model.named_parameters() if p.grad is None]
    with tempfile.TemporaryDirectory() as again:
        model.save_pretrained(again)
        twice = AutoModelForImageClassification.from_pretrained(again, trust_remote_code=True).eval()
        assert twice.config.arch == config.arch and twice.config.id2label == config.id2label
        assert torch.equal(twice(x).logits, model(x).logits)
    fresh = AutoModelForImageClassification.from_config(config, trust_remote_code=True)
    assert all(t.isfinite().all() for t in fresh.state_dict().values())
    assert not torch.equal(fresh(x).logits, model(x).logits)
    other = dict(trust_remote_code=True, num_labels=3, ignore_mismatched_sizes=True)
    tuned = AutoModelForImageClassification.from_pretrained(folder, **other)
    assert tuned(x).logits.shape == (len(x), 3)
    picture = Image.open("picture.jpg")
    ready = AutoImageProcessor.from_pretrained(folder)(picture, return_tensors="pt")["pixel_values"]
    found["picture"] = float((ready - torch.from_numpy(asked["picture"])).abs().max())
    return found

for name in json.loads(sys.argv[2]):
    told[name] = check(name)
sys.path.insert(0, sys.argv[3])
del sys.modules["timm"]
import superformer  # and with it, in the same way
told["installed"] = check(json.loads(sys.argv[2])[0])
print(json.dumps(told))
"""


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the clean process tells."""
    folder = tmp_path_factory.mktemp("clean")
    rng = np.random.default_rng(0)
    pixels = np.kron(rng.integers(0, 256, (9, 18, 3), dtype=np.uint8), np.ones((16, 16, 1), np.uint8))
    Image.fromarray(pixels).save(folder / "picture.jpg", quality=95)
    decoded = torch.from_numpy(np.array(Image.open(folder / "picture.jpg")))[None]
    networks = {name: stored(name) for name in SPACES}
    for name, network in networks.items():
        home = folder / "hf" / name / "model"  # folders of one name, as in the runs of one user
        home.mkdir(parents=True)
        hf.write(network, home)
        save_answers(folder / f"{name}.npz", network, decoded)
    (folder / "exported" / "onnx").mkdir(parents=True)
    onnx.write(networks[SHOWN], folder / "exported" / "onnx")
    (folder / "exported" / "hf").symlink_to(folder / "hf" / SHOWN / "model")
    code = blocks()
    (folder / "pages.json").write_text(json.dumps([code[0], code[2], code[3]]))
    environment = os.environ | {"HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    source = str(Path(superformer.__file__).parent.parent)
    words = [
        sys.executable,
        "-S",
        "-I",
        "-c",
        CLEAN,
        sysconfig.get_paths()["purelib"],
        json.dumps(list(SPACES)),
        source,
    ]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    out: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return out | {"expected": CLASSES[int(np.load(folder / f"{SHOWN}.npz")["class"])]}


def save_answers(file: Path, network: StoredNetwork, decoded: torch.Tensor) -> None:
    """What superformer computes of a network, for random pictures and for the one in the folder."""
    size = network.net.space.smallest().resolution
    x = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1))
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
    picture = (EvalTransform(size, CROP)(decoded) / 255 - mean) / std
    with torch.no_grad():
        tokens = network.net.forward_features(x)
        maps = network.net.forward_intermediates(x, intermediates_only=True)
        arrays = {
            "x": x,
            "logits": network.net(x),
            "pooled": network.net.forward_head(tokens, pre_logits=True),
            "picture": picture,
        }
        arrays["class"] = network.net(picture).argmax()
    np.savez(file, **{k: v.numpy() for k, v in arrays.items()}, **{f"map{k}": m.numpy() for k, m in enumerate(maps)})


@pytest.mark.parametrize("name", [*SPACES, "installed"])
def test_hugging_face_without_superformer_and_with_it(told: dict[str, Any], name: str) -> None:
    found = told[name]
    assert found["labels"] == list(CLASSES)
    assert found["no gradient"] == []
    for what in ("logits", "one", "pooled", "maps"):
        assert found[what] <= 1e-5, what
    assert found["picture"] <= 2 / 255 / min(STD) + 1e-6  # rounded to whole numbers on the way


def test_the_examples_of_the_docs_find_the_class(told: dict[str, Any]) -> None:
    assert told["onnx"] == told["hf"] == [told["expected"]]


def test_timm_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    export(stored(SHOWN), tmp_path / "exported" / "timm", "timm")
    Image.fromarray(np.zeros((40, 50, 3), np.uint8)).save(tmp_path / "picture.jpg")
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks()[1], PAGE.name, "exec"), {})
    said = capsys.readouterr().out.split("\n")
    assert said[0] in CLASSES
    assert said[1] == "[8, 12] [14, 28]"


def test_export_proves_itself_without_superformer(tmp_path: Path) -> None:
    found = export(stored("resnet"), tmp_path / "out", "hf")
    assert found.difference <= 1e-4
    assert "without superformer" in found.what
    names = {file.name for file in found.files}
    assert {
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "modeling_superformer.py",
        "README.md",
    } <= names
    assert "superformer_families_resnet.py" in names
    others = "superformer_(families_swin|spaces|cost|recipes|data|runs|evaluation|train|search|interop|analysis|cli)"
    assert not [name for name in names if re.match(others, name)]
    assert sorted(tmp_path.iterdir()) == [tmp_path / "out"]
