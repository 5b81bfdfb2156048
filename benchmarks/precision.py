"""What training in bfloat16 costs of the accuracy: every laptop recipe on the embedded digits, in float32 and in
bfloat16 (``train.amp``), the smallest and the largest network on the test pictures. One JSON line a recipe, with the
differences in points (bfloat16 less float32). Killed, the same words go on.

python benchmarks/precision.py FOLDER [--recipes s3-laptop ...] [--seeds 0 1 2] [--set key=value ...]"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from common import report

from superformer.evaluation.evaluator import evaluate
from superformer.recipes import names
from superformer.train.loop import train

PRECISIONS = ("off", "bfloat16")
NETWORKS = ("smallest", "largest")
RECIPES = [name for name in names() if name.endswith("-laptop")]


def accuracies(folder: Path, recipe: str, amp: str, seed: int, words: list[str]) -> dict[str, float]:
    home = folder / f"{recipe}-{amp}-{seed}"
    table = home / "precision.json"
    if not table.exists():
        train(recipe, "digits", home, f"train.amp={amp}", f"seed={seed}", *words)
        table.write_text(json.dumps({row["arch"]: row["accuracy"] for row in evaluate(home, NETWORKS)}))
    found: dict[str, float] = json.loads(table.read_text())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--set", nargs="*", default=[], help="further words of the recipes")
    given = parser.parse_args()
    for recipe in given.recipes:
        found = {a: [accuracies(given.folder, recipe, a, s, given.set) for s in given.seeds] for a in PRECISIONS}
        means = {a: {n: statistics.mean(row[n] for row in rows) for n in NETWORKS} for a, rows in found.items()}
        points = {n: 100 * (means["bfloat16"][n] - means["off"][n]) for n in NETWORKS}
        report(
            "precision",
            recipe=recipe,
            seeds=given.seeds,
            float32=means["off"],
            bfloat16=means["bfloat16"],
            points=points,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
