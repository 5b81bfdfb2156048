"""Every number of every run of claims, in one SQLite file. A run is told by its claim, pictures, arm, seed, length and
the words that it was run with: measured longer, or declared otherwise, it is another one, and both are kept."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from superformer import files
from superformer.claims.declaration import LIMITED, Claim
from superformer.data import sources
from superformer.data.stores import digest
from superformer.errors import SuperformerError

SCHEMA = """
CREATE TABLE IF NOT EXISTS measured (
    claim TEXT, data TEXT, pictures TEXT, arm TEXT, seed INTEGER, length REAL, words TEXT,
    epochs REAL, vals TEXT, seconds REAL, machine TEXT,
    PRIMARY KEY (claim, data, pictures, arm, seed, length, words)
);
CREATE TABLE IF NOT EXISTS lengths (alike TEXT, data TEXT, epochs REAL, PRIMARY KEY (alike, data));
"""
COLUMNS = ("claim", "data", "pictures", "arm", "seed", "length", "words", "epochs", "vals", "seconds", "machine")


@dataclass(frozen=True)
class Pictures:
    """Pictures by the name of their file or folder, wherever it lies, and a hash of them: others may have the name.
    Runs of an earlier version have no hash, and count for any pictures of their name."""

    data: str
    hash: str = ""

    @staticmethod
    def of(spec: str) -> Pictures:
        known = sources.resolve(spec).train
        return Pictures(sources.label(spec), digest([known.store.digest().encode(), known.labels.tobytes()])[:12])


@dataclass(frozen=True)
class Key:
    """A run. ``length``: the epochs of its trainings; of arms with equal times, minutes."""

    claim: str
    pictures: Pictures
    arm: str
    seed: int
    length: float
    words: str


class Store:
    """What has been measured. A number is there as soon as its run is done."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.db = sqlite3.connect(path, isolation_level=None, timeout=60)
            self.db.executescript(SCHEMA)
            self._take_over()
        except sqlite3.DatabaseError as error:
            raise SuperformerError(f"{path} cannot be read as a file of claims ({error}): move it away") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.db.close()

    def _take_over(self) -> None:
        """The rows of an earlier version. With which words they were run, the files say that were made of them
        (`learn`)."""
        if not self.db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'runs'").fetchone():
            return
        old = self.db.execute("SELECT claim, data, arm, seed, epochs, vals, seconds, machine FROM runs").fetchall()
        self.db.execute("BEGIN IMMEDIATE")
        for claim, data, arm, seed, epochs, *rest in old:
            self._insert((claim, sources.label(data), "", arm, seed, epochs, "", epochs, *rest), "IGNORE")
        self.db.execute("DROP TABLE runs")
        self.db.execute("COMMIT")

    def _insert(self, row: tuple[Any, ...], otherwise: str) -> None:
        places = ", ".join("?" * len(COLUMNS))
        self.db.execute(f"INSERT OR {otherwise} INTO measured ({', '.join(COLUMNS)}) VALUES ({places})", row)

    def put(self, key: Key, epochs: float, values: Mapping[str, float], seconds: float, machine: str) -> None:
        who = (key.claim, key.pictures.data, key.pictures.hash, key.arm, key.seed, key.length, key.words)
        self._insert((*who, epochs, json.dumps(dict(values)), seconds, machine), "REPLACE")

    def has(self, key: Key) -> bool:
        """Whether it was run, with these pictures as far as is known."""
        same = "claim = ? AND data = ? AND arm = ? AND seed = ? AND length = ? AND words = ?"
        who = (key.claim, key.pictures.data, key.arm, key.seed, key.length, key.words)
        where, hashed = f"{same} AND (pictures IN ('', ?) OR ? = '')", key.pictures.hash
        found = self.db.execute(f"SELECT 1 FROM measured WHERE {where}", (*who, hashed, hashed))
        return found.fetchone() is not None

    def learn(self, claim: str, file: Path) -> None:
        """Runs of an exported file that are not here: those of another machine or process, say, or of an earlier
        version, whose words are those of its declaration."""
        if not file.exists():
            return
        again = "delete it: superformer claims writes it again from what it knows"
        tree = files.read_object(file, again)
        try:
            for arm in tree["arms"] if "place" not in tree else ():  # of an earlier version
                named = "UPDATE OR IGNORE measured SET words = ? WHERE claim = ? AND arm = ? AND words = ''"
                self.db.execute(named, (_words(tree, arm), claim, arm))
            for row in [*tree["runs"], *tree.get("others", [])]:
                words = row["words"] if "words" in row else _words(tree, row["arm"])
                length, pictures = (
                    float(row.get("length", row["epochs"])),
                    Pictures(row["data"], row.get("pictures", "")),
                )
                key = Key(claim, pictures, row["arm"], int(row["seed"]), length, words)
                if not self.has(key):
                    self.put(key, float(row["epochs"]), row["values"], float(row["seconds"]), str(row["machine"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise files.DamagedError(
                f"{file} does not hold what superformer writes there ({error!r}): {again}"
            ) from error

    def length(self, alike: str, data: str, epochs: float | None = None) -> float | None:
        """Of all runs that are equally long, where a budget has said it; set once."""
        if epochs is not None:
            self.db.execute("INSERT OR IGNORE INTO lengths VALUES (?, ?, ?)", (alike, data, epochs))
        where = "alike = ? AND data IN (?, ?)"
        found = self.db.execute(
            f"SELECT epochs FROM lengths WHERE {where}", (alike, data, sources.label(data))
        ).fetchone()
        return float(found[0]) if found else None

    def rows(self, claim: str) -> list[dict[str, Any]]:
        names = ("data", "pictures", "arm", "seed", "length", "epochs", "words", "vals", "seconds", "machine")
        order = "data, pictures, length, arm, seed, words"
        found = self.db.execute(f"SELECT {', '.join(names)} FROM measured WHERE claim = ? ORDER BY {order}", (claim,))
        rows = [dict(zip(names, row, strict=True)) for row in found]
        return [{**{k: v for k, v in row.items() if k != "vals"}, "values": json.loads(row["vals"])} for row in rows]


def _words(tree: Mapping[str, Any], arm: str) -> str:
    """The words of an arm in a file of an earlier version, which holds the whole declaration. Its searches had other
    limits, and what they found was tuned, not trained anew: none of today's words."""
    own = Claim.model_validate({name: tree[name] for name in Claim.model_fields if name in tree})
    return own.words(arm) if arm in own.arms and own.measure not in LIMITED else ""
