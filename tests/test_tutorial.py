"""The tutorial, executed as it stands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.training import superformer

TEXT = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text()


@pytest.mark.xdist_group("tutorial")
def test_every_command_and_the_python_of_the_tutorial(tmp_path: Path) -> None:
    blocks = re.findall(r"```(sh|python)\n(.*?)```", TEXT, re.DOTALL)
    assert [kind for kind, _ in blocks].count("sh") >= 5
    for kind, text in blocks:
        if kind == "python":
            done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            continue
        for line in text.strip().splitlines():
            program, *words = shlex.split(line)
            assert program == "superformer"
            done = superformer(*words, cwd=tmp_path)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert (tmp_path / "runs/tutorial/report.html").stat().st_size > 10_000
    assert (tmp_path / "runs/tutorial/export/onnx/model.onnx").exists()
