"""The report of a run: one HTML file that needs nothing else.

`inputs` reads the run's files; `search`, `training`, `deployment` and `reproduction` make the sections out of the
pieces of `markup`; `page` puts everything together with the scripts, which draw the charts."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from superformer import files
from superformer.progress import teller
from superformer.report.inputs import read
from superformer.report.page import rendered

NAME = "report.html"


def write(folder: str | Path, console: Console | None = None) -> Path:
    """Write ``DIR/report.html`` with whatever the run has so far; nothing else in the run is changed."""
    inputs = read(folder)
    path = inputs.run.folder / NAME
    files.write(path, rendered(inputs, teller(console)))
    return path
