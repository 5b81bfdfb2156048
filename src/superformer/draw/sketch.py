"""What a drawing shows of an architecture; the drawing for a terminal: a line for each run of equal blocks, bars for
their widths; and a space as a table.

Nothing here belongs to one family. Names that are known decide how a value is shown (`WIDTHS` as bars, ``heads`` as the
divisions of ``attn``, `SQUARES` as little grids); any other value is written out with its name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from rich.text import Text

from superformer.cost import cost
from superformer.errors import SuperformerError
from superformer.space import Choice, Divided, Ratio, Space, Spec, point
from superformer.space.arch import Arch, Value, Values
from superformer.space.costs import skeleton

WIDTHS = {
    "attn": "attention width", "mid": "inner width", "mid1": "first inner width", "mid2": "second inner width",
    "hidden": "hidden width", "mlp": "hidden width of the MLP",
}  # fmt: skip
SQUARES = {"window": "rows and columns of a window", "kernel": "rows and columns of a kernel"}
STYLES = ("blue", "yellow", "green", "magenta")


@dataclass(frozen=True)
class Facts:
    """What a network costs and the rows and columns of each stage's map; None where the family cannot say."""

    macs: int | None = None
    params: int | None = None
    maps: tuple[tuple[int, int], ...] | None = None


def facts(arch: Arch) -> Facts:
    """Of an architecture that is no network of a known family there are none, and it can be drawn all the same."""
    try:
        space = point(arch)
        own, net = cost(space, arch.canonical()), skeleton(space, 1000)
        values = {**arch.choices, "resolution": arch.resolution}
        rows, cols = net.grid(values, *net.canvas(values, (arch.resolution, arch.resolution)))
        maps = [net.stage_grid(i, (int(rows), int(cols))) for i in range(len(arch.stages))]
    except (SuperformerError, ImportError):
        return Facts()
    return Facts(int(own.macs[0]), int(own.params[0]), tuple((int(r), int(c)) for r, c in maps))


def length(values: Mapping[str, Value], name: str) -> float:
    """A value that can be drawn as a length, or 0."""
    value = values.get(name, 0)
    return value if isinstance(value, int | float) and 0 < value < math.inf else 0


def token_widths(arch: Arch) -> list[float]:
    """Channels of each stage's tokens, or 0 if the architecture does not say."""
    return [length(stage.choices, "width") or length(arch.choices, "width") for stage in arch.stages]


def width_multiples(arch: Arch) -> list[list[dict[str, float]]]:
    """Each width of each block as a multiple of the stage's width (of 1 where it has none): stages can be compared."""
    stages = zip(arch.stages, token_widths(arch), strict=True)
    return [[{n: length(b, n) / (own or 1) for n in WIDTHS if length(b, n)} for b in s.blocks] for s, own in stages]


def largest_multiples(multiples: list[list[dict[str, float]]]) -> dict[str, float]:
    """The largest multiple of each name: what a full bar stands for."""
    every = [block for stage in multiples for block in stage]
    return {name: max(b[name] for b in every if name in b) for name in WIDTHS if any(name in b for b in every)}


def value_names(blocks: Iterable[Values]) -> list[str]:
    """The names of these blocks' values: words, heads, widths, squares, then the others."""
    words = {name for block in blocks for name, value in block.items() if isinstance(value, str)}
    known, found = ["heads", *WIDTHS, *SQUARES], sorted({name for block in blocks for name in block})
    return sorted(found, key=lambda n: (n not in words, known.index(n) if n in known else len(known)))


def equal_runs(blocks: Sequence[Values]) -> list[tuple[int, int]]:
    """Equal neighbours: where each run starts and where it stops."""
    stops = [(start := 0)]
    for _, group in groupby(blocks):
        start += len(list(group))
        stops.append(start)
    return list(pairwise(stops))


