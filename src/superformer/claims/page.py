"""The page of all claims: a table of verdicts, then each claim with a drawing of every run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from superformer import files
from superformer.claims.declaration import LOW_IS_BETTER, declared, left_out
from superformer.claims.drawing import drawing, scale
from superformer.claims.summary import rows_of
from superformer.claims.verdict import LEAST

FILES = "claims"
"""The folder of the numbers and drawings, beside the page."""
BESIDE = {
    "kendall": ("pearson", "spearman"),
    "kendall_in_ranges": ("kendall_macs", "spearman_macs", "pearson_macs"),
    "kendall_macs": ("kendall_in_ranges", "spearman_macs", "pearson_macs"),
    "spread": ("least", "most"),
    "conflict": ("first_conflict", "last_conflict"),
    "et_error": ("expected_error", "best_error"),
}
"""What else is told of the runs of a measure, in its own unit."""
HEAD = f"""# The papers' claims, measured again

Made by `superformer claims` from the files in [claims/](claims); `superformer claims --seeds 0 --out docs` makes it
again without measuring anything. Each claim is an experiment at a size that two cores can afford: the same recipe with
one thing changed, several seeds, real pictures.

The rule: of each pair of arms that a claim compares, the differences of runs with the same seed, and the 95 % interval
of their mean (Student's t). A claim **holds** if every interval lies above zero, is **reversed** if one lies below (the
table says of which pair), and is otherwise **not seen at this scale**, which says nothing about other scales. {LEAST}
seeds are the least for a verdict.

