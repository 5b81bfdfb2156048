"""All benchmarks, each in its own process: one JSON line for each figure.

make bench            or            python benchmarks/run.py [name ...]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = {
    "population": ["population.py"],
    "step": ["step.py"],
    "multi": ["multi.py"],
    "multi-128": ["multi.py", "--batch", "128", "--repeats", "3"],
    "autoformer": ["autoformer.py"],
    "vitas": ["vitas.py"],
    "evaluate": ["evaluate.py"],
    "nasvit": ["nasvit.py"],
    "kernels": ["kernels.py"],
    **{f"train-{name}": ["train_step.py", name] for name in ("nasvit", "sandwich", "projection", "pictures")},
    "search-methods": ["search_methods.py"],
    "found": ["found.py"],
    "evolve-space": ["evolve_space.py"],
    "analysis": ["analysis.py"],
    "timm": ["timm_networks.py"],
    "transfer": ["transfer.py"],
    "processes": ["processes.py"],
}


def main() -> int:
    here = Path(__file__).parent
    names = sys.argv[1:] or list(BENCHMARKS)
    for name in names:
        if name not in BENCHMARKS:
            print(f"unknown benchmark {name!r}; possible: {', '.join(BENCHMARKS)}", file=sys.stderr)
            return 2
    return max(
        subprocess.run([sys.executable, here / BENCHMARKS[name][0], *BENCHMARKS[name][1:]]).returncode for name in names
    )


if __name__ == "__main__":
    sys.exit(main())
