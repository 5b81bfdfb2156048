"""A space as in a paper's table, for the report and the command line."""

from __future__ import annotations

from superformer.space import Choice, Ratio, Space, Spec


def space_table(space: Space) -> list[dict[str, str]]:
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


def _row(where: str, name: str, spec: Spec) -> dict[str, str]:
    values = ", ".join(map(str, spec.values))
    if not isinstance(spec, Choice):
        values = f"{values} x {spec.of}" if isinstance(spec, Ratio) else f"{spec.of} x {spec.factor}"
    return {"where": where, "choice": name, "values": values}
