"""Every number of every run of a claim, in one SQLite file; and as small JSON files."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from superformer import files
from superformer.claims.declaration import Claim
from superformer.claims.verdict import Values, differences, verdict
from superformer.data.sources import label as label
from superformer.errors import SuperformerError

SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    claim TEXT, data TEXT, arm TEXT, seed INTEGER, epochs REAL, vals TEXT, seconds REAL, machine TEXT,
    PRIMARY KEY (claim, data, arm, seed)
);
CREATE TABLE IF NOT EXISTS lengths (alike TEXT, data TEXT, epochs REAL, PRIMARY KEY (alike, data));
"""


class Store:
    """What has been measured. A number is there as soon as its run is done."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.db = sqlite3.connect(path, isolation_level=None, timeout=60)
            self.db.executescript(SCHEMA)
        except sqlite3.DatabaseError as error:
            raise SuperformerError(f"{path} cannot be read as a file of claims ({error}): move it away") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.db.close()

    def put(self, key: tuple[str, str, str, int], epochs: float, values: Mapping[str, float], seconds: float,
            machine: str) -> None:  # fmt: skip
        row = (*key, epochs, json.dumps(dict(values)), seconds, machine)
        self.db.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def has(self, key: tuple[str, str, str, int]) -> bool:
        claim, data, arm, seed = key
        where = "claim = ? AND data IN (?, ?) AND arm = ? AND seed = ?"
        found = self.db.execute(f"SELECT 1 FROM runs WHERE {where}", (claim, data, label(data), arm, seed))
        return found.fetchone() is not None

    def learn(self, claim: str, file: Path, alike: Callable[[str], str]) -> None:
        """Runs of an exported file that are not here: those of another machine, say. They know their pictures by name
        alone (`label`). ``alike``: what runs of an arm are as long as (`Claim.length`)."""
        if not file.exists():
            return
        known = {(row["data"], row["arm"], row["seed"]) for row in self.rows(claim)}
        with files.understood(file, "delete it, or name another --out"):
            for row in json.loads(file.read_text("utf-8"))["runs"]:
                data, arm, seed = str(row["data"]), str(row["arm"]), int(row["seed"])
                values = {str(name): float(value) for name, value in row["values"].items()}
                if (data, arm, seed) not in known:
                    self.length(alike(arm), data, float(row["epochs"]))
                    key = claim, data, arm, seed
                    self.put(key, float(row["epochs"]), values, float(row["seconds"]), str(row["machine"]))

    def length(self, alike: str, data: str, epochs: float | None = None) -> float | None:
        """The epochs of all runs that are equally long; set once."""
        if epochs is not None:
            self.db.execute("INSERT OR IGNORE INTO lengths VALUES (?, ?, ?)", (alike, data, epochs))
        where = "alike = ? AND data IN (?, ?)"
        found = self.db.execute(f"SELECT epochs FROM lengths WHERE {where}", (alike, data, label(data))).fetchone()
        return float(found[0]) if found else None

    def rows(self, claim: str) -> list[dict[str, Any]]:
        names = ("data", "arm", "seed", "epochs", "values", "seconds", "machine")
        found = self.db.execute(
            "SELECT data, arm, seed, epochs, vals, seconds, machine FROM runs WHERE claim = ? ORDER BY data, arm, seed",
            (claim,),
        )
        rows = [dict(zip(names, row, strict=True)) for row in found]
        return [{**row, "data": label(row["data"]), "values": json.loads(row["values"])} for row in rows]


def summary(name: str, claim: Claim, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What is known of a claim: its runs, the paired differences, the verdict. Of several data sets each by itself; the
    verdict is that of the one with most runs."""
    by_data: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_data.setdefault(row["data"], []).append(row)
    judged = []
    for data, some in by_data.items():
        values: dict[str, dict[int, float]] = {}
        for row in some:
            if claim.measure in row["values"]:
                values.setdefault(row["arm"], {})[row["seed"]] = row["values"][claim.measure]
        judged.append({"data": data, **_judged(claim, values), "runs": len(some)})
    main = max(judged, key=lambda j: j["runs"], default=None)
    runs = [{**row, "value": row["values"].get(claim.measure)} for row in rows]
    about = {"claim": name, **claim.model_dump(mode="json")}
    found = {"verdict": main["verdict"] if main else verdict([], 1), "judged": judged, "runs": runs}
    return about | found | {"seconds": sum(row["seconds"] for row in rows)}


def _judged(claim: Claim, values: Values) -> dict[str, Any]:
    found = differences(values, claim.order, claim.low_is_better)
    rows = [{k: None if isinstance(v, float) and math.isinf(v) else v for k, v in asdict(d).items()} for d in found]
    return {"differences": rows, "verdict": verdict(found, len(claim.order) - 1)}


def export(name: str, claim: Claim, store: Store, folder: Path) -> dict[str, Any]:
    """Write what is known of a claim as ``FOLDER/NAME.json``."""
    found = summary(name, claim, store.rows(name))
    files.write(folder / f"{name}.json", json.dumps(found, indent=1) + "\n")
    return found
