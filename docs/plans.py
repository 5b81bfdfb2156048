"""Write docs/plans.md: the papers' recipes, planned for 1, 8 and 64 devices before anyone rents them.

.venv/bin/python docs/plans.py [FOLDER]      plans that are in the folder already are not made again
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from superformer.errors import amount
from superformer.planning import plan
from superformer.train.time_budget import say_time

RECIPES = ("s3", "vitas-v1", "vitas-deit", "vitas-twins", "vit-resnas", "nasvit")
COUNTS, DEVICE = (1, 8, 64), "A100-80GB"
HEAD = """# The papers' recipes, planned

What training each supernet takes on ImageNet-1k, told by `superformer plan --recipe NAME --devices {device}` before
anything runs ([how it is computed](many-devices.md#the-plan-before-the-bill)). `.venv/bin/python docs/plans.py` wrote
this page; figures are as the command prints them.

**Counted**: steps, MACs, launches (operations that a device starts in a step), what one device sends in a step, disk
(checkpoints that are kept, the supernet). **Memory** is what is alive at once in the step with the most work, beside
what the same step takes on a processor [below](#planned-and-real). **Times are predictions** from published peaks, half
of which is assumed to be reached: nothing was measured on a GPU. `--measure` on your device replaces both.

"""
ROW = (
    "recipe",
    "devices",
    "steps",
    "MACs a step",
    "launches",
    "memory",
    "fits",
    "sent a step",
    "a step",
    "time",
    "disk",
)
ASSUMED = "Assumed of each device: "


def planned(name: str, count: int, folder: Path) -> dict[str, Any]:
    file = folder / f"{name}-{count}.json"
    if not file.exists():
        file.write_text(json.dumps(plan(name, devices=f"{count}x{DEVICE}")))
        print(file.name, flush=True)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def lines(folder: Path) -> list[str]:
    plans = [planned(name, count, folder) for count in reversed(COUNTS) for name in RECIPES]
    plans.sort(key=lambda p: (RECIPES.index(p["recipe"]), int(p["devices"].partition("x")[0])))
    out = [f"| {' | '.join(ROW)} |", f"|{'---|' * len(ROW)}"]
    for p in plans:
        cells = (
            p["recipe"], p["devices"].partition("x")[0], f"{p['steps']:,}", amount(p["macs_a_step"]),
            f"{p['launches']:,}",
            f"{amount(p['memory']['total'])}B", "yes" if p["fits"] else "no", f"{amount(p['bytes_sent_a_step'])}B",
            f"{1e3 * p['seconds_a_step']:.3g} ms", say_time(3600 * p["hours"]), f"{amount(p['disk'])}B",
        )  # fmt: skip
        out.append(f"| {' | '.join(cells)} |")
    out += ["", "All of it of each device; MACs forward and backward.", ""]
    out += [ASSUMED + "; ".join(plans[0]["assumed"]) + ".", "", "## What the memory holds", ""]
    kinds = [k for k in plans[0]["memory"] if k != "total"]
    out += [f"| recipe | devices | {' | '.join(kinds)} |", f"|{'---|' * (len(kinds) + 2)}"]
    for p in plans:
        cells = [f"{amount(p['memory'][k])}B" if p["memory"][k] else "" for k in kinds]
        out.append(f"| {p['recipe']} | {p['devices'].partition('x')[0]} | {' | '.join(cells)} |")
    out += ["", "## What to change where it does not fit", ""]
    for p in plans:
        if not p["fits"] and not p.get("changes"):
            out.append(f"- `{p['recipe']}` on {p['devices']}: not looked for on this page; the command does")
        for row in p.get("changes", ()):
            how = f"{amount(row['total'])}B, {say_time(3600 * row['hours'])}"
            out.append(f"- `{p['recipe']}` on {p['devices']}: `{' '.join(row['words'])}`: {how}")
    return out


if __name__ == "__main__":
    kept = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    page = Path(__file__).parent / "plans.md"
    body = "\n".join(lines(kept))
    old = page.read_text("utf-8") if page.exists() else ""
    _, mark, real = old.partition("\n## Planned and real\n")
    page.write_text(HEAD.format(device=f"8x{DEVICE}") + body + "\n" + mark + real, "utf-8")
