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
from superformer.report import deployment as analysed
from superformer.report import deployment as deployed
from superformer.report import reproduction as repeat
from superformer.report import search as found
from superformer.report import training
from superformer.report import training as evolution
from superformer.report.inputs import Inputs, points
from superformer.report.markup import Markup, Section, joined, tag, text

SCRIPTS = ("scale.js", "charts.js", "cards.js", "front.js", "page.js")


def rendered(inputs: Inputs, tell: Tell = lambda words: None) -> str:
    """The report of a run as HTML text."""
    known = points(inputs, tell)
    chosen: dict[str, Any] | None = None
    sections: list[Section | None] = [found.headline(inputs)]
    to_do = repeat.missing(inputs)
    if not inputs.front:
        sections.append(to_do)
    if known is not None:
        if inputs.front:
            tell("drawing networks of the front")
        section, chosen = found.front(inputs, known)
        sections.append(section)
    sections += [
        deployed.comparison(inputs),
        deployed.retrained(inputs),
        deployed.latency(inputs),
        deployed.bench(inputs),
    ]
    sections.append(found.progress(inputs, known) if known is not None else None)
    sections += [
        evolution.evolution(inputs),
        evolution.distributions(inputs),
        training.health(inputs),
        training.conflicts(inputs),
    ]
    sections += [
        analysed.correlations(inputs),
        analysed.weights(inputs),
        analysed.seeds(inputs),
        analysed.attention(inputs),
    ]
    sections += [repeat.searched(inputs), repeat.repeat(inputs), to_do if inputs.front else None]
    there = [s for s in sections if s is not None]
    charts = {name: chart for s in there for name, chart in s.charts.items()}
    data = {"charts": charts, "front": chosen, "widths": WIDTHS, "squares": SQUARES}
    return assembled(title(inputs), there, data)


def title(inputs: Inputs) -> str:
    return f"{inputs.run.folder.resolve().name}: {inputs.recipe.name} on {inputs.facts.get('data', 'pictures')}"


def assembled(name: str, sections: list[Section], data: dict[str, Any]) -> str:
    script = _script()
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


def _script() -> str:
    return '(function () {\n"use strict";\n' + "\n".join(map(_file, SCRIPTS)) + "})();\n"


def _policy(script: str) -> str:
    """What the page may do: run its own script and show itself. Nothing is loaded, nothing is sent."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def _json(data: dict[str, Any]) -> str:
    """Values in a script element: no character in it can end the element."""
    plain = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
