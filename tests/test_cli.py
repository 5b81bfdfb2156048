from __future__ import annotations

import json
import subprocess
import sys

import pytest

import superformer as sf
from superformer.cli import main


@pytest.fixture
def run(monkeypatch, capsys):
    """The command line in this process: exit status, standard output, standard error."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["superformer", *words])
        try:
            main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        out = capsys.readouterr()
        return status, out.out, out.err

    return call


def test_as_a_program():
    done = subprocess.run([sys.executable, "-m", "superformer", "spaces", "nothing"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("superformer: unknown space 'nothing'")


def test_listing_commands(run):
    listed = json.loads(run("spaces", "--json")[1])
    assert [row["name"] for row in listed] == sf.spaces()
    tiny = next(row for row in listed if row["name"] == "vit-resnas-tiny")
    assert tiny["architectures"] == sf.space("vit-resnas-tiny").size
    assert tiny["macs"] == [752489984, 3497553920]
    one = json.loads(run("spaces", "vitas-block", "--json")[1])
    assert sf.Space.from_json(json.dumps(one["space"])) == sf.space("vitas-block")
    assert [row["name"] for row in json.loads(run("models", "--json")[1])] == sf.models()
    model = json.loads(run("models", "vitas_1g", "--json")[1])
    assert (model["macs"], model["params"]) == (958618176, 4400248)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("spaces",), "vit-resnas-tiny"),
        (("spaces", "vit-resnas-tiny"), "heads x 32"),
        (("models",), "4+4+4"),
        (("models", "vitas_858m"), "1008"),
        (("--help",), "superformer demo"),
    ],
)
def test_commands_show(run, words, says):
    status, out, _ = run(*words)
    assert status == 0
    assert says in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("spaces", "vitas-v2"), "did you mean 'vitas-v1'"),
        (("models", "nothing"), "possible: vitas_858m"),
        (("spacs",), "Did you mean 'spaces'"),
        (("spaces", "--jsn"), "--json"),
    ],
)
def test_mistakes_are_one_line_and_status_2(run, words, says):
    status, _, error = run(*words)
    assert status == 2
    assert says in error
    assert len(error.strip().splitlines()) == 1
