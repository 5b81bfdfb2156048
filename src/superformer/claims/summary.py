"""What is known of a claim: its runs, the paired differences, the verdict; as a small JSON file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from superformer import files
from superformer.claims.declaration import Claim
from superformer.claims.store import Store
from superformer.claims.verdict import LEAST, OPEN, Difference, differences, verdict

Row = dict[str, Any]


def summary(name: str, claim: Claim, rows: list[Row]) -> dict[str, Any]:
    """Of several data sets, and of trainings of several lengths, each by itself: the verdict is that of the longest one
    with enough seeds of every arm. ``others``: runs with other words than the arm has now; they do not count."""
    runs, others = list[Row](), list[Row]()
    for row in rows:
        own = row["arm"] in claim.arms and row["words"] == claim.words(row["arm"])
        (runs if own and claim.measure in row["values"] else others).append(row)
    groups: dict[tuple[str, str, float], list[Row]] = {}
    hashes = {row["data"]: row["pictures"] for row in runs if row["pictures"]}
    for row in runs:
        pictures = row["pictures"] or hashes.get(row["data"], "")
        groups.setdefault((row["data"], pictures, row["length"]), []).append(row)
    judged = [{"data": d, "pictures": p, "length": n, **_judged(claim, some)} for (d, p, n), some in groups.items()]
    judged.sort(key=lambda j: (min(j["seeds"], LEAST), j["length"], j["runs"]), reverse=True)
    told = [{**row, "value": row["values"][claim.measure]} for row in runs]
    found = {"verdict": judged[0]["verdict"] if judged else OPEN, "judged": judged, "runs": told, "others": others}
    return {"claim": name, **claim.model_dump(mode="json"), **found, "seconds": sum(row["seconds"] for row in runs)}


def _judged(claim: Claim, rows: list[Row]) -> dict[str, Any]:
    values: dict[str, dict[int, float]] = {}
    for row in rows:
        values.setdefault(row["arm"], {})[row["seed"]] = row["values"][claim.measure]
    found = differences(values, claim.compared, claim.low_is_better)
    whole = len(found) == len(claim.compared)
    said = verdict(found, len(claim.compared), claim.margin)
    seeds = min(d.seeds for d in found) if whole else 0
    return {"differences": [_told(d, claim.margin) for d in found], "verdict": said, "seeds": seeds, "runs": len(rows)}


def _told(found: Difference, margin: float) -> dict[str, Any]:
    row: Mapping[str, Any] = asdict(found) | {"each": list(found.each), "verdict": found.said(margin)}
    return {k: None if isinstance(v, float) and math.isinf(v) else v for k, v in row.items()}


def rows_of(claim: Mapping[str, Any], judged: Mapping[str, Any]) -> list[Row]:
    """The runs that were judged together."""

    def same(row: Row) -> bool:
        pictures = row["pictures"] in ("", judged["pictures"])
        return bool(pictures and row["data"] == judged["data"] and row["length"] == judged["length"])

    return [row for row in claim["runs"] if same(row)]


def export(name: str, claim: Claim, store: Store, folder: Path) -> dict[str, Any]:
    """Write what is known of a claim as ``FOLDER/NAME.json``, if anything is."""
    rows = store.rows(name)
    found = summary(name, claim, rows)
    if rows:
        files.write(folder / f"{name}.json", json.dumps(found, indent=1) + "\n")
    return found
