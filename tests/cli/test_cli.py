from __future__ import annotations

import json
import subprocess
import sys

import pytest

import superformer as sf


def test_as_a_program():
    done = subprocess.run([sys.executable, "-m", "superformer", "spaces", "nothing"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("superformer: unknown space 'nothing'")


def test_listing_commands(command):
    listed = json.loads(command("spaces", "--json")[1])
    assert [row["name"] for row in listed] == sf.spaces()
    tiny = next(row for row in listed if row["name"] == "vit-resnas-tiny")
    assert tiny["architectures"] == sf.space("vit-resnas-tiny").size
    assert tiny["macs"] == [752489984, 3497553920]
    one = json.loads(command("spaces", "vitas-block", "--json")[1])
    assert sf.Space.from_json(json.dumps(one["space"])) == sf.space("vitas-block")
    assert [row["name"] for row in json.loads(command("models", "--json")[1])] == sf.models()
    scaled = json.loads(command("models", "vitas_1g", "--macs", "1.3G", "--json")[1])
    assert abs(scaled["macs"] - 1.3e9) < 0.02 * 1.3e9
    assert sf.Arch.from_json(json.dumps(scaled["arch"])).key == scaled["key"]
    assert scaled["blocks"] == "9"
    status, _, error = command("models", "--macs", "600M")
    assert (status, error.count("needs the name of a network")) == (2, 1)
    model = json.loads(command("models", "vitas_1g", "--json")[1])
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
def test_commands_show(command, words, says):
    status, out, _ = command(*words)
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
def test_mistakes_are_one_line_and_status_2(command, words, says):
    status, _, error = command(*words)
    assert status == 2
    assert says in error
    assert len(error.strip().splitlines()) == 1
