"""The page of all claims: a table of verdicts, then each claim with a drawing of every run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from superformer import files
from superformer.claims.declaration import LOW_IS_BETTER, declared, left_out

FILES = "claims"
"""The folder of the numbers and drawings, beside the page."""
WIDTH, ROW, LEFT, RIGHT, TOP = 720, 34, 190, 30, 14
COLOURS = ("#2a6fbb", "#c8651b", "#3a8f4d", "#8a4fa3", "#7a7a7a", "#b03a48", "#4a9a9a", "#a08a2a")
UNITS = {
    "late_loss": (1.0, "loss"),
    "kendall": (1.0, "Kendall's tau"),
    "kendall_macs": (1.0, "Kendall's tau"),
    "conflict": (1.0, "share of layers in conflict"),
    "ratio": (1.0, "of the mean of all networks"),
    "et_error": (1.0, "percent"),
    "spread": (100.0, "percent, standard deviation on the test pictures"),
}
"""A factor and a unit to tell values in; all others are accuracies."""
HEAD = """# The papers' claims, measured again

Made by `superformer claims` from the files in [claims/](claims). Each claim is an experiment at a size that two cores
can afford: the same recipe with one thing changed, several seeds, real pictures. The rule: of each two neighbouring
arms the differences of runs with the same seed, and the 95 % interval of their mean (Student's t). A claim **holds** if
every interval lies above zero, is **reversed** if one lies below, and is otherwise **not seen at this scale**, which
says nothing about other scales. Dots are runs, bars their means.
"""


def write_page(claims: Sequence[dict[str, Any]], folder: Path) -> Path:
    """Write the page, ``FOLDER/claims.md``, and its drawings, which lie in ``FOLDER/claims`` beside the JSON files."""
    lines = [HEAD]
    lines += ["| claim | paper | verdict | difference | runs |", "|---|---|---|---|---|"]
    for claim in claims:
        told = "; ".join(_difference(claim, d) for d in _main(claim)["differences"]) if claim["judged"] else ""
        link = f"[{claim['title']}](#{claim['claim']})"
        where = f"{claim['paper']}, {claim['where']}"
        lines.append(f"| {link} | {where} | {claim['verdict']} | {told} | {len(claim['runs'])} |")
    seconds, machines = sum(claim["seconds"] for claim in claims), {r["machine"] for c in claims for r in c["runs"]}
    if machines:
        lines += ["", f"{seconds / 3600:.2g} hours in all, on: {'; '.join(sorted(machines))}."]
    for claim in claims:
        lines += ["", f'<a id="{claim["claim"]}"></a>', f"## {claim['title']}", "", *_section(claim, folder)]
    known = {claim["claim"] for claim in claims}
    waiting = [f"- {own.title}: `superformer claims {name}`" for name, own in declared().items() if name not in known]
    lines += ["", "## Not run yet", "", *waiting] * bool(waiting)
    lines += ["", "## Not measured", ""]
    lines += [f"- {own.title} ({own.paper}, {own.where}): {own.why}" for own in left_out()]
    files.write(folder / "claims.md", "\n".join(lines) + "\n")
    return folder / "claims.md"


def _main(claim: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = max(claim["judged"], key=lambda j: j["runs"])
    return found


def _section(claim: dict[str, Any], folder: Path) -> list[str]:
    out = [f"{claim['paper']}, {claim['where']}. The paper: {claim['says']}", ""]
    for judged in claim["judged"]:
        runs = [r for r in claim["runs"] if r["data"] == judged["data"] and r["value"] is not None]
        epochs = sorted({f"{r['epochs']:.3g}" for r in runs})
        seconds = sum(r["seconds"] for r in runs)
        place = claim["judged"].index(judged)
        name = f"{claim['claim']}{f'-{place + 1}' if place else ''}.svg"
        files.write(folder / FILES / name, drawing(claim, runs))
        out += [f"![every run]({FILES}/{name})", ""]
        how = f"`{claim['recipe']}` on {judged['data']}, {', '.join(epochs)} epochs, {claim['equal']}."
        out += [f"{how} {judged['verdict'].capitalize()}."]
        out += [f"- {_difference(claim, d)}" for d in judged["differences"]]
        out += [f"- means: {_means(claim, runs)}"]
        out += [f"- {seconds / 60:.3g} minutes on {runs[0]['machine']}" if runs else "", ""]
    arms = "; ".join(f"*{arm}*: `{' '.join(words) or 'as it is'}`" for arm, words in claim["arms"].items())
    return [*out, f"Arms: {arms}.", *([f"\n{claim['note']}"] if claim["note"] else [])]


def _scale(claim: dict[str, Any]) -> tuple[float, str]:
    return UNITS.get(claim["measure"], (100.0, "percent of the test pictures"))


def _means(claim: dict[str, Any], runs: Sequence[dict[str, Any]]) -> str:
    factor, by = _scale(claim)[0], {arm: [r["value"] for r in runs if r["arm"] == arm] for arm in claim["arms"]}
    return ", ".join(f"{arm} {factor * sum(some) / len(some):.4g}" for arm, some in by.items() if some)


def _difference(claim: dict[str, Any], found: dict[str, Any]) -> str:
    factor = _scale(claim)[0]
    low, high = (None if found[k] is None else factor * found[k] for k in ("low", "high"))
    around = "one seed" if low is None else f"{low:+.3g} to {high:+.3g}"
    mean = factor * found["mean"]
    lower = " (lower is better)" if claim["measure"] in LOW_IS_BETTER else ""
    return f"{found['better']} better than {found['worse']} by {mean:+.3g}{lower}: {around}, {found['seeds']} seeds"


def _marks(low: float, high: float) -> list[float]:
    """Some round numbers between two."""
    rough = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * by for by in (1, 2, 5, 10) if size * by >= rough)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def drawing(claim: dict[str, Any], runs: Sequence[dict[str, Any]]) -> str:
    """Every run a dot, a row for each arm, the means as bars."""
    factor, unit = _scale(claim)
    arms = list(claim["arms"])
    values = {arm: [factor * r["value"] for r in runs if r["arm"] == arm] for arm in arms}
    every = [v for some in values.values() for v in some] or [0.0, 1.0]
    low, high = min(every), max(every)
    room = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    low, high = low - room, high + room
    height = TOP + ROW * len(arms) + 42

    def x(value: float) -> float:
        return float(LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT))

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        f"<title>{escape(claim['title'])}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    bottom = TOP + ROW * len(arms)
    for value in _marks(low, high):
        out.append(f'<line x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{TOP}" y2="{bottom}" stroke="#e4e4e4"/>')
        out.append(f'<text x="{x(value):.1f}" y="{bottom + 17}" text-anchor="middle" fill="#444">{value:.4g}</text>')
    out.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{bottom + 35}" text-anchor="middle" fill="#444">{unit}</text>'
    )
    for k, arm in enumerate(arms):
        y, colour = TOP + ROW * (k + 0.5), COLOURS[k % len(COLOURS)]
        out.append(f'<text x="{LEFT - 12}" y="{y + 4:.1f}" text-anchor="end">{escape(arm)}</text>')
        for value in values[arm]:
            out.append(f'<circle cx="{x(value):.1f}" cy="{y:.1f}" r="5" fill="{colour}" fill-opacity="0.65"/>')
        if values[arm]:
            mean = x(sum(values[arm]) / len(values[arm]))
            line = f'<line x1="{mean:.1f}" x2="{mean:.1f}" y1="{y - 12:.1f}" y2="{y + 12:.1f}"'
            out.append(f'{line} stroke="{colour}" stroke-width="3"/>')
    return "\n".join([*out, "</svg>", ""])
