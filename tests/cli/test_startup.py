"""What is imported when: the command line starts without torch, and every name is what it says whatever was imported
first."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import superformer as sf

CATALOGUE = Path(__file__).parents[2] / "docs" / "catalogue.py"


def fresh(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True)


def heavy(log: str) -> set[str]:
    """Which of the slow packages a process imported, by what ``-X importtime`` wrote."""
    return set(re.findall(r"\|\s+(torch|timm|numpy)$", log, re.MULTILINE))


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("--help",), 0, "superformer demo"),
        (("spaces",), 0, "nasvit-released"),
        (("spaces", "nasvit"), 0, "1792, 1984"),
        (("spaces", "nasvit", "--json"), 0, '"architectures": '),
        (("spaces", "nasvitt"), 2, "did you mean 'nasvit'?"),
        (("models",), 0, "vit_resnas_tiny"),
        (("models", "vit_resnas_tinyy"), 2, "did you mean 'vit_resnas_tiny'?"),
        (("spacs",), 2, "Did you mean 'spaces'"),
    ],
)
def test_the_command_line_answers_without_torch(words, status, says):
    done = fresh("-X", "importtime", "-m", "superformer", *words)
    assert done.returncode == status
    assert says in done.stdout + done.stderr
    assert not heavy(done.stderr)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("recipes",), "s3-laptop"),
        (("train", "--recipe", "s3-laptopp", "--data", "digits", "--run", "new"), "did you mean 's3-laptop'?"),
        (("train", "--recipe", "s3", "--data", "digits", "--run", "new", "sharin=cyclic"), "did you mean 'sharing'?"),
        (("evolve-space", "--recipe", "s33", "--data", "digits", "--run", "new"), "did you mean 's3'?"),
        (("search", "--run", "nowhere"), "there is no run in nowhere"),
        (("search", "--run", "RUN", "--method", "nsga3"), "did you mean 'nsga2'?"),
        (("search", "--run", "RUN", "--method", "random", "evaluation=3"), "did you mean 'evaluations'?"),
        (("retrain", "--run", "RUN", "--arch", "bst"), "did you mean 'best'?"),
        (("retrain", "--run", "RUN", "train.epoch=3"), "did you mean 'train.epochs'?"),
        (("eval", "--run", "RUN", "--arch", "bst"), "did you mean 'best'?"),
        (("analyse", "--run", "nowhere"), "there is no run in nowhere"),
        (("export", "--run", "RUN", "--to", "onx"), "did you mean 'onnx'?"),
        (("export", "--run", "RUN", "--to", "onnx"), "no retrained network yet"),
        (("bench", "RUN", "--arch", "bst"), "did you mean 'best'?"),
        (("report", "--run", "nowhere"), "there is no run in nowhere"),
        (("runs", "nowhere"), "there are no runs in nowhere"),
        (("resume", "--run", "nowhere"), "no command is noted in nowhere"),
    ],
)
def test_mistakes_are_told_before_torch_is_imported(words, says, searched_once, tmp_path):
    words = [str(searched_once) if word == "RUN" else word for word in words]
    program = [sys.executable, "-X", "importtime", "-m", "superformer", *words]
    done = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == (0 if words == ["recipes"] else 2)
    assert says in done.stdout + done.stderr
    assert heavy(done.stderr) <= {"numpy"}
    assert not list(tmp_path.iterdir())


def test_the_command_line_knows_our_models_among_those_of_timm(tmp_path):
    check = "import superformer.train.loop, timm; assert timm.is_model('s3_tiny') and timm.is_model('superformer')"
    done = fresh("-c", f"import sys; sys.argv[0] = 'superformer'; import superformer; {check}")
    assert (done.stderr, done.returncode) == ("", 0)


def test_the_catalogue_is_current():
    own = runpy.run_path(str(CATALOGUE))
    assert json.loads(own["FILE"].read_text("utf-8")) == own["catalogue"](), "run: python docs/catalogue.py"


CHECK = """
import timm
assert sf.space("vitas-block") == Space.from_json(sf.space("vitas-block").to_json())
assert "nasvit" in sf.spaces() and "vitas_858m" in sf.models()
assert type(sf.space("vitas-block")) is sf.Space is Space
assert callable(sf.cost) and callable(sf.draw) and sf.official.__name__ == "superformer.interop.official"
assert set(sf.__all__) <= set(dir(sf)) and all(hasattr(sf, name) for name in sf.__all__)
assert not hasattr(sf, "spacs")
assert timm.create_model("vitas_858m", num_classes=3).num_classes == 3
assert set(timm.list_models("vit_resnas_*")) == {n for n in sf.models() if n.startswith("vit_resnas_")}
"""


@pytest.mark.parametrize(
    "first",
    [
        "import timm, superformer.space, superformer.cost, superformer.draw, superformer as sf\n"
        "from superformer.space import Space",
        "import superformer as sf\nsf.space, sf.cost, sf.spaces, sf.draw\n"
        "import superformer.space, superformer.cost, superformer.draw\n"
        "from superformer.space import Space",
        "from superformer.space import Space\nimport superformer as sf, superformer.spaces\n"
        "import importlib.util\nimportlib.util.find_spec('timm')",
        "from superformer import cost, draw, space, spaces\n"
        "import superformer as sf\nfrom superformer.space import Space\n"
        "assert (sf.cost, sf.draw, sf.space, sf.spaces) == (cost, draw, space, spaces)",
    ],
    ids=["timm and modules first", "functions first", "timm looked for, then imported", "from the package"],
)
def test_names_are_what_they_say_whatever_was_imported_first(first):
    done = fresh("-c", f"{first}\n{CHECK}")
    assert not done.stderr
    assert done.returncode == 0


def test_a_name_can_be_replaced(monkeypatch):
    monkeypatch.setattr(sf, "cost", len)
    assert sf.cost is len
    monkeypatch.undo()
    assert sf.cost(sf.space("vitas-block"), [sf.space("vitas-block").smallest()]).macs[0] > 0
