"""What many tests need: a run that was trained (and searched) once, copies of it, and the command line in this
process."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.known_space import Known
from helpers.training import recipe
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile(
    "house",
    deadline=None,
    max_examples=100 if os.environ.get("SUPERFORMER_FUZZ") else 20,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("house")


@pytest.fixture(scope="session")
def known() -> Known:
    return Known()


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run of the tiny recipe, to be read or copied."""
    from superformer.train.loop import train

    folder = tmp_path_factory.mktemp("trained")
    train(recipe(folder), "digits", folder / "run", "watch.conflicts=5")
    return folder / "run"


@pytest.fixture(scope="session")
def searched_once(trained_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, searched, not retrained; to be read or copied."""
    from superformer.search import search

    folder = tmp_path_factory.mktemp("searched") / "run"
    shutil.copytree(trained_once, folder)
    search(folder, {"macs": (0, 3e5)}, "random", {"evaluations": 12})
    return folder


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path) -> Path:
    """A trained run of this test's own."""
    return Path(shutil.copytree(trained_once, tmp_path / "run"))


@pytest.fixture
def searched(searched_once: Path, tmp_path: Path) -> Path:
    """A searched run of this test's own."""
    return Path(shutil.copytree(searched_once, tmp_path / "run"))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command line in this process: exit status, standard output, standard error."""
    from superformer.cli import main

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
