"""A transfer from beginning to end on tiny pictures: killed and resumed, judged, drawn, exported, reported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import killed
from helpers.examples import questions_folder
from helpers.shapes import WORDS, network, shapes
from helpers.training import environment
from safetensors.torch import load_file

from superformer.errors import SuperformerError
from superformer.report import write
from superformer.runs import RunError, stored
from superformer.runs.storage import load_network
from superformer.transfer import evaluate, transfer
from superformer.transfer.examples import load
from superformer.transfer.examples.vocabulary import Vocabulary
from superformer.transfer.folder import TransferRun
from superformer.transfer.model import load_model

TRAINING = ("train.epochs=16", "train.batch_size=4", "optimizer.lr=5e-3", "backbone.rate=1", "head_name=segformer")
CHANGES = (*WORDS, *TRAINING, "watch.checkpoint_steps=8", "watch.every=8")
KILLS = 10 if os.environ.get("SUPERFORMER_FUZZ") else 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures, a network, and a transfer of it that has ended."""
    home = tmp_path_factory.mktemp("transfer")
    shapes(home / "shapes")
    transfer("segment", str(home / "shapes"), home / "run", *CHANGES, backbone=str(network(home / "network")))
    return home


def test_it_learns_and_is_judged_on_test_pictures(made):
    found = evaluate(made / "run")
    assert found["metrics"]["miou"] > 0.5
    assert set(found["by_class"]) == {"nothing", "red", "green"}
    assert found["pictures"] == 4
    assert found["cost"]["params"] == found["cost"]["backbone"] + found["cost"]["head"]
    facts = TransferRun(made / "run").facts()
    assert (facts["task"], facts["head"]) == ("segment", "segformer")
    assert facts["pictures"] == {"train": 14, "choice": 2, "test": 4}


