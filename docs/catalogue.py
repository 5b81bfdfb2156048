"""Writes src/superformer/spaces/catalogue.json: what ``superformer spaces`` and ``superformer models`` tell of the
published spaces and architectures. To be run after a change to one of them, or to what networks cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import superformer as sf
from superformer.draw.sketch import space_table
from superformer.space import point
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
