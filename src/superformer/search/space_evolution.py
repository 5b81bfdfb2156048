"""Searching the search space (S3, section 2.3, algorithm 1): the quality of a space, and the next, better one.

A space is the product of its *dimensions* (eq. 6): of each stage the number of blocks, its width, and each choice of its blocks; choices of
the whole network are dimensions, too. For each value of a dimension the E-T error of the sub-space with that value is measured, a line is
fitted through them (eq. 7), and the whole list moves against its slope (eq. 8), each dimension by itself.

What the paper leaves open, and what is done here:

* the unit of x in eq. 7: steps of the dimension (x = value / gamma), and of y: percent. With raw widths slopes would be near zero, and
  floor would move every list up by one step or not at all;
* a block's choice is a dimension of its stage: the sub-space of a value has it in all blocks of the stage;
* how the top 50 are found: they are the best of the drawn ones (at most half of them, where fewer than 100 are drawn);
* lists that the family cannot have (a window larger than its map) lose the values in question; a dimension whose list would be empty stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from superformer.errors import SpaceError, SuperformerError
from superformer.space import Choice, Ratio, Space
from superformer.space.stage import Spec, Stage

Floats = NDArray[np.float64]
TOP = 50
TAU = 0.4
NOISE = 1e-9
"""Of the fit: a slope of zero must not be taken for a fall."""
GAMMA = {"depth": 1, "width": 64, "mlp": 0.5, "attn": 64, "window": 7, "heads": 1}
"""Section 4.1; it gives no step for heads."""
Rounding = Literal["floor", "symmetric"]


@dataclass(frozen=True)
class Dimension:
    """A list of values that moves as one; ``stage`` None is the whole network."""

    stage: int | None
    name: str
    values: tuple[float, ...]

    @property
    def label(self) -> str:
        return self.name if self.stage is None else f"stage {self.stage + 1} {self.name}"

    def at(self, space: Space, value: float) -> Space:
        """The sub-space in which this dimension has one value."""
        return space.narrow(**{self.name: value if self.stage is None else {self.stage: value}})


@dataclass(frozen=True)
class Trend:
    """What was measured of a dimension, and where it goes. ``steps`` are those of eq. 8: positive is towards smaller values."""

    dimension: Dimension
    errors: tuple[float, ...]
    slope: float
    steps: int
    after: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"label": self.dimension.label}


def dimensions(space: Space) -> list[Dimension]:
    """The dimensions of a space that have something to choose: lists of numbers."""
    found = [Dimension(None, name, _numbers(spec)) for name, spec in space.choices.items()]
    for i, stage in enumerate(space.stages):
        if not stage.free:
            found.append(Dimension(i, "depth", tuple(float(d) for d in stage.depths)))
        found += [Dimension(i, name, _numbers(spec)) for name, spec in stage.choices.items()]
        if stage.positions:
            found += [Dimension(i, name, _numbers(spec)) for name, spec in stage.blocks[0].items()]
    return [d for d in found if len(d.values) > 1]


def _numbers(spec: Spec) -> tuple[float, ...]:
    fixed = not isinstance(spec, Choice | Ratio) or any(isinstance(v, str | bool) for v in spec.values)
    return () if fixed else tuple(float(v) for v in spec.values)


def et_error(errors: Sequence[float] | Floats, top: int = TOP) -> float:
    """The E-T error: the mean of the expected error (eq. 5) and of the top-tier error, that of the best ``top``."""
    ordered = np.sort(np.asarray(errors, dtype=np.float64))
    if not len(ordered):
        raise SuperformerError("the E-T error of no architecture at all was asked for")
    best = ordered[: max(1, min(top, math.ceil(len(ordered) / 2)))]
    return float((ordered.mean() + best.mean()) / 2)


def trend(
    dimension: Dimension, errors: Sequence[float], gamma: float, tau: float = TAU, rounding: Rounding = "floor", least: float = 0.0
) -> Trend:
    """Eqs. 7 and 8, for the E-T errors (in percent) of the sub-spaces of a dimension's values.

    ``floor`` is the paper's: any negative slope moves a list up by a step or more, a positive one moves it down from tau on. ``symmetric``
    rounds towards zero, so both directions need a slope of tau. Values not above ``least`` are removed.
    """
    x = np.asarray(dimension.values) / gamma
    slope = float(np.polyfit(x, np.asarray(errors), 1)[0])
    steps = math.floor(slope / tau + NOISE) if rounding == "floor" else math.trunc(slope / tau + math.copysign(NOISE, slope))
    moved = tuple(v - steps * gamma for v in dimension.values)
    after = tuple(v for v in moved if v > least) or dimension.values
    return Trend(dimension, tuple(errors), slope, steps, after)


def evolved(space: Space, trends: Sequence[Trend], name: str) -> tuple[Space, list[Trend]]:
    """The next space, and the trends with what really became of each dimension: values that the family cannot have are left out."""
    space = replace(space, name=name)
    done = []
    for own in trends:
        kept = own.dimension.values
        for values in _fitting(own.after):
            try:
                space = _with(space, own.dimension, values)
            except (SpaceError, SuperformerError):
                continue
            kept = values
            break
        done.append(replace(own, after=kept))
    return space, done


def _fitting(values: tuple[float, ...]) -> list[tuple[float, ...]]:
    """The list, then without its largest values one after another, then without its smallest."""
    n = len(values)
    return [values[:k] for k in range(n, 0, -1)] + [values[k:] for k in range(1, n)]


def _with(space: Space, dimension: Dimension, values: tuple[float, ...]) -> Space:
    whole = [int(v) if float(v).is_integer() else float(v) for v in values]

    def put(specs: Mapping[str, Spec]) -> dict[str, Spec]:
        return {k: _listing(s, whole) if k == dimension.name else s for k, s in specs.items()}

    if dimension.stage is None:
        return replace(space, choices=put(space.choices))
    stages = list(space.stages)
    old = stages[dimension.stage]
    if dimension.name == "depth":
        most = max(int(v) for v in whole)
        blocks = [dict(old.blocks[min(p, old.positions - 1)]) for p in range(most)]
        new = Stage(blocks, depth=tuple(int(v) for v in whole), choices=dict(old.choices), tied=old.tied)
    else:
        new = replace(old, block=[put(b) for b in old.blocks], choices=put(old.choices))
    stages[dimension.stage] = new
    return replace(space, stages=tuple(stages))


def _listing(spec: Spec, values: list[int | float]) -> Spec:
    if isinstance(spec, Choice):
        return Choice(tuple(values))
    return Ratio(tuple(values), spec.of) if isinstance(spec, Ratio) else spec
