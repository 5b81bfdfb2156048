"""The space around a network: the network itself is its largest point, and smaller pictures, smaller widths, fewer
heads and fewer blocks lie below it, in steps that hardware likes.

How far down follows from the wanted speed-up, and from what a trained network can spare: it knows most of what it knew
on smaller pictures, a good part of it with fewer hidden units or blocks, and least with fewer channels of its tokens,
which all of it reads and writes. So pixels go down by the whole of it and further, depth and widths by its square root,
and the width of tokens by the root of that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress

from superformer.errors import SpaceError, SuperformerError
from superformer.space.arch import Arch, Value, Values
from superformer.space.costs import cost
from superformer.space.schema import family
from superformer.space.space import Space, point
from superformer.space.stage import Choice, Spec, Stage, Times

STEPS, MOST_SIZES = 8, 6
"""The most values of a width, and of the size of pictures."""
FURTHER = 1.5
"""Than the speed-up: a front needs room below its winner."""
MOST_FURTHER = 8.0
"""The same of depth and widths, where sizes of pictures are far apart."""
LEAST_SPEED_UP, MOST_SPEED_UP = 1.05, 100.0


def around(
    arch: Arch, speed_up: float = 2.0, order: Sequence[Sequence[int]] = (), sizes: Sequence[int] | None = None
) -> Space:
    """The space of a network and smaller ones, down to a ``speed_up`` times smaller cost and somewhat further.

    ``order``: of each stage its blocks, those that matter most first (`superformer.train.importance`); without it the
    last ones go first. ``sizes``: of the pictures, besides the network's own; else smaller ones, where the family can
    have several. Patch sizes, windows and kernels stay: with those of the network its weights have their meaning."""
    if not LEAST_SPEED_UP <= speed_up <= MOST_SPEED_UP:
        given = f"{speed_up:g}"
        raise SuperformerError(f"a speed-up is a factor from {LEAST_SPEED_UP} to {MOST_SPEED_UP:g}, not {given}")
    if order and [sorted(o) for o in order] != [list(range(len(s.blocks))) for s in arch.stages]:
        raise SuperformerError("an order names every block of every stage once; this one is of another network")
    if sizes is None:
        sizes = input_sizes(arch, 1 / (FURTHER * speed_up))
        while len(sizes) > 1:
            with suppress(SpaceError):  # windows larger than a map, tables of positions that fit one input size only
                return _without_gaps(arch, speed_up, order, sizes)
            sizes = sizes[1:]
        speed_up = FURTHER * speed_up
    return _space(arch, speed_up, order, sorted({*sizes, arch.resolution}))


def _without_gaps(arch: Arch, speed_up: float, order: Sequence[Sequence[int]], sizes: Sequence[int]) -> Space:
    """Where there are few sizes of pictures, depth and widths go so far down that the smallest network for one size
    costs no more than the largest for the next, or than what a front needs: else none would cost what lies between."""
    further = speed_up
    while True:
        space = _space(arch, further, order, sizes)
        each = [space.narrow(resolution=size) for size in sizes]
        smallest = cost(space, [s.smallest() for s in each], 1).macs
        largest = cost(space, [s.largest() for s in each], 1).macs
        enough = largest[:-1].clip(largest[-1] / (FURTHER * speed_up))
        if (smallest[1:] <= enough).all() or further >= MOST_FURTHER * speed_up:
            return space
        further *= FURTHER


def _space(arch: Arch, speed_up: float, order: Sequence[Sequence[int]], sizes: Sequence[int]) -> Space:
    schema, down = family(arch.family).schema, 1 / math.sqrt(speed_up)
    tokens = math.sqrt(down)
    units = {k: int(u if isinstance(u, int) else schema.option(arch.options, u)) for k, u in schema.widths.items()}
    top: dict[str, Spec] = {k: _widths(units, k, v, tokens) for k, v in arch.choices.items()}
    stages = []
    for i, stage in enumerate(arch.stages):
        choices = {k: _widths(units, k, v, tokens) for k, v in stage.choices.items()}
        if i:
            before = arch.stages[i - 1].choices
            choices |= {k: _no_less(choices[k], before.int(k)) for k in schema.rising & choices.keys()}
        blocks = [_block(units, values, down) for values in stage.blocks]
        most = len(stage.blocks)
        least = max(math.floor((most + schema.opens) * down) - schema.opens, 0 if schema.opens else 1)
        depths = range(least, most + 1)
        stages.append(Stage(blocks, depths if most else 0, choices, order=tuple(order[i]) if order else ()))
    top["resolution"] = Choice(tuple(sizes))
    return Space(f"around-{arch.key}", arch.family, tuple(stages), top, arch.resolution, dict(arch.options))


def input_sizes(arch: Arch, down: float) -> list[int]:
    """Sizes of pictures with about this share of the pixels and more, in steps of the last stage's patches."""
    step = family(arch.family).skeleton(point(arch), 1).reduction(arch, len(arch.stages) - 1)
    least = max(math.floor(arch.resolution * math.sqrt(down) / step), 1) * step
    while (arch.resolution - least) / step > MOST_SIZES - 1:
        step *= 2
    return [*range(arch.resolution, least - 1, -step)][::-1]


def _block(units: Mapping[str, int], values: Values, down: float) -> dict[str, Spec]:
    """The choices of a block: heads go with their channels, all else by itself."""
    out: dict[str, Spec] = {}
    heads = values.get("heads")
    for name, value in values.items():
        if name == "heads" and isinstance(heads, int):
            out[name] = Choice(tuple(range(max(1, math.ceil(heads * down)), heads + 1)))
        elif name == "attn" and isinstance(heads, int) and isinstance(value, int):
            out[name] = Times(value // heads, "heads")
        else:
            out[name] = _widths(units, name, value, down)
    return out


def _no_less(choice: Choice, least: int) -> Choice:
    """The sizes of a choice that are at least this; all of them, if none is."""
    return Choice(tuple(v for v in choice.values if not isinstance(v, int) or v >= least) or choice.values)


def _widths(units: Mapping[str, int], name: str, value: Value, down: float) -> Choice:
    """The values of a width, in equal steps that are multiples of 32, 16 or 8 where the width is, and of the family's
    ``units``; of anything else its own value."""
    if name not in units or not isinstance(value, int):
        return Choice((value,))
    unit = math.gcd(units[name], value)
    step = next((s for s in (64, 32, 16, 8, 4, 2) if not (value % s or s % unit) and value / s >= 8), unit)
    while (value - value * down) / step > STEPS - 1:
        step *= 2
    least = max(step, math.ceil(value * down))
    found = sorted({value, *(w for w in range(value - step, least - 1, -step) if w > 0)})
    return Choice(tuple(found))
