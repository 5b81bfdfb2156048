"""What is imported when: the command line starts without torch, and every name is what it says whatever was imported
first."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import superformer as sf
from superformer.spaces import catalogue
from superformer.spaces.describe import published_entries


def fresh(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)


COMMAND = """
import atexit, runpy, sys
atexit.register(lambda: print("HEAVY", [m for m in ("torch", "timm", "numpy") if m in sys.modules]))
runpy.run_module("superformer", run_name="__main__", alter_sys=True)
"""


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
    done = fresh(COMMAND, *words)
    assert done.returncode == status
    assert says in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_the_catalogue_is_current():
    assert json.loads(catalogue.FILE.read_text("utf-8")) == published_entries(), (
        "run: python -m superformer.spaces.describe"
    )


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
        "import timm, superformer.space, superformer.cost, superformer.draw, superformer as sf\nfrom superformer.space import Space",
        "import superformer as sf\nsf.space, sf.cost, sf.spaces, sf.draw\nimport superformer.space, superformer.cost, superformer.draw\n"
        "from superformer.space import Space",
        "from superformer.space import Space\nimport superformer as sf, superformer.spaces\n"
        "import importlib.util\nimportlib.util.find_spec('timm')",
        "from superformer import cost, draw, space, spaces\nimport superformer as sf\nfrom superformer.space import Space\n"
        "assert (sf.cost, sf.draw, sf.space, sf.spaces) == (cost, draw, space, spaces)",
    ],
    ids=["timm and modules first", "functions first", "timm looked for, then imported", "from the package"],
)
def test_names_are_what_they_say_whatever_was_imported_first(first):
    done = fresh(f"{first}\n{CHECK}")
    assert not done.stderr
    assert done.returncode == 0


def test_types_and_names_agree():
    """What a type checker is told of the package's names is where they come from."""
    source = ast.parse(Path(sf.__file__).read_text("utf-8"))
    told = next(node for node in source.body if isinstance(node, ast.If)).body
    call = next(node.value for node in source.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
    homes = ast.literal_eval(call.args[1])
    expected = {}
    for line in told:
        module = line.module.removeprefix("superformer").removeprefix(".")
        expected |= {name.asname or name.name: f"{module}:{name.name}" if module else name.name for name in line.names}
    assert homes == expected
    assert set(homes) < set(sf.__all__)


def test_a_name_can_be_replaced(monkeypatch):
    monkeypatch.setattr(sf, "cost", len)
    assert sf.cost is len
    monkeypatch.undo()
    assert sf.cost(sf.space("vitas-block"), [sf.space("vitas-block").smallest()]).macs[0] > 0
