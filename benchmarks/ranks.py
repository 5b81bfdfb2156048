"""Candidates a second on one and on two processes, and whether both end with the same front; one JSON line.

python benchmarks/ranks.py RUN [key=value ...]

RUN is a trained run; copies of it are searched with its recipe's method: on one process with one and with two threads,
on two processes with one thread each, and, to see what the machine itself gives, twice at the same time by two that
know nothing of each other. Counted from the first question to the last answer in the history, without the start of the
programs."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import report

ROUNDS = 3
WAYS = {"1 process, 1 thread": (1, 1), "1 process, 2 threads": (1, 2), "2 processes, 1 thread each": (2, 1)}
APART = "2 searches at the same time"


def main() -> None:
    run, words = Path(sys.argv[1]), sys.argv[2:]
    speeds: dict[str, list[float]] = {way: [] for way in (*WAYS, APART)}
    fronts, load = set(), os.getloadavg()[0]
    for _ in range(ROUNDS):
        for way, (processes, threads) in WAYS.items():
            speed, front = _search(run, words, processes, threads)
            speeds[way].append(speed)
            fronts.add(front)
        with ThreadPoolExecutor() as pool:
            speeds[APART].append(sum(speed for speed, _ in pool.map(lambda _: _search(run, words, 1, 1), range(2))))
    one, both, two, apart = speeds.values()
    report(
        f"search of {run.name} on two processes",
        candidates_per_second={way: statistics.median(v) for way, v in speeds.items()},
        ratio=statistics.median(b / a for a, b in zip(one, two, strict=True)),
        ratio_to_two_threads=statistics.median(b / a for a, b in zip(both, two, strict=True)),
        ratio_to_two_at_the_same_time=statistics.median(b / a for a, b in zip(apart, two, strict=True)),
        ratios=[b / a for a, b in zip(one, two, strict=True)],
        same_front=len(fronts) == 1,
        load=[load, os.getloadavg()[0]],
        target={"ratio": 1.6},
    )


def _search(run: Path, words: list[str], processes: int, threads: int) -> tuple[float, str]:
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "run"
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("history.db*", "front.json", "checkpoints", ".lock"))
        start = ["-m", "superformer"]
        if processes > 1:
            start = [
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                str(processes),
                "-m",
                "superformer",
                "--",
            ]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        subprocess.run(
            [sys.executable, *start, "search", "--run", str(copy), *words],
            env=environment,
            check=True,
            capture_output=True,
        )
        with sqlite3.connect(copy / "history.db") as db:
            begun, ended, n = db.execute(
                "SELECT (SELECT MIN(time) FROM searches), MAX(time), COUNT(*) FROM evaluations"
            ).fetchone()
        found = json.loads((copy / "front.json").read_text())
        return n / (ended - begun), json.dumps([(row["key"], row["accuracy"]) for row in found["front"]])


if __name__ == "__main__":
    main()
