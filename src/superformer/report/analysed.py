"""What ``analysis.json`` tells: how well the supernet ranks, three ways to get weights, what seeds agree on, how far blocks look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from superformer.report.charts import axis, plot, series
from superformer.report.inputs import Inputs, Row
from superformer.report.markup import Markup, pairs, paragraph, table
from superformer.report.section import Chart, Section, grid, place, several
from superformer.report.words import number, percent

COEFFICIENTS = {"pearson": "Pearson", "spearman": "Spearman", "kendall": "Kendall"}


def rows_of(inputs: Inputs, part: str) -> list[Row]:
    """A list of an analysis; a part that is one object is a list of one."""
    found = inputs.analysis.get(part)
    return [row for row in (found if isinstance(found, list) else [found]) if isinstance(row, dict)]


def correlations(inputs: Inputs) -> Section | None:
    """Accuracy in the supernet against that of the networks by themselves, and against MACs (ViTAS v2, figure 5)."""
    parts = [("accuracy in the supernet", "percent", 100.0, "accuracy by itself", row) for row in rows_of(inputs, "correlations")]
    parts += [("MACs", "amount", 1.0, "accuracy in the supernet", row) for row in rows_of(inputs, "budgets")]
    if not parts:
        return None
    figures: list[Markup] = []
    charts: dict[str, Chart] = {}
    lines: list[list[object]] = []
    for k, (x, quantity, times, y, row) in enumerate(parts):
        dots = [(times * p[0], 100 * p[1]) for p in row.get("points") or [] if _pair(p)]
        if dots:
            label = f"{row.get('name')}: {len(dots)} networks, Spearman's correlation {_coefficient(row, 'spearman')}."
            drawn = series("networks", [a for a, _ in dots], [b for _, b in dots], "dots", 0)
            charts[f"correlation-{k}"] = plot(label, axis(x, quantity), axis(y, "percent"), [drawn])
            figures.append(place(f"correlation-{k}", row.get("name")))
        lines.append([row.get("name"), len(dots), *(_coefficient(row, name) for name in COEFFICIENTS)])
        for part in row.get("groups") or []:
            lines.append([f"of {part.get('name')} MACs", part.get("n"), *(_coefficient(part, name) for name in COEFFICIENTS)])
    told = "Whether the supernet ranks networks as they rank by themselves (ViTAS v2, figure 5). In brackets: what holds 95 % of resamples."
    listed = table(["between", "networks", *COEFFICIENTS.values()], lines, "Correlations")
    return Section("correlations", "How well the supernet ranks", several(paragraph(told), grid(*figures), listed), charts)


def _pair(point: object) -> bool:
    return isinstance(point, Sequence) and len(point) == 2 and None not in map(number, point)


def _coefficient(row: Mapping[str, Any], name: str) -> str:
    value = number(row.get(name))
    ends = (row.get("intervals") or {}).get(name)
    said = "\u2013" if value is None else f"{value:.2f}"
    return (f"{said} ({ends[0]:.2f} to {ends[1]:.2f})" if ends else said).replace("-", "\u2212")


def weights(inputs: Inputs) -> Section | None:
    """Several networks, each with inherited, fine-tuned and new weights (S3, figure 5)."""
    ways = {"inherited": 4, "finetuned": 0, "scratch": 1}
    rows = [row for row in rows_of(inputs, "weights") if all(number(row.get(way)) is not None for way in ways)]
    if not rows:
        return None
    rows.sort(key=lambda row: float(row["inherited"]))
    names = {"inherited": "inherited", "finetuned": "fine-tuned", "scratch": "from scratch"}
    x = list(range(1, len(rows) + 1))
    lines = [series(names[way], x, [100 * row[way] for row in rows], "both", colour) for way, colour in ways.items()]
    middle = {way: sum(float(row[way]) for row in rows) / len(rows) for way in ways}
    label = "Accuracy on the search split, on average: " + ", ".join(f"{names[way]} {percent(middle[way])}" for way in ways) + "."
    chart = plot(label, axis("network", "whole"), axis("accuracy, search split", "percent"), lines, together=True)
    told = (
        f"{len(rows)} random networks, each with the weights it has in the supernet, fine-tuned, and from scratch (S3, figure 5). {label}"
    )
    return Section(
        "weights", "Three ways to get weights", several(paragraph(told), place("weights", "Accuracy by network")), {"weights": chart}
    )


def seeds(inputs: Inputs) -> Section | None:
    """What searches with other seeds find."""
    found = next(iter(rows_of(inputs, "seeds")), {})
    best, shared = found.get("best") or {}, found.get("overlap") or {}
    steps = [row for row in found.get("attainment") or [] if number(row.get("mean")) is not None]
    if not steps:
        return None
    x = [row["macs"] for row in steps]
    lines = [series(title, x, [100 * row[name] for row in steps], "step", colour, dash) for name, title, colour, dash in (
        ("least", "worst seed", 4, 1), ("most", "best seed", 4, 2), ("mean", "mean", 1, 0))]  # fmt: skip
    label = f"Best accuracy within a budget of MACs over {found.get('seeds')} searches."
    chart = plot(label, axis("MACs, at most", "amount"), axis("best accuracy, search split", "percent"), lines, together=True)
    facts: list[tuple[object, object]] = [
        ("searches", found.get("seeds")),
        ("best accuracy", f"{percent(best.get('mean'))} \u00b1 {percent(best.get('std'))}"),
        ("architectures that two fronts share", percent(shared.get("jaccard"), 0)),
        (
            "distance to the nearest of another front",
            f"{number(shared.get('distance')) or 0:.2f} (0: the same, 1: the opposite in every choice)",
        ),
    ]
    told = "The same search with several seeds: how much of what was found is chance."
    return Section(
        "seeds", "Several seeds", several(paragraph(told), pairs(facts), place("seeds", "Best accuracy within a budget")), {"seeds": chart}
    )


def attention(inputs: Inputs) -> Section | None:
    """How far each block looks (S3, figure 4)."""
    rows = [row for row in rows_of(inputs, "attention") if number(row.get("mean")) is not None]
    if not rows:
        return None
    names = [str(row.get("block")) for row in rows]
    kinds = [("top5", "top 5 keys", 1), ("top10", "top 10 keys", 0), ("mean", "all keys, by their attention", 4)]
    lines = [series(title, list(range(len(rows))), [row.get(name) for row in rows], "both", colour) for name, title, colour in kinds]
    each = ", ".join(f"block {name} {row['mean']:.1f}" for name, row in zip(names, rows, strict=True))
    label = f"Mean distance in pixels to the keys attended to: {each}."
    chart = plot(label, axis("block", "whole", names=names), axis("distance (pixels)", low=0), lines, together=True)
    told = f"How far the keys are that a query attends to most, in {rows[0].get('arch')} (S3, figure 4); 2-3 is stage 2, block 3."
    return Section(
        "attention", "How far blocks look", several(paragraph(told), place("attention", "Distance of attention")), {"attention": chart}
    )
