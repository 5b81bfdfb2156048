"""A small space, a recipe that trains in a second or two, and the command line in a process of its own."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

import superformer as sf

SPACE = sf.Space(
    "small",
    "vit",
    (sf.Stage({"heads": (1, 2), "attn": sf.times(8, of="heads"), "mlp": (16, 32)}, depth=(1, 2)),),
    {"patch_size": 16, "width": (16, 24)},
    32,
)
TINY = """
name: tiny
space:
  family: swin
  img_size: 16
  stages:
    - depth: [1, 2]
      choices: {width: [16, 24]}
      block: {window: [2, 4], heads: [1, 2], attn: {times: 8, of: heads}, mlp: {ratio: [1, 2], of: width}}
    - depth: [1]
      choices: {width: [24, 32]}
      block: {window: [2], heads: [2, 3], attn: {times: 8, of: heads}, mlp: {ratio: [1, 2], of: width}}
data: {mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5], augment: shift, mirror: 0.0}
mix: {mixup: 0.2, cutmix: 0.5}
sampling: {rule: sandwich, networks: 1}
loss: {distill: alpha}
gradients: {rule: project}
optimizer: {lr: 2.0e-3, warmup_epochs: 1}
train: {epochs: 2, batch_size: 64, drop_path: 0.1, ema: 0.9}
watch: {every: 1, networks: 1, checkpoint_seconds: 0.2, log: 1}
"""

THOROUGH = bool(os.environ.get("SUPERFORMER_FUZZ"))
"""Whether there is time for what only repeats."""
MOMENTS = 10 if THOROUGH else 4
"""At which a run is killed."""


def recipe(folder: Path) -> str:
    path = folder / "tiny.yaml"
    path.write_text(TINY)
    return str(path)


def as_earlier_version(run: sf.Run) -> None:
    """Take out of a run's files what an earlier version did not write."""
    facts = run.facts()
    del facts["format"]
    run.facts_file.write_text(json.dumps(facts))
    tree = yaml.safe_load(run.recipe_file.read_text())
    for section, key in (
        ("optimizer", "own_no_decay"),
        ("loss", "teacher_size"),
        ("loss", "teacher_labels"),
        ("data", "calibration"),
    ):
        del tree[section][key]
    del tree["sizes"], tree["retrain"]["by_macs"]
    tree["loss"]["teacher_weight"] = 1.0
    run.recipe_file.write_text(yaml.safe_dump(tree, sort_keys=False))


def environment() -> dict[str, str]:
    """One thread: tests run side by side, and the number of threads must not differ between runs that are compared."""
    return os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def command(*words: str, processes: int = 1) -> list[str]:
    if processes == 1:
        return [sys.executable, "-m", "superformer", *words]
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(processes),
        "-m",
        "superformer",
        "--",
        *words,
    ]


def ordinary() -> None:
    """In a new process, before its program begins: permissions count for root, too (it may no longer pass over
    them)."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            if libc.prctl(24, capability, 0, 0, 0):  # PR_CAPBSET_DROP
                raise OSError(ctypes.get_errno(), "cannot become an ordinary user")


def superformer(*words: str, processes: int = 1, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return subprocess.run(
        command(*words, processes=processes), env=environment(), capture_output=True, text=True, cwd=cwd, timeout=300
    )
