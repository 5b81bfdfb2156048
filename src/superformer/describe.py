"""Spaces and architectures as rows of plain values, for tables and for JSON."""

from __future__ import annotations

from typing import Any

from superformer.cost import cost
from superformer.space import Space, point
from superformer.space.arch import Arch
from superformer.space.exact import Exact
from superformer.space.stage import Choice, Ratio, Spec


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
        depths = ", ".join(map(str, stage.depths)) if len(stage.depths) < 9 else f"{stage.depths[0]} to {stage.depths[-1]}"
        which = "any position" if len(stage.free) == stage.positions else f"positions {', '.join(str(p + 1) for p in stage.free)}"
        note = f" ({which} can be skipped)" if stage.free else ""
        rows.append({"where": where, "choice": "blocks", "values": depths + note + (" (all the same)" if stage.tied else "")})
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
