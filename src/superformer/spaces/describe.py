"""Spaces and architectures as rows of plain values, for tables and for JSON; run as a program, it writes them to the
catalogue."""

from __future__ import annotations

import json
from typing import Any

from superformer.cost import cost
from superformer.space import Space, point
from superformer.space.arch import Arch
from superformer.space.costs import Exact
from superformer.space.stage import Choice, Ratio, Spec
from superformer.spaces import arch, catalogue, models, spaces
from superformer.spaces import space as published


def space_summary(space: Space) -> dict[str, Any]:
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


def space_table(space: Space) -> list[dict[str, Any]]:
    """A space as in a paper's table: a row for each choice."""
    rows = [_row("network", name, spec) for name, spec in space.choices.items()]
    for i, stage in enumerate(space.stages):
        where = f"stage {i + 1}"
        rows += [_row(where, name, spec) for name, spec in stage.choices.items()]
        depths = (
            ", ".join(map(str, stage.depths)) if len(stage.depths) < 9 else f"{stage.depths[0]} to {stage.depths[-1]}"
        )
        which = (
            "any position"
            if len(stage.free) == stage.positions
            else f"positions {', '.join(str(p + 1) for p in stage.free)}"
        )
        note = f" ({which} can be skipped)" if stage.free else ""
        rows.append(
            {"where": where, "choice": "blocks", "values": depths + note + (" (all the same)" if stage.tied else "")}
        )
        if stage.blocks:
            rows += [_row(f"{where}, each block", name, spec) for name, spec in stage.blocks[-1].items()]
    return rows


def _row(where: str, name: str, spec: Spec) -> dict[str, Any]:
    values = ", ".join(map(str, spec.values))
    if not isinstance(spec, Choice):
        values = f"{values} x {spec.of}" if isinstance(spec, Ratio) else f"{spec.of} x {spec.factor}"
    return {"where": where, "choice": name, "values": values}


def model_summary(name: str, arch: Arch) -> dict[str, Any]:
    """A network in one line."""
    own = cost(point(arch), [arch])
    return {
        "name": name,
        "family": arch.family,
        "blocks": "+".join(str(len(s.blocks)) for s in arch.stages),
        "macs": int(own.macs[0]),
        "params": int(own.params[0]),
        "resolution": arch.resolution,
        "key": arch.key,
    }


def published_entries() -> dict[str, dict[str, catalogue.Entry]]:
    """What the catalogue should hold."""
    own = {name: published(name) for name in spaces()}
    return {
        "spaces": {
            n: {"summary": space_summary(s), "table": space_table(s), "space": json.loads(s.to_json())}
            for n, s in own.items()
        },
        "models": {name: {"summary": model_summary(name, arch(name))} for name in models()},
    }


if __name__ == "__main__":
    catalogue.write(published_entries())
