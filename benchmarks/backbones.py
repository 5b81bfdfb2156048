"""What a backbone brings to other tasks: the small recipes of `superformer transfer` on real data sets, from pretrained
weights, from a network that was found, from random weights, and on timm's ResNet-18; all see the same pictures as
often. One JSON line for each run; what is done is not done again.

python benchmarks/backbones.py DATA OUT --vit vit_tiny.safetensors [--found RUN] [--tasks segment-pets,...]
                               [--arms vit,found,random,resnet18]

DATA has the folders pets_seg, camvid, coco_mini, easy_vqa and daquar (docs/transfer-data.md says in which form)."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from common import report

VIT = "vit_tiny_patch16_224"
TASKS: dict[str, tuple[str, str, list[str]]] = {
    "segment-pets": ("segment", "pets_seg", ["train.epochs=3"]),
    "segment-camvid": ("segment", "camvid", ["train.epochs=16"]),
    "detect-pets": ("detect", "pets_seg", ["train.epochs=4"]),
    "detect-coco": ("detect", "coco_mini", ["train.epochs=8"]),
    "vqa-easy": ("vqa", "easy_vqa", ["train.epochs=1.5"]),
    "vqa-daquar": ("vqa", "daquar", ["train.epochs=3"]),
}
"""The task, the data, and what is not as in ``TASK-laptop``."""
MAIN = {"segment": "miou", "detect": "ap50", "vqa": "accuracy"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vit", required=True, help="its weights")
    parser.add_argument("--found", help="a run of superformer")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--arms", default="vit,found,random,resnet18")
    given = parser.parse_args()
    arms = {
        "vit": ["--backbone", VIT, "--checkpoint", given.vit],
        "found": ["--run", given.found],
        "random": ["--backbone", VIT],
        "resnet18": ["--backbone", "resnet18"],
    }
    for task in given.tasks.split(","):
        for arm in given.arms.split(","):
            if arm != "found" or given.found is not None:
                row(given.data, given.out / f"{task}-{arm}", task, arm, arms[arm])


def row(data: Path, folder: Path, task: str, arm: str, backbone: list[str]) -> None:
    kind, place, changes = TASKS[task]
    start, known = time.monotonic(), (folder / "scores.json").exists()
    words = [*backbone, "--task", kind, "--data", str(data / place), "--out", str(folder), *changes]
    superformer("transfer", *words)
    minutes = (time.monotonic() - start) / 60
    found = json.loads(superformer("eval", "--run", str(folder), "--json"))
    kept = {k: found[k] for k in ("miou", "pixel_accuracy", "ap", "ap50", "accuracy") if k in found}
    report(f"{task}-{arm}", main=found[MAIN[kind]], **kept, minutes=None if known else minutes, words=changes)


def superformer(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "superformer", *words], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    main()
