"""The page: sections put together with the style, the script and the data into one file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib import resources
from typing import Any

from superformer.draw.sketch import SQUARES, WIDTHS
from superformer.draw.svg import DARK, LIGHT
from superformer.progress import Tell
from superformer.report import deployment, reproduction, search, training
from superformer.report.inputs import Inputs, points
from superformer.report.markup import Markup, Section, joined, tag, text

SCRIPTS = ("scale.js", "charts.js", "cards.js", "front.js", "page.js")


def rendered(inputs: Inputs, tell: Tell = lambda words: None) -> str:
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
        search.headline(inputs),
        None if inputs.front else to_do,
        front,
        deployment.comparison(inputs),
        deployment.retrained(inputs),
        deployment.latency(inputs),
        deployment.bench(inputs),
        progress,
        training.evolution(inputs),
        training.distributions(inputs),
        training.health(inputs),
        training.conflicts(inputs),
        deployment.correlations(inputs),
        deployment.weights(inputs),
        deployment.seeds(inputs),
        deployment.attention(inputs),
        reproduction.searched(inputs),
        reproduction.repeat(inputs),
        to_do if inputs.front else None,
    ]
    there = [s for s in sections if s is not None]
    charts = {name: chart for s in there for name, chart in s.charts.items()}
    data = {"charts": charts, "front": front_data, "widths": WIDTHS, "squares": SQUARES}
    return assembled(title(inputs), there, data)


def title(inputs: Inputs) -> str:
    return f"{inputs.run.folder.resolve().name}: {inputs.recipe.name} on {inputs.facts.get('data', 'pictures')}"


def assembled(name: str, sections: list[Section], data: dict[str, Any]) -> str:
    script = '(function () {\n"use strict";\n' + "\n".join(map(_file, SCRIPTS)) + "})();\n"
    parts = {
        "policy": Markup(_policy(script)),
        "title": text(name),
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
    return (
        f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
        f"@media print{{.drawing svg{{{whole}}}}}\n{_file('page.css')}"
    )


def _policy(script: str) -> str:
    """What the page may do: run its own script and show itself. Nothing is loaded, nothing is sent."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _json(data: dict[str, Any]) -> str:
    """Values in a script element: no character in it can end the element."""
    plain = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