def value_text(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def label(name: str, value: Value) -> str:
    """A value in words: 12 heads, local, mlp 768."""
    own = value_text(value)
    return own if name == "type" else f"{own} {name}" if name == "heads" else f"{name} {own}"


def counted(n: int, what: str = "block") -> str:
    return f"{n} {what}" if n == 1 else f"{n or 'no'} {what}s"


def stage_facts(arch: Arch, stage: int, maps: Sequence[tuple[int, int]] | None, times: str = "x") -> list[str]:
    """The facts of a stage, apart from its number."""
    own = arch.stages[stage]
    size = [f"map {maps[stage][0]} {times} {maps[stage][1]}"] if maps else []
    width, others = ([label(k, v) for k, v in own.choices.items() if (k == "width") == w] for w in (True, False))
    return [*size, *width, counted(len(own.blocks)), *others]


def _bar(share: float, cells: int, plain: bool) -> str:
    eighths = max(round(share * cells * 8), 1) if share else 0
    if plain:
        return ("#" * math.ceil(eighths / 8)).ljust(cells)
    return ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()).ljust(cells)


def sketch(arch: Arch, plain: bool = False, cells: int = 12) -> Text:
    """An architecture for a terminal; ``plain`` uses ASCII only. Bars are multiples of the stage's width, as in
    `superformer.draw`."""
    multiples, maps = width_multiples(arch), facts(arch).maps
    full, widths = largest_multiples(multiples), token_widths(arch)
    blocks = [b for s in arch.stages for b in s.blocks]
    room = {name: max(len(value_text(b[name])) for b in blocks if name in b) for name in value_names(blocks)}
    colour = {name: STYLES[k % len(STYLES)] for k, name in enumerate(full)}
    whole = [f"{arch.resolution} x {arch.resolution}", *(label(k, v) for k, v in arch.choices.items())]
    lines = [Text.assemble(("Picture", "bold"), "  " + ", ".join(whole))]
    for i, stage in enumerate(arch.stages):
        head = Text.assemble("\n", (f"Stage {i + 1}", "bold"), "  " + ", ".join(stage_facts(arch, i, maps)))
        if widths[i] and len(widths) > 1:
            head.append("  ").append(_bar(widths[i] / max(widths), cells, plain), "cyan")
        lines.append(head)
        for start, stop in equal_runs(stage.blocks):
            block, n = stage.blocks[start], stop - start
            which, times = (f"{start + 1}-{stop}", f" x{n}") if n > 1 else (str(stop), "")
            line = Text.assemble(f"{which:>7}", (f"{times:5}", "dim"))
            for name in value_names(stage.blocks):
                value = value_text(block[name]) if name in block else ""
                padded = value.ljust(room[name]) if isinstance(block.get(name), str) else value.rjust(room[name])
                words = label(name, padded)
                line.append(words if value else " " * len(words))
                if name in full:
                    share = multiples[i][start].get(name, 0) / full[name]
                    line.append(" ").append(_bar(share, cells, plain), colour[name])
                line.append("  ")
            lines.append(line)
    for line in lines:
        line.rstrip()
    out = Text("\n").join(lines)
    out.no_wrap, out.overflow = True, "ellipsis"
    return out


def space_table(space: Space) -> list[dict[str, str]]:
    """A space as in a paper's table: a row for each choice."""

    def row(where: str, name: str, spec: Spec) -> dict[str, str]:
        values = ", ".join(map(str, spec.values))
        if not isinstance(spec, Choice):
            by = "/" if isinstance(spec, Divided) else "x"
            values = f"{values} x {spec.of}" if isinstance(spec, Ratio) else f"{spec.of} {by} {values}"
        return {"where": where, "choice": name, "values": values}

    rows = [row("network", name, spec) for name, spec in space.choices.items()]
    for i, stage in enumerate(space.stages):
        where, depths, free = f"stage {i + 1}", stage.depths, stage.free
        rows += [row(where, name, spec) for name, spec in stage.choices.items()]
        values = ", ".join(map(str, depths)) if len(depths) < 9 else f"{depths[0]} to {depths[-1]}"
        if free:
            every = len(free) == stage.positions
            which = "any position" if every else f"positions {', '.join(str(p + 1) for p in free)}"
            values += f" ({which} can be skipped)"
        values += " (all the same)" if stage.tied else ""
        values += f" (first to go: {', '.join(str(p + 1) for p in stage.ranked[:-4:-1])})" if stage.order else ""
        rows.append({"where": where, "choice": "blocks", "values": values})
        if stage.blocks:
            rows += [row(f"{where}, each block", name, spec) for name, spec in stage.blocks[-1].items()]
    return rows