def test_killed_at_any_moment_it_ends_with_the_same_weights(made, tmp_path):
    words = {"task": "segment", "data": str(made / "shapes"), "backbone": str(made / "network")}
    words |= {"changes": [*CHANGES, "train.ema=0.9", "data.flip=0.5", "data.scales=[0.8,1.2]", "head.dropout=0.2"]}
    words["changes"] += [f"watch.checkpoint_steps={2 if KILLS > 3 else 4}"]
    path = os.pathsep.join([str(Path(killed.__file__).parent), *sys.path])
    call = [sys.executable, killed.__file__, str(tmp_path), str(KILLS), json.dumps(words)]
    done = subprocess.run(call, env=environment() | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == KILLS
    whole, broken = (load_file(tmp_path / name / "network.safetensors") for name in ("whole", "broken"))
    assert whole.keys() == broken.keys()
    assert all(torch.equal(whole[k], broken[k]) for k in whole)
    told = [[m["step"] for m in stored.read_lines(tmp_path / n / "metrics.jsonl")] for n in ("whole", "broken")]
    assert told[0] == told[1]


def test_a_compiled_backbone_trains_to_the_same_weights(made, tmp_path):
    words = (*CHANGES, "train.epochs=0.5", "train.ema=0.9", "optimizer.name=sgd")
    states = []
    for compiled in ("false", "true"):
        own = (*words, f"train.compile={compiled}")
        transfer("segment", str(made / "shapes"), tmp_path / compiled, *own, backbone=str(made / "network"))
        states.append(load_file(tmp_path / compiled / "network.safetensors"))
    torch.testing.assert_close(*states, atol=1e-5, rtol=1e-3)


def test_what_is_done_is_not_done_again_and_other_words_are_refused(made):
    again = transfer("segment", str(made / "shapes"), made / "run", *CHANGES, backbone=str(made / "network"))
    assert again == evaluate(made / "run")
    with pytest.raises(RunError, match=r"seed: 0 before, 1 now.*same words"):
        transfer("segment", str(made / "shapes"), made / "run", *CHANGES, "seed=1", backbone=str(made / "network"))
    with pytest.raises(RunError, match="backbone"):
        transfer("segment", str(made / "shapes"), made / "run", *CHANGES, backbone="resnet18")
    with pytest.raises(RunError, match="not a transfer"):
        transfer("segment", str(made / "shapes"), made / "shapes", *CHANGES, backbone=str(made / "network"))


def test_the_command_line(made, command):
    status, out, _ = command("eval", "--run", str(made / "run"), "--json")
    assert status == 0
    assert 0.5 < json.loads(out)["miou"] <= 1
    status, out, _ = command("eval", "--run", str(made / "run"), "--split", "search")
    assert status == 0
    assert "red" in out
    status, out, _ = command("eval", "--run", str(made / "run"), "--scales", "--json")
    assert status == 0
    assert set(stored.read(made / "run" / "scores.json")) == {"test", "search", "test-scales"}
    status, out, _ = command("runs", str(made), "--json")
    (row,) = json.loads(out)["runs"]
    assert (row["recipe"], row["state"], row["of"]) == ("segment, segformer", "judged", "test, miou")
    assert row["best"] == stored.read(made / "run" / "scores.json")["test"]["metrics"]["miou"]
    words = ("transfer", "--task", "segment", "--backbone", str(made / "network"))
    for more, said in (
        ((), "--data takes"),
        (
            ("--data", "x", "--head", "retinanet", "--out", "y"),
            "unknown head 'retinanet' for --task segment: it is a head of --task detect",
        ),
        (("--data", "x"), "--out DIR"),
        (("--data", "nowhere", "--out", str(made / "new")), "nowhere"),
        (("--data", str(made / "shapes"), "--out", str(made / "new"), "heads.channels=3"), "did you mean 'head"),
        (("--data", "x", "--out", "y", "--arch", "best"), "--arch names a network of a --run"),
    ):
        status, _, error = command(*words, *more)
        assert (status, error.count("\n")) == (2, 1), error
        assert said in error
    assert not (made / "new").exists()


def test_a_plan_needs_no_data(command):
    words = ("--backbone", "resnet50", "--task", "instance", "--head", "mask-rcnn", "--plan", "--json")
    status, out, _ = command("transfer", *words)
    assert status == 0
    found = json.loads(out)
    assert found["params"] == pytest.approx(44.2e6, rel=0.01)
    assert found["params"] == found["backbone"]["params"] + found["head"]["params"]
    status, out, _ = command("transfer", *words[:-1], "--size", "64x96")
    assert status == 0
    assert "44." in out
    assert command("transfer", *words[:-1], "--size", "64")[0] == 2
    status, _, error = command("transfer", *words, "head.box=2fc")
    assert (status, "did you mean 'head.box_head'" in error) == (2, True)
    words = ("--backbone", "resnet50", "--recipe", "vitas-semantic-fpn-80k", "--plan", "--json")
    assert json.loads(command("transfer", *words)[1])["params"] == 28_495_574


def test_times(made, command):
    status, out, error = command("bench", str(made / "run"), "--seconds", "0.02", "--json")
    assert status == 0, error
    found = json.loads(out)
    assert [row["name"] for row in found["rows"]] == ["inference", "backbone", "training step"]
    assert all(0 < row["median"] <= row["p90"] for row in found["rows"])
    assert {row["device"] for row in found["rows"]} == {"cpu"}
    assert 0 <= found["waited"] < 1
    assert "device" in command("bench", str(made / "run"), "--seconds", "0.02")[1]


def test_its_page_shows_pictures(made):
    text = write(made / "run").read_text("utf-8")
    assert text.count("data:image/jpeg;base64,") == 4
    assert "of the pixels are right" in text
    assert "segformer" in text
    assert "src=http" not in text.replace('"', "")


def test_exported_it_says_the_same(made, command):
    onnxruntime = pytest.importorskip("onnxruntime")
    status, out, error = command("export", "--run", str(made / "run"), "--to", "onnx")
    assert status == 0, error
    assert "the largest difference of a logit is" in out
    session = onnxruntime.InferenceSession(made / "run" / "export" / "onnx" / "model.onnx")
    x = np.zeros((2, 3, 32, 32), np.float32)
    assert session.run(None, {session.get_inputs()[0].name: x})[0].shape == (2, 3, 32, 32)
    status, _, error = command("export", "--run", str(made / "run"), "--to", "timm")
    assert status == 2
    assert "ONNX" in error


def test_transformers_say_the_same_without_us(made, command):
    pytest.importorskip("transformers")
    status, out, error = command("export", "--run", str(made / "run"), "--to", "hf")
    assert status == 0, error
    assert "transformers without it" in out  # the proof: another process that cannot import superformer
    folder = made / "run" / "export" / "hf"
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == {"0": "nothing", "1": "red", "2": "green"}
    assert (config["head"], config["arch"]["family"]) == ("segformer", load_network(made / "network").net.space.family)
    assert "import superformer" not in "".join(f.read_text() for f in folder.glob("*.py"))
    assert json.loads((folder / "preprocessor_config.json").read_text())["size"] == {"shortest_edge": 32}


def test_answers_are_exported_with_their_words(made, tmp_path, command):
    onnxruntime = pytest.importorskip("onnxruntime")
    spec, out = str(questions_folder(tmp_path / "questions")), tmp_path / "run"
    words = ("data.size=32", "train.epochs=2", "answers.hidden=32", "data.choice=0", "train.batch_size=4")
    transfer("vqa", spec, out, *words, backbone=str(made / "network"))
    status, told, error = command("export", "--run", str(out), "--to", "onnx")
    assert status == 0, error
    assert "logits of answers" in told
    session = onnxruntime.InferenceSession(out / "export" / "onnx" / "model.onnx")
    known = session.get_modelmeta().custom_metadata_map
    vocabulary = Vocabulary(tuple(json.loads(known["vocabulary"])))
    data = load("vqa", spec, TransferRun(out).settings().data)
    asked = [data.test.example(k) for k in range(len(data.test))]
    length = int(known["question_length"])
    assert vocabulary.encode("Is it red?", length).shape == (length,)  # what a user makes of a question
    inputs = {"question": np.stack([a.target["question"] for a in asked])}
    inputs[session.get_inputs()[0].name] = np.stack([a.picture for a in asked])
    with torch.no_grad():
        ours = load_model(TransferRun(out), data).predict([a.picture for a in asked], [a.target for a in asked])
    theirs = torch.from_numpy(session.run(None, inputs)[0]).softmax(-1)
    assert torch.allclose(torch.stack([row["scores"] for row in ours]), theirs, atol=1e-4)


def test_pictures_that_changed_are_refused(made, tmp_path):
    shapes(tmp_path / "shapes", train=20)
    with pytest.raises(SuperformerError, match="other settings"):
        transfer("segment", str(tmp_path / "shapes"), made / "run", *CHANGES, backbone=str(made / "network"))


def test_few_pictures_and_other_test_pictures(made, tmp_path):
    """A small recipe takes what there is; what it is judged on may change, and is judged again."""
    shapes(tmp_path / "shapes", 4, 2)
    words = (*WORDS, "train.epochs=1", "head_name=segformer", "data.choice=0.3")
    given = {"backbone": str(made / "network")}
    with pytest.raises(SuperformerError, match="batch"):
        transfer("segment", str(tmp_path / "shapes"), tmp_path / "run", *words, "name=mine", **given)
    before = transfer("segment", str(tmp_path / "shapes"), tmp_path / "run", *words, **given)
    assert TransferRun(tmp_path / "run").settings().train.batch_size == 3
    assert evaluate(tmp_path / "run") == before
    shutil.rmtree(tmp_path / "shapes" / "test")
    shapes(tmp_path / "others", 1, 3)
    (tmp_path / "others" / "test").rename(tmp_path / "shapes" / "test")
    assert evaluate(tmp_path / "run")["pictures"] == 3


def test_a_time_is_kept_to(made, tmp_path):
    words = [c for c in CHANGES if not c.startswith("train.epochs")]
    given = {"backbone": str(made / "network"), "minutes": 0.1}
    transfer("segment", str(made / "shapes"), tmp_path / "run", *words, **given)
    run = TransferRun(tmp_path / "run")
    assert 0.05 <= run.facts()["time"]["minutes"] <= run.facts()["time"]["asked"] == 0.1  # the rest is for the test
    chosen = run.settings().train.epochs
    assert chosen >= 1
    transfer("segment", str(made / "shapes"), tmp_path / "run", *words, **given)
    assert run.settings().train.epochs == chosen
    with pytest.raises(RunError, match=r"with 0\.1 minutes, not with 2"):
        transfer("segment", str(made / "shapes"), tmp_path / "run", *words, **{**given, "minutes": 2})
