"""The history of evaluations: ``history.db`` of a run, an SQLite database.

What was evaluated is never evaluated again: not after a crash, and not in another search with other limits. An
evaluation belongs to an architecture, the weights of the supernet and the pictures it was evaluated on; the last two
are told by their fingerprints when a history is opened, and nothing of other weights or other pictures is ever given
back. What `History.put` was told is on the disk when it returns."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from superformer import files
from superformer.errors import StoppedError, SuperformerError

VERSION = 2
MARK = 0x53466873
"""What the header of the file says (SQLite's ``application_id``), so that no other database is taken for a history."""

SCHEMA = f"""
PRAGMA application_id = {MARK};
PRAGMA user_version = {VERSION};
CREATE TABLE subjects (id INTEGER PRIMARY KEY, weights TEXT NOT NULL, split TEXT NOT NULL, \
checksum TEXT, UNIQUE (weights, split));
CREATE TABLE searches (id INTEGER PRIMARY KEY, subject INTEGER NOT NULL REFERENCES subjects, settings TEXT NOT NULL, \
time REAL NOT NULL, checksum TEXT);
CREATE TABLE evaluations (
  id INTEGER PRIMARY KEY,
  subject INTEGER NOT NULL REFERENCES subjects,
  key TEXT NOT NULL,
  arch TEXT NOT NULL,
  "values" TEXT NOT NULL,
  seconds REAL NOT NULL,
  kind TEXT NOT NULL,
  search INTEGER REFERENCES searches,
  round INTEGER NOT NULL,
  time REAL NOT NULL,
  checksum TEXT,
  UNIQUE (subject, key)
);
"""
COLUMNS = {
    "subjects": "id, weights, split",
    "searches": "id, subject, settings, time",
    "evaluations": 'id, subject, key, arch, "values", seconds, kind, search, round, time',
}
"""What the checksum of a row is of; version 1 had none."""


class HistoryError(SuperformerError):
    """A history that cannot be used, or an evaluation that does not belong into one."""


@dataclass(frozen=True)
class Evaluation:
    """What an architecture reached.

    ``values``: accuracy, macs, params, latency and the like. ``seconds``: what it took. ``kind``: how the architecture
    came about (random, mutation, crossover, ...)."""

    key: str
    arch_json: str
    values: Mapping[str, float]
    seconds: float = 0.0
    kind: str = ""


@dataclass(frozen=True)
class Record(Evaluation):
    """An evaluation with the search and the round it was made in; ``time`` in seconds since 1970."""

    search: int | None = None
    method: str = ""
    round: int = 0
    time: float = 0.0


@dataclass(frozen=True)
class Search:
    """A search that used the history, with its settings."""

    id: int
    settings: Mapping[str, Any]
    time: float


class History:
    """The evaluations of one supernet (``weights``) on one part of the data (``split``).

    One process writes; any number may read meanwhile. ``readonly`` opens a history that is there already and never
    changes it."""

    def __init__(self, path: str | Path, weights: str, split: str, *, readonly: bool = False):
        self.path, self.readonly = Path(path), readonly
        if not self.path.exists():
            if readonly:
                raise HistoryError(f"there is no history {self.path}: a search makes one")
            _create(self.path)
        reader = _reader(self.path)  # looks before anything can change
        self._db = reader if readonly else _writer(self.path, reader)
        try:
            self._subject = self._find_subject(weights, split)
        except BaseException:
            self.close()
            raise

    @classmethod
    def latest(cls, path: str | Path, weights: str) -> Self | None:
        """To read: of these weights, on the pictures they were searched with last; None if nothing is known of them."""
        query = """SELECT split FROM subjects LEFT JOIN searches ON searches.subject = subjects.id WHERE weights = ?
                   ORDER BY COALESCE(searches.time, 0) DESC, subjects.id DESC LIMIT 1"""
        with closing(_reader(Path(path))) as db, _explained(Path(path)):
            found = db.execute(query, (weights,)).fetchone()
        return None if found is None else cls(path, weights, found[0], readonly=True)

    def _find_subject(self, weights: str, split: str) -> int | None:
        with _explained(self.path):
            query = "SELECT id FROM subjects WHERE weights = ? AND split = ?"
            row = self._db.execute(query, (weights, split)).fetchone()
        if row is not None or self.readonly:
            return None if row is None else int(row[0])
        with self._change():
            query = "INSERT INTO subjects (weights, split) VALUES (?, ?)"
            return self._sealed("subjects", self._db.execute(query, (weights, split)).lastrowid)

    def _sealed(self, table: str, number: int | None) -> int:
        """The number of a row that was written, now with its checksum."""
        assert number is not None
        row = self._db.execute(f"SELECT {COLUMNS[table]} FROM {table} WHERE id = ?", (number,)).fetchone()
        self._db.execute(f"UPDATE {table} SET checksum = ? WHERE id = ?", (_checksum(row), number))
        return number

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def get(self, keys: Sequence[str]) -> dict[str, dict[str, float]]:
        """What is known of these architectures; those never evaluated are left out."""
        with _explained(self.path):
            return {key: self._numbers(row[1]) for key in keys if (row := self._one(key)) is not None}

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What a query about this subject finds."""
        with _explained(self.path):
            return self._db.execute(query, (self._subject, *values)).fetchall()

    def _one(self, key: str) -> tuple[int, str] | None:
        query = 'SELECT id, "values" FROM evaluations WHERE subject = ? AND key = ?'
        row: tuple[int, str] | None = self._db.execute(query, (self._subject, key)).fetchone()
        return row

    def _numbers(self, text: str) -> dict[str, float]:
        return {str(name): float(value) for name, value in self._object(text).items()}

    def _object(self, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except ValueError as error:
            raise _corrupt(self.path, error) from error
        if not isinstance(found, dict):
            raise _corrupt(self.path, f"{text!r} is not an object")
        return found

    def all(self) -> list[Record]:
        """Every evaluation, in the order in which they were first told."""
        columns = 'key, arch, "values", seconds, kind, search, round, time'
        methods = {search.id: str(search.settings.get("method", "")) for search in self.searches()}
        rows = self._rows(f"SELECT {columns} FROM evaluations WHERE subject = ? ORDER BY id")
        return [
            Record(r[0], r[1], self._numbers(r[2]), r[3], r[4], r[5], methods.get(r[5], ""), r[6], r[7]) for r in rows
        ]

    def searches(self) -> list[Search]:
        """The searches in this history, first to last."""
        rows = self._rows("SELECT id, settings, time FROM searches WHERE subject = ? ORDER BY id")
        return [Search(number, self._object(settings), begun) for number, settings, begun in rows]

    def __len__(self) -> int:
        return int(self._rows("SELECT COUNT(*) FROM evaluations WHERE subject = ?")[0][0])

    @property
    def others(self) -> int:
        """How many evaluations of other weights or other data the file holds."""
        return int(self._rows("SELECT COUNT(*) FROM evaluations WHERE subject IS NOT ?")[0][0])

    def begin_search(self, settings_json: str) -> int:
        """Note a search and its settings, a JSON object (``method`` is shown beside evaluations); its number."""
        try:
            settings = json.loads(settings_json)
        except ValueError as error:
            raise HistoryError(f"the settings of a search must be JSON text, and this is not: {error}") from error
        if not isinstance(settings, dict):
            raise HistoryError(f"the settings of a search must be a JSON object, not {settings!r}")
        query = "INSERT INTO searches (subject, settings, time) VALUES (?, ?, ?)"
        with self._change():
            number = self._db.execute(query, (self._subject, settings_json, time.time())).lastrowid
            return self._sealed("searches", number)

    def put(self, rows: Sequence[Evaluation], search: int | None = None, round: int = 0) -> None:
        """Keep evaluations, all or none; they are on the disk when this returns.

        Of an architecture that is there already new values are added, and old ones stay as they are: searches have used
        them."""
        for row in rows:
            if not row.key or not row.values:
                given = f"{row.key!r} and {dict(row.values)}"
                raise HistoryError(f"an evaluation needs a key and at least one value, not {given}")
            for name, value in {**row.values, "seconds": row.seconds}.items():
                if not math.isfinite(value):
                    why = "only finite numbers are kept. Was the supernet trained without NaN?"
                    raise HistoryError(f"{name} of {row.key} is {value}: {why}")
        if not rows:
            return
        if search is not None and not self._rows("SELECT 1 FROM searches WHERE subject = ? AND id = ?", search):
            none = f"there is no search {search} of these weights and data in {self.path}"
            raise HistoryError(f"{none}: begin_search() gives the number")
        insert = """INSERT INTO evaluations (subject, key, arch, "values", seconds, kind, search, round, time)
                    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
        with self._change():
            now = time.time()
            for row in rows:
                old = self._one(row.key)
                values = {name: float(value) for name, value in row.values.items()}
                text = json.dumps({**values, **(self._numbers(old[1]) if old else {})}, sort_keys=True)
                if old is None:
                    made = (float(row.seconds), row.kind, search, int(round), now)
                    values_ = (self._subject, row.key, row.arch_json, text, *made)
                    self._sealed("evaluations", self._db.execute(insert, values_).lastrowid)
                elif text != old[1]:
                    self._db.execute('UPDATE evaluations SET "values" = ? WHERE id = ?', (text, old[0]))
                    self._sealed("evaluations", old[0])

    @contextmanager
    def _change(self) -> Iterator[None]:
        """One transaction: all of it or nothing, flushed to the disk at the end."""
        if self.readonly:
            raise HistoryError(f"{self.path} was opened to be read only: open it without readonly to add to it")
        with _explained(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


def _create(path: Path) -> None:
    if (log := _log(path)) is not None:
        gone = f"{path} is gone, and its log {log.name} is still there"
        raise HistoryError(f"{gone}: put {path.name} back, or move the log away too")
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        files.write(path, db.serialize())


def _log(path: Path) -> Path | None:
    """What SQLite has not yet moved into the file, if there is anything."""
    log = path.with_name(path.name + "-wal")
    return log if log.exists() and log.stat().st_size else None


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=60, isolation_level=None)


def _reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot change the file, after a look at whether it is a whole history."""
    with _explained(path):
        db = _connect(path, "mode=ro")
        try:
            try:
                mark = _pragma(db, "application_id")
            except sqlite3.OperationalError:  # a folder nobody may write to: fine as long as nothing waits in the log
                if _log(path) is not None:
                    raise
                db.close()
                db = _connect(path, "mode=ro&immutable=1")
                mark = _pragma(db, "application_id")
            version = _pragma(db, "user_version")
            if mark != MARK:
                other = f"{path} is not a history of superformer, and was left as it is"
                raise HistoryError(f"{other}: move it away to begin a new one, or choose another run")
            if version > VERSION:
                newer = f"version {version} of the history; this one knows {VERSION}"
                update = "update superformer. The file was left as it is"
                raise HistoryError(f"{path} was written by a newer superformer ({newer}): {update}")
            if version < 1:
                raise _corrupt(path, f"version {version}")
            if (health := _pragma(db, "integrity_check(1)")) != "ok":
                raise _corrupt(path, health)
            for table, columns in COLUMNS.items() if version > 1 else ():
                for *row, known in db.execute(f"SELECT {columns}, checksum FROM {table}"):
                    if known != _checksum(row):
                        raise _corrupt(path, f"row {row[0]} of {table} is not as it was written")
        except BaseException:
            db.close()
            raise
        return db


def _writer(path: Path, reader: sqlite3.Connection) -> sqlite3.Connection:
    """For writing. A commit appends to a log and flushes it (``FULL``): one flush, and readers need not wait."""
    with _explained(path):
        reader.close()
        db = _connect(path, "mode=rw")
        try:
            for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
                db.execute(f"PRAGMA {setting}").fetchall()
            if _pragma(db, "user_version") == 1:
                _add_checksums(db)
        except BaseException:
            db.close()
            raise
        return db


def _add_checksums(db: sqlite3.Connection) -> None:
    """A history of version 1 as one of today."""
    db.execute("BEGIN IMMEDIATE")
    for table, columns in COLUMNS.items() if _pragma(db, "user_version") == 1 else ():  # another process may have
        db.execute(f"ALTER TABLE {table} ADD COLUMN checksum TEXT")
        for row in db.execute(f"SELECT {columns} FROM {table}").fetchall():
            db.execute(f"UPDATE {table} SET checksum = ? WHERE id = ?", (_checksum(row), row[0]))
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")


def _checksum(row: Sequence[object]) -> str:
    return files.checksum({"row": list(row)})[:16]


def _pragma(db: sqlite3.Connection, name: str) -> Any:
    return db.execute(f"PRAGMA {name}").fetchone()[0]


def _corrupt(path: Path, why: object) -> HistoryError:
    what = f"the history {path} is damaged ({' '.join(str(why).split())}) and was left as it is"
    return HistoryError(
        f"{what}: put back a copy of it, or move it away (with its -wal and -shm files) to begin a new one; "
        f"'sqlite3 {path.name} .recover' may save what is in it"
    )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into errors that say what to do."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # a mistake of ours
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            text = f"another process is writing to {path}: wait until it ends, and run the same command again"
        elif code == sqlite3.SQLITE_FULL:
            text = f"the disk is full: {path} could not be written. What it held is safe: "
            text += "free some space and run the same command again"
        elif code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            text = f"{path} cannot be opened ({error}): look at the permissions of the file and of its folder"
            raise HistoryError(text) from error
        elif code == sqlite3.SQLITE_IOERR:
            text = f"{path} could not be read or written: {error}"
        else:
            raise _corrupt(path, error) from error
        raise StoppedError(text) from error
