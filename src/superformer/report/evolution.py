"""How the space itself moved (S3, figures 2 and 3), and how the errors of its networks spread (figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from superformer.report.charts import axis, distribution, plot, series
from superformer.report.inputs import Inputs, Row
from superformer.report.markup import Markup, paragraph, table, tag
from superformer.report.points import history
from superformer.report.section import Chart, Section, grid, place, several
from superformer.report.words import number
from superformer.run import Run


def evolution(inputs: Inputs) -> Section | None:
    """Every dimension's choices at every step, with the errors and the fitted slope that moved them."""
    spaces = inputs.evolution
    if not spaces:
        return None
    charts: dict[str, Chart] = {"et": _quality(spaces)}
    labels = list(dict.fromkeys(str(t["label"]) for s in spaces for t in s["trends"]))
    moving = []
    for k, label in enumerate(labels):
        charts[f"moves-{k}"] = _choices(label, spaces)
        moving.append(place(f"moves-{k}", label))
    told = (
        "The space was improved before it was searched (S3, algorithm 1): of every dimension and value, the E-T error of the networks that "
        "have it was measured (the mean of the expected error and of that of the best), and each list of values moved against the slope."
    )
    if len(spaces) <= inputs.recipe.evolve.rounds:
        told += f" It has not ended yet: {len(spaces)} of {inputs.recipe.evolve.rounds + 1} spaces were measured."
    listed = tag("details", tag("summary", "The same as a table"), _table(labels, spaces))
    steps = [tag("h3", "Choices of every dimension, space by space"), grid(*moving, class_="small"), listed]
    for t, space in enumerate(spaces):
        steps.append(_measured(t, space, charts, last=t == inputs.recipe.evolve.rounds))
    body = several(paragraph(told), place("et", "Errors of networks of each space"), *steps)
    return Section("evolution", "How the space evolved", body, charts)


def _quality(spaces: Sequence[Row]) -> Chart:
    x = list(range(len(spaces)))
    names = (("expected", "expected (random networks)", 0), ("et_error", "E-T error", 1), ("best", "best network drawn", 2))
    lines = [series(title, x, [s.get(name) for s in spaces], "both", colour) for name, title, colour in names]
    ends = f"from {spaces[0]['et_error']:.2f} to {spaces[-1]['et_error']:.2f} %" if len(spaces) > 1 else f"{spaces[0]['et_error']:.2f} %"
    return plot(
        f"E-T error of {len(spaces)} spaces: {ends}.", axis("space", "whole"), axis("error", "percent", 0), lines, ticks=x, together=True
    )


def _values(space: Row, label: str) -> list[float]:
    return next((list(t["dimension"]["values"]) for t in space["trends"] if t["label"] == label), [])


def _choices(label: str, spaces: Sequence[Row]) -> Chart:
    """Figure 2: the values of a dimension in each space."""
    values = [_values(space, label) for space in spaces]
    told = "; ".join(f"space {t}: {_listed(own)}" for t, own in enumerate(values))
    lines = [series(f"space {t}", [t] * len(own), own, "range", 0) for t, own in enumerate(values)]
    marks = sorted({v for own in values for v in own})
    return plot(
        f"{label}: {told}", axis("space", "whole"), axis(""), lines, ticks=list(range(len(spaces))), small=True, heights=_few(marks)
    )


def _few(values: Sequence[float], most: int = 5) -> list[float]:
    """Some of many ticks, the ends among them."""
    return [values[k] for k in np.unique(np.linspace(0, len(values) - 1, most).round().astype(int))] if values else []


def _table(labels: Sequence[str], spaces: Sequence[Row]) -> Markup:
    columns = ["dimension", *(f"space {t}" for t in range(len(spaces)))]
    rows = [[label, *(_listed(_values(space, label)) or "\u2013" for space in spaces)] for label in labels]
    return table(columns, rows, "The same as a table")


def _measured(t: int, space: Row, charts: dict[str, Chart], last: bool) -> Markup:
    """Figure 3: of each dimension the E-T errors of its values and the line through them (eq. 7), all on one scale."""
    errors = [e for own in space["trends"] for e in own["errors"] if number(e) is not None]
    if not errors:
        return Markup("")
    ends = (min(errors), max(errors))
    figures = []
    for k, own in enumerate(space["trends"]):
        values, label = [float(v) for v in own["dimension"]["values"]], str(own["label"])
        slope, intercept = np.polyfit(values, own["errors"], 1) if len(values) > 1 else (0.0, own["errors"][0])
        lines = [
            series("fitted", [values[0], values[-1]], [intercept + slope * v for v in (values[0], values[-1])], "line", 1),
            series("E-T error", values, own["errors"], "dots", 0),
        ]
        says = f"slope {own['slope']:+.2f} % a step".replace("-", "\u2212")
        goes = "stays" if list(own["after"]) == values else f"moves to {_listed(own['after'])}"
        measured = ", ".join(f"{e:.2f} % at {v:g}" for v, e in zip(values, own["errors"], strict=True))
        charts[f"trend-{t}-{k}"] = plot(
            f"{label}: E-T error {measured}; {says}", axis(""), axis("", "percent", *ends), lines, small=True, ticks=_few(values, 4)
        )
        figures.append(place(f"trend-{t}-{k}", label, several(says, None if last else tag("span", goes))))
    title = f"Space {t}: E-T error {space['et_error']:.2f} %" + (" (the last one)" if last else "")
    note = paragraph(
        "E-T error (%) against each dimension's values, and the fitted line; all charts of a space have one scale.", class_="note"
    )
    return several(tag("h3", title), note, grid(*figures, class_="small"))


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{v:g}" for v in values)


# --- how errors spread ---


def distributions(inputs: Inputs) -> Section | None:
    """The empirical distribution function of the errors of each space's networks."""
    spread = [
        (str(row.get("name")), row.get("errors") or []) for row in inputs.analysis.get("distributions") or [] if isinstance(row, dict)
    ]
    told = (
        "How large a share of a space's networks has an error up to so much (S3, figure 6): the further left and up, the better the space."
    )
    if not spread:
        spread = _from_histories(inputs)
        told += " Counted over all networks that were drawn to measure the spaces."
    found = [(name, [v for e in errors if (v := number(e)) is not None]) for name, errors in spread]
    found = [(name, errors) for name, errors in found if errors]
    if not found:
        return None
    lines = [series(f"{name} ({len(errors):,})", *distribution(errors), "step", k % 4, k // 4) for k, (name, errors) in enumerate(found)]
    middles = ", ".join(f"{name} {np.median(errors):.1f} %" for name, errors in found)
    chart = plot(
        f"Distribution of errors; medians: {middles}.",
        axis("error", "percent"),
        axis("networks with at most this error", "percent", 0, 100),
        lines,
    )
    return Section(
        "distributions",
        "How errors spread",
        several(paragraph(told), place("distributions", "Error distribution functions")),
        {"distributions": chart},
    )


def _from_histories(inputs: Inputs) -> list[tuple[str, list[Any]]]:
    """What evolving the space evaluated, space by space."""
    if not inputs.evolution:
        return []
    folders = [folder for t in range(inputs.recipe.evolve.rounds) if (folder := inputs.run.folder / "spaces" / str(t)).exists()]
    folders.append(inputs.run.folder)
    out: list[tuple[str, list[Any]]] = []
    for t, folder in enumerate(folders):
        drawn = [r for r in history(Run(folder)) if r.kind == "space" and "accuracy" in r.values]
        out.append((f"space {t}", [100 * (1 - r.values["accuracy"]) for r in drawn]))
    return out
