"""The report of a run: one HTML file that needs nothing else.

`inputs` reads the run's files; `search`, `fitted`, `training`, `analyses`, `deployment`, `transferred` and
`reproduction` make the sections out of the pieces of `markup`; here they are put together with the style, the data and
the scripts that draw the charts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console

from superformer import files
from superformer.data.sources import label
from superformer.draw.sketch import SQUARES, WIDTHS
from superformer.draw.svg import DARK, LIGHT
from superformer.progress import Tell, teller
from superformer.report import analyses, deployment, fitted, reproduction, search, training, transferred
from superformer.report.inputs import Inputs, points, read
from superformer.report.markup import Markup, Section, joined, tag, text
from superformer.runs.stored import RECIPE, TRANSFER

NAME = "report.html"
SCRIPTS = ("scale.js", "charts.js", "cards.js", "front.js", "page.js")


def write(folder: str | Path, console: Console | None = None) -> Path:
    """Write ``DIR/report.html`` with whatever the run has so far; nothing else in the run is changed."""
    if (Path(folder) / TRANSFER).exists() and not (Path(folder) / RECIPE).exists():
        return _write_transfer(Path(folder))
    inputs = read(folder)
    path = inputs.run.folder / NAME
    files.write(path, rendered(inputs, teller(console)))
    return path


def _write_transfer(folder: Path) -> Path:
    """The page of a network that was put to another task."""
    found = transferred.Transferred.read(folder)
    sections = transferred.sections(found)
    charts = {name: chart for s in sections for name, chart in s.charts.items()}
    data = {"charts": charts, "front": None, "widths": WIDTHS, "squares": SQUARES}
    files.write(folder / NAME, _page(f"{folder.resolve().name}: {found.title}", sections, data))
    return folder / NAME


def rendered(inputs: Inputs, tell: Tell) -> str:
    """The report of a run as HTML text."""
    known = points(inputs, tell)
    front, front_data, progress = None, None, None
    if known is not None:
        if inputs.front:
            tell("drawing networks of the front")
        front, front_data = search.front(inputs, known)
        progress = search.progress(inputs, known)
    to_do = reproduction.missing(inputs)
    sections = [
        fitted.headline(inputs) or search.headline(inputs),
        None if inputs.front else to_do,
        fitted.networks(inputs),
        fitted.order(inputs),
        front,
        deployment.comparison(inputs),
        deployment.retrained(inputs),
        transferred.listed(inputs),
        deployment.latency(inputs),
        deployment.elsewhere(inputs),
        deployment.bench(inputs),
        deployment.int8(inputs),
        progress,
        training.evolution(inputs),
        training.distributions(inputs),
        analyses.blocks(inputs),
        training.health(inputs),
        training.conflicts(inputs),
        deployment.correlations(inputs),
        deployment.weights(inputs),
        deployment.seeds(inputs),
        deployment.attention(inputs),
        analyses.maps(inputs),
        reproduction.searched(inputs),
        reproduction.repeat(inputs),
        to_do if inputs.front else None,
    ]
    there = [s for s in sections if s is not None]
    charts = {name: chart for s in there for name, chart in s.charts.items()}
    data = {"charts": charts, "front": front_data, "widths": WIDTHS, "squares": SQUARES}
    name = f"{inputs.run.folder.resolve().name}: {inputs.recipe.name} on {label(inputs.facts.get('data', 'pictures'))}"
    return _page(name, there, data)


def _page(title: str, sections: list[Section], data: dict[str, Any]) -> str:
    """All in one file. It may run its own script and show itself; nothing is loaded, nothing is sent."""
    script = '(function () {\n"use strict";\n' + "\n".join(map(_file, SCRIPTS)) + "})();\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
    parts = {
        "policy": Markup(policy + "base-uri 'none'; form-action 'none'"),
        "title": text(title),
        "style": Markup(_style()),
        "links": tag("ul", *(tag("li", tag("a", s.title, href=f"#{s.id}")) for s in sections)),
        "sections": joined([s.markup() for s in sections], "\n"),
        "data": Markup(_json(data)),
        "script": Markup(script),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _file("page.html"))


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _style() -> str:
    """The style, with the colours that drawings of architectures have. Paper is always light."""
    names = ("bg", "card", "edge", "ink", "dim", "rule")
    light, dark = ("".join(f"--{n}:{palette[n]};" for n in names) for palette in (LIGHT, DARK))
    whole = "".join(f"--{n}:{colour}!important;" for n, colour in LIGHT.items())
    screen = f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    return f"{screen}@media print{{.drawing svg,.drawn svg{{{whole}}}}}\n{_file('page.css')}"


def _json(data: dict[str, Any]) -> str:
    """Values in a script element: no character in it can end the element."""
    plain = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