With {LEAST} seeds an effect is seen if it is above 2.5 standard deviations of the difference, with 5 seeds above 1.24.
One interval in twenty misses the truth: if nothing had any effect, about {{wrong}} of {{claims}} claims would have a
verdict all the same. Seeds beyond the first {LEAST} were added after these had been seen.
"""


def write_page(claims: Sequence[dict[str, Any]], folder: Path) -> Path:
    """Write the page, ``FOLDER/claims.md``, and its drawings, which lie in ``FOLDER/claims`` beside the JSON files."""
    claims, known = [claim for claim in claims if claim["judged"]], declared()
    lines = [HEAD.format(claims=len(known), wrong=round(0.05 * len(known)))]
    lines += ["| claim | paper | verdict | difference | runs |", "|---|---|---|---|---|"]
    for claim in claims:
        main = claim["judged"][0]
        told = "; ".join(_difference(claim, d) for d in main["differences"])
        link = f"[{claim['title']}](#{claim['claim']})"
        where = f"{claim['paper']}, {claim['where']}"
        lines.append(f"| {link} | {where} | {_verdict(main)} | {told} | {main['runs']} |")
    seconds, machines = sum(claim["seconds"] for claim in claims), {r["machine"] for c in claims for r in c["runs"]}
    if machines:
        lines += ["", f"{seconds / 3600:.2g} hours in all, on: {'; '.join(sorted(machines))}."]
    for claim in claims:
        lines += ["", f'<a id="{claim["claim"]}"></a>', f"## {claim['title']}", "", *_section(claim, folder)]
    there = {claim["claim"] for claim in claims}
    waiting = [f"- {own.title}: `superformer claims {name}`" for name, own in known.items() if name not in there]
    lines += ["", "## Not run yet", "", *waiting] * bool(waiting)
    lines += ["", "## Not measured", ""]
    lines += [f"- {own.title} ({own.paper}, {own.where}): {own.why}" for own in left_out()]
    files.write(folder / "claims.md", "\n".join(lines) + "\n")
    return folder / "claims.md"


def _verdict(judged: dict[str, Any]) -> str:
    """Of several pairs, also which of them say so."""
    pairs, said = judged["differences"], judged["verdict"]
    own = [f"{d['better']} against {d['worse']}" for d in pairs if d["verdict"] == said]
    return f"{said} ({', '.join(own)})" if 0 < len(own) < len(pairs) else str(said)


def _section(claim: dict[str, Any], folder: Path) -> list[str]:
    """The longest trainings on each data set, with a drawing; others in a list."""
    out, seen = [f"{claim['paper']}, {claim['where']}. The paper: {claim['says']}", ""], dict[str, int]()
    shorter = []
    for judged in claim["judged"]:
        runs, pictures = rows_of(claim, judged), f"{judged['data']} {judged['pictures']}"
        if pictures in seen:
            shorter.append(_tried(claim, judged, runs))
            continue
        number = seen.setdefault(pictures, len(seen) + 1)
        name = f"{claim['claim']}{f'-{number}' if number > 1 else ''}.svg"
        files.write(folder / FILES / name, drawing(claim, runs, judged["differences"]))
        out += [f"![every run]({FILES}/{name})", ""]
        how = f"`{claim['recipe']}` on {judged['data']}, {_length(claim, judged, runs)}, {claim['equal']}."
        said = _verdict(judged)
        out += [f"{how} {said[0].upper()}{said[1:]}."]
        out += [f"- {_difference(claim, d)}" for d in judged["differences"]]
        out += [f"- {told}" for told in _means(claim, runs)]
        out += [f"- {_added(runs)}{_minutes(runs)} on {runs[0]['machine']}", ""]
    if shorter:
        out += ["Also tried:", *shorter, ""]
    arms = "; ".join(f"*{arm}*: `{' '.join(words) or 'as it is'}`" for arm, words in claim["arms"].items())
    all_have = f" All: `{' '.join(claim['common'])}`." if claim["common"] else ""
    return [*out, f"Arms: {arms}.{all_have}", *([f"\n{claim['note']}"] if claim["note"] else [])]


def _tried(claim: dict[str, Any], judged: dict[str, Any], runs: list[dict[str, Any]]) -> str:
    told = [_difference(claim, d) for d in judged["differences"]] + _means(claim, runs)[:1]
    return f"- {_length(claim, judged, runs)} on {judged['data']}: {_verdict(judged)}; {'; '.join(told)}"


def _length(claim: dict[str, Any], judged: dict[str, Any], runs: list[dict[str, Any]]) -> str:
    epochs = ", ".join(sorted({f"{r['epochs']:.3g}" for r in runs}, key=float))
    minutes = f"{judged['length']:.3g} minutes, " if claim["same"] == "minutes" else ""
    return f"{minutes}{epochs} epochs"


def _minutes(runs: list[dict[str, Any]]) -> str:
    return f"{sum(r['seconds'] for r in runs) / 60:.3g} minutes"


def _added(runs: list[dict[str, Any]]) -> str:
    """Seeds that nobody had planned."""
    more = len({r["seed"] for r in runs}) - LEAST
    return f"{more} seeds were added after the first {LEAST} had been seen; " if more > 0 else ""


def _means(claim: dict[str, Any], runs: list[dict[str, Any]]) -> list[str]:
    """A line for the measure, and one for each that is told beside it."""
    factor, out = scale(claim["measure"])[0], list[str]()
    for name in (claim["measure"], *BESIDE.get(claim["measure"], ())):
        by = {
            arm: [r["values"][name] for r in runs if r["arm"] == arm and name in r["values"]] for arm in claim["arms"]
        }
        if told := ", ".join(f"{arm} {factor * statistics.fmean(some):.4g}" for arm, some in by.items() if some):
            out.append(f"{'means' if not out else name.replace('_', ' ')}: {told}")
    return out


def _difference(claim: dict[str, Any], found: dict[str, Any]) -> str:
    factor = scale(claim["measure"])[0]
    low, high = (None if found[k] is None else factor * found[k] for k in ("low", "high"))
    around = "one seed" if low is None else f"{low:+.3g} to {high:+.3g}"
    mean = factor * found["mean"]
    lower = " (lower is better)" if claim["measure"] in LOW_IS_BETTER else ""
    margin = f" (as good: above {-factor * claim['margin']:+.3g})" if claim["margin"] else ""
    seeds = f"{found['seeds']} seeds"
    return f"{found['better']} better than {found['worse']} by {mean:+.3g}{lower}{margin}: {around}, {seeds}"
