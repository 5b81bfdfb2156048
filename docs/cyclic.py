"""Writes src/superformer/sharing/cyclic.json: the cyclic mappings of all lists of widths of the published spaces and
recipes, and of ``a..b`` up to 16. To be run after a change to one of them: ``python docs/cyclic.py [SECONDS]`` with the
seconds that CP-SAT may take for a list that is new (or, with ``--all``, not proven).

The starts of a list that is there never change: supernets were trained with them. Only its bound may rise."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import superformer as sf
from superformer.elastic.axis import Axis, Packed
from superformer.elastic.layers import Elastic
from superformer.recipes import names, resolve, space_of
from superformer.sharing.mappings import shipped, solution, solve_cyclic
from superformer.space.schema import family

FILE = Path(sf.__file__).parent / "sharing" / "cyclic.json"
Widths = tuple[int, ...]
MODEL = 50_000
"""The largest model that CP-SAT proves anything about in reasonable time."""


def shared_axes(space: sf.Space) -> Iterator[Axis]:
    """The axes of a space's supernet whose channels a sharing rule picks."""
    seen = set()
    for module in family(space.family).skeleton(space).modules():
        for dims in module.dims.values() if isinstance(module, Elastic) else ():
            for dim in dims:
                axis = dim.axis if isinstance(dim, Packed) else dim
                if isinstance(axis, Axis) and axis.kind == "shared" and len(axis.widths) > 1 and axis not in seen:
                    seen.add(axis)
                    yield axis


def lists() -> list[Widths]:
    """All lists of widths, in groups of channels."""
    spaces = [*map(sf.space, sf.spaces()), *(space_of(resolve(name)) for name in names())]
    found = {tuple(range(a, b + 1)) for b in range(2, 17) for a in range(1, b)}
    for widths in {axis.widths for space in spaces for axis in shared_axes(space)}:
        step = math.gcd(*widths)
        found.add(tuple(w // step for w in widths))
    return sorted(found, key=lambda w: (len(w), w))


def write(seconds: float, again: bool) -> None:
    """The file, a line for each list."""
    entries = dict(shipped())
    for widths in lists():
        if widths in entries and (entries[widths]["proven"] or not again):
            continue
        found = solution(widths)
        if not found["proven"] and widths[-1] * sum(widths) < MODEL:
            found = solve_cyclic(widths, seconds)
        if widths in entries:
            found["starts"], found["gap"] = entries[widths]["starts"], entries[widths]["gap"]
            found["bound"] = max(found["bound"], entries[widths]["bound"])
        entries[widths] = {"widths": list(widths), **found}
        print(widths, {k: v for k, v in found.items() if k != "starts"}, flush=True)
    keys = sorted(entries, key=lambda w: (len(w), w))
    FILE.write_text("[\n" + ",\n".join(json.dumps(entries[k]) for k in keys) + "\n]\n", "utf-8")


if __name__ == "__main__":
    numbers = [word for word in sys.argv[1:] if word != "--all"]
    write(float(numbers[0]) if numbers else 10.0, "--all" in sys.argv)
