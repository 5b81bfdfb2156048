"""Writes src/superformer/spaces/catalogue.json: what ``superformer spaces`` and ``superformer models`` tell of the
published spaces and architectures. To be run after a change to one of them, or to what networks cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import superformer as sf
from superformer.space import Choice, Ratio, Spec, point
from superformer.space.costs import Exact
from superformer.spaces import arch as published_arch

FILE = Path(sf.__file__).parent / "spaces" / "catalogue.json"
Row = dict[str, Any]


def catalogue() -> dict[str, dict[str, Row]]:
    """What the file should hold."""
    spaces, models = {}, {}
    for name in sf.spaces():
        space = sf.space(name)
        spaces[name] = {
            "summary": space_summary(space), "table": space_table(space), "space": json.loads(space.to_json()),
        }  # fmt: skip
    for name in sf.models():
        models[name] = {"summary": model_summary(name, published_arch(name))}
    return {"spaces": spaces, "models": models}


def space_summary(space: sf.Space) -> Row:
    """A space in one line: how many architectures, from what cost to what cost."""
    reach = Exact.of(space, ("macs", "params")).range
    return {
        "name": space.name,
        "family": space.family,
        "architectures": space.size,
        "paths": space.paths,
        "macs": list(reach["macs"]),
        "params": list(reach["params"]),
        "img_size": space.img_size,
    }


def space_table(space: sf.Space) -> list[Row]:
    """A space as in a paper's table: a row for each choice."""
    rows = [_row("network", name, spec) for name, spec in space.choices.items()]
    for i, stage in enumerate(space.stages):
        where = f"stage {i + 1}"
        rows += [_row(where, name, spec) for name, spec in stage.choices.items()]
        depths, free = stage.depths, stage.free
        values = ", ".join(map(str, depths)) if len(depths) < 9 else f"{depths[0]} to {depths[-1]}"
        if free:
            every = len(free) == stage.positions
            which = "any position" if every else f"positions {', '.join(str(p + 1) for p in free)}"
            values += f" ({which} can be skipped)"
        if stage.tied:
            values += " (all the same)"
        rows.append({"where": where, "choice": "blocks", "values": values})
        if stage.blocks:
            rows += [_row(f"{where}, each block", name, spec) for name, spec in stage.blocks[-1].items()]
    return rows


def _row(where: str, name: str, spec: Spec) -> Row:
    values = ", ".join(map(str, spec.values))
    if not isinstance(spec, Choice):
        values = f"{values} x {spec.of}" if isinstance(spec, Ratio) else f"{spec.of} x {spec.factor}"
    return {"where": where, "choice": name, "values": values}


def model_summary(name: str, arch: sf.Arch) -> Row:
    """A network in one line."""
    cost = sf.cost(point(arch), [arch])
    return {
        "name": name,
        "family": arch.family,
        "blocks": "+".join(str(len(s.blocks)) for s in arch.stages),
        "macs": int(cost.macs[0]),
        "params": int(cost.params[0]),
        "resolution": arch.resolution,
        "key": arch.key,
    }


def write() -> None:
    """The file, a line for each space and architecture."""
    kinds = []
    for kind, entries in catalogue().items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
        kinds.append(f" {json.dumps(kind)}: {{\n{lines}\n }}")
    FILE.write_text("{\n" + ",\n".join(kinds) + "\n}\n", "utf-8")


if __name__ == "__main__":
    write()
