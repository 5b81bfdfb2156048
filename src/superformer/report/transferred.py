"""Networks that were put to other tasks: the page of a transfer, and in the report of a run the transfers of its
networks. Figures come from ``scores.json``, pictures from ``pictures/``, which were written with them."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superformer.errors import SuperformerError, amount
from superformer.report import markup
from superformer.report.inputs import NOTHING, Inputs, counted, number, percent
from superformer.report.markup import Markup, Section, axis, bars, grid, paragraph, place, plot, series, several, tag
from superformer.runs import stored
from superformer.runs.stored import COMMANDS, METRICS, TRANSFER

MAIN = {"miou": "mean IoU", "ap": "AP", "ap50": "AP50", "ap75": "AP75", "mask_ap": "mask AP", "accuracy": "accuracy"}
MOST_CLASSES = 80
ENDINGS = {".jpg": "jpeg", ".png": "png"}


@dataclass(frozen=True)
class Transferred:
    """The files of a transfer, as far as they are there."""

    folder: Path
    facts: dict[str, Any]
    scores: dict[str, Any]
    pictures: dict[str, Any]
    metrics: list[dict[str, Any]]
    commands: list[dict[str, Any]]

    @staticmethod
    def read(folder: Path) -> Transferred:
        facts, scores, drawn = (stored.read(folder / name) for name in (TRANSFER, "scores.json", "pictures.json"))
        metrics, commands = (stored.read_lines(folder / name) for name in (METRICS, COMMANDS))
        return Transferred(folder, facts, scores, drawn, metrics, commands)

    @property
    def test(self) -> dict[str, Any]:
        own = self.scores.get("test")
        return own if isinstance(own, dict) else {}

    @property
    def title(self) -> str:
        return f"{self.facts['task']} with {self.facts.get('head')} on {self.facts['backbone'].get('name')}"


def sections(found: Transferred) -> list[Section]:
    """The page of a transfer."""
    parts = (headline(found), cost(found), pictures(found), by_class(found), learned(found), repeat(found))
    return [part for part in parts if part is not None]


def headline(found: Transferred) -> Section:
    """What was trained on what, its figures and its cost."""
    facts, test = found.facts, found.test
    rows: list[tuple[object, object]] = [(_label(k), percent(v)) for k, v in test.get("metrics", {}).items()]
    counts = facts.get("pictures", {})
    told = f"The network began with weights: {facts['backbone'].get('weights', 'unknown')}. Data: {facts['data']}"
    if counts:
        told += (
            f", {counts.get('train', 0):,} examples to train on, {counts.get('choice', 0):,} of the training data to "
        )
        told += f"choose by, {counts.get('test', 0):,} to test, which training never saw."
    left = [f"{n} ({why})" for why, n in facts.get("skipped", {}).items()]
    note = paragraph(f"Left out: {', '.join(left)}.", class_="note") if left else None
    rows += [("weights", amount(float(n))) for n in [test.get("cost", {}).get("params")] if number(n) is not None]
    missing = None if test else paragraph("It is not done yet: the words that began it go on with it.")
    return Section("transfer", "On the test data", several(paragraph(told), note, missing, markup.pairs(rows)))


def cost(found: Transferred) -> Section | None:
    """Weights, MACs and, if they were measured, times of backbone and head apart."""
    known, rows = found.test.get("cost", {}), list[list[object]]()
    sides = " x ".join(map(str, known.get("size", ())))
    for what, names in (("weights", ("params", "backbone", "head")), ("MACs", ("macs", "backbone_macs", "head_macs"))):
        values = [amount(float(known[k])) if number(known.get(k)) is not None else "" for k in names]
        rows.append([f"{what} ({sides} pixels)" if what == "MACs" and sides else what, *values])
    times = {r["name"]: 1e3 * r["median"] for r in stored.read(found.folder / "bench.json").get("rows", [])}
    if {"inference", "backbone"} <= times.keys():
        whole, part = times["inference"], times["backbone"]
        rows.append(["milliseconds a picture", *(f"{t:.4g}" for t in (whole, part, whole - part))])
    rows = [row for row in rows if any(row[1:])]
    if not rows or number(known.get("backbone")) is None:
        return None
    return Section("cost", "What it costs", markup.table(["", "together", "backbone", "head"], rows, "Cost"))


def _label(name: str) -> str:
    """AP, small; pixel accuracy."""
    return MAIN.get(name, name.replace("mask_ap", "mask AP").replace("ap_", "AP, ").replace("_", " "))


def pictures(found: Transferred) -> Section | None:
    """Test pictures with what was found in them."""
    figures = [made for row in found.pictures.get("pictures", []) if (made := _figure(found.folder, row)) is not None]
    if not figures:
        return None
    ways = {
        "segment": "Each row: the picture, the truth (what is ignored is black), what the network says.",
        "vqa": "Beside each picture: where the network looked when it answered (attention of the last layer).",
    }
    usual = "Boxes with a score of at least 0.5: found (they share half with an object of that class), wrong, missed."
    colours = found.pictures.get("colours", {})
    legend = [
        tag("span", tag("span", "", class_="swatch", style=f"background:{c}"), name) for name, c in colours.items()
    ]
    told = f"Test pictures, drawn at random and always the same. {ways.get(str(found.facts['task']), usual)}"
    keys = paragraph(*legend, class_="swatches") if 0 < len(legend) <= MOST_CLASSES else None
    return Section("pictures", "What it finds", several(paragraph(told), keys, grid(*figures)))


def _figure(folder: Path, row: Mapping[str, Any]) -> Markup | None:
    """A picture of the folder inside the page; one that is gone is left out."""
    path = folder / str(row.get("file"))
    kind = ENDINGS.get(path.suffix)
    if kind is None or not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
        return None
    source = f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    told = str(row.get("told", ""))
    return tag("figure", tag("img", src=source, alt=told, class_="shot"), tag("figcaption", told), class_="chart")


def by_class(found: Transferred) -> Section | None:
    """IoU or AP of each class."""
    rows = {name: own for name, own in (found.test.get("by_class") or {}).items() if isinstance(own, dict)}
    names = list(dict.fromkeys(k for own in rows.values() for k in own))
    if not rows or not names:
        return None
    first = next((k for k in names if k in ("iou", "ap", "accuracy")), names[0])
    known = {name: own for name, own in rows.items() if number(own.get(first)) is not None}
    drawn = sorted(known, key=lambda name: -float(known[name][first]))[:MOST_CLASSES]
    values = [{"name": name, "group": None, "value": 100 * known[name][first], "colour": 0} for name in drawn]
    title = {"iou": "IoU", "ap": "AP"}.get(first, first.capitalize())
    chart = bars(f"{title} by class", axis(title, "percent", 0, 100), values)
    cells = [[name, *(_cell(own.get(k)) for k in names)] for name, own in rows.items()]
    table = markup.table(["class", *names], cells, "Figures by class", words=1)
    whole = markup.details("All of them as a table", table)
    return Section("classes", "By class", several(place("classes", f"{title} by class"), whole), {"classes": chart})


def _cell(value: object) -> str:
    if isinstance(value, float):
        return percent(value)
    return NOTHING if value is None else f"{value}"


def learned(found: Transferred) -> Section | None:
    """Loss and figures over epochs."""
    steps, checks = ([m for m in found.metrics if m["kind"] == kind] for kind in ("step", "health"))
    if not steps:
        return None
    epochs = float(steps[-1].get("epoch", 0)) / max(int(steps[-1]["step"]), 1) or 1.0
    names = list(dict.fromkeys(name for m in steps for name in m.get("losses", {})))
    losses = [series("loss", [m["step"] * epochs for m in steps], [m.get("loss") for m in steps])]
    for k, name in enumerate(names if len(names) > 1 else [], 1):
        own = [m for m in steps if name in m.get("losses", {})]
        losses.append(
            series(name, [m["step"] * epochs for m in own], [m["losses"][name] for m in own], "line", k % 5, k)
        )
    charts = {"loss": plot("Losses over epochs", axis("epochs"), axis("loss", low=0), losses, together=True)}
    figures = [place("loss", "Loss")]
    main = next((k for m in checks for k in m.get("metrics", {}) if k in MAIN), None)
    if main is not None:
        x, y = [m["step"] * epochs for m in checks], [100 * (m["metrics"].get(main) or 0) for m in checks]
        label = f"{MAIN[main]} on the pictures to choose by, in the end {y[-1]:.1f} %"
        charts["choice"] = plot(label, axis("epochs"), axis(MAIN[main], "percent"), [series(MAIN[main], x, y, "both")])
        figures.append(place("choice", f"{MAIN[main]} on the pictures to choose by"))
    waited, speed = (float(steps[-1].get(k) or 0) for k in ("waited", "images_per_second"))
    told = (
        f"{counted(int(steps[-1]['step']), 'step')}, {speed:.3g} pictures a second; {percent(waited, 1)} of the time "
    )
    told += "was spent waiting for pictures."
    return Section("learned", "How it learned", several(paragraph(told), grid(*figures)), charts)


def repeat(found: Transferred) -> Section | None:
    """The commands that made it."""
    words = [row["words"] for row in found.commands]
    if not words:
        return None
    said = [markup.command(f"superformer {shlex.join(map(str, own))}") for own in words]
    return Section("repeat", "Do it again", several(*said))


def listed(inputs: Inputs) -> Section | None:
    """Transfers of a run's networks, in its folder, as a table."""
    rows = list[list[object]]()
    for path in sorted((inputs.run.folder / "transfer").glob(f"*/{TRANSFER}")):
        try:
            found = Transferred.read(path.parent)
        except SuperformerError as error:
            rows.append([path.parent.name, str(error), "", ""])
            continue
        figures = ", ".join(f"{MAIN[k]} {percent(v)}" for k, v in found.test.get("metrics", {}).items() if k in MAIN)
        begun = str(found.facts["backbone"].get("name"))
        rows.append([path.parent.name, begun, Path(found.facts["data"]).name, figures or "not done yet"])
    if not rows:
        return None
    columns = ["transfer", "network", "data", "on the test pictures"]
    told = "Networks of this run, put to other tasks. superformer report --run on a folder below shows pictures."
    table = markup.table(columns, rows, "Transfers", words=4)
    return Section("transfers", "Other tasks", several(paragraph(told), table))
