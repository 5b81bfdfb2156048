"""Searching the search space (S3, section 2.3, algorithm 1): the quality of a space, and the next, better one.

A space is the product of its *dimensions* (eq. 6): of each stage the number of blocks, its width, and each choice of
its blocks; choices of the whole network are dimensions, too. For each value of a dimension the E-T error of the
sub-space with that value is measured, a line is fitted through them (eq. 7), and the whole list moves against its slope
(eq. 8), each dimension by itself.

What the paper leaves open, and what is done here:

* the unit of x in eq. 7: steps of the dimension (x = value / gamma), and of y: percent. With raw widths slopes would be
  near zero, and floor would move every list up by one step or not at all;
* the step gamma of heads, which section 4.1 does not give: heads that follow from the Q-K-V dimension move with it (by
  two, in the paper's space); where a space chooses them by themselves, 1;
* a block's choice is a dimension of its stage: the sub-space of a value has it in all blocks of the stage;
* how the top 50 are found: they are the best of the drawn ones (at most half of them, where fewer than 100 are drawn);
* how the N architectures are drawn: every choice uniform, as supernets are trained (`Space.sample`);
* whether later supernets begin anew: with ``evolve.start=previous`` they inherit what fits of the one before, with
  ``fresh`` each is trained by itself, as table 5 and figure 6 compare spaces;
* lists that the family cannot have (a window larger than its map) lose the values in question, and so do those of which
  no network would lie within ``evolve.macs_max``; a dimension whose list would be empty stays.

In a run (`evolve_space`): train a supernet, measure its dimensions, move the space, and again. ``DIR/spaces/t`` is the
run of the t-th space; ``DIR/evolution.json`` is the trace, ``DIR/evolution.svg`` its picture; at the end the last
space's supernet is trained in DIR itself, ready to be searched. Every part goes on where it was: training by its
checkpoints, measuring by its history. Several processes train together and share the networks to be measured; the
first keeps the histories and writes the trace."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from superformer import data, files
from superformer.cost import cost
from superformer.errors import SpaceError, SuperformerError, nearest
from superformer.evaluation.evaluator import TrainedRun
from superformer.progress import Tell, quiet, teller
from superformer.recipes import Recipe, resolve, space_of
from superformer.recipes.searching import SpaceEvolution
from superformer.runs import Run, note_command
from superformer.runs.processes import World
from superformer.search.problem import Floats
from superformer.search.scores import Scorer, history_of
from superformer.space import Choice, Ratio, Space
from superformer.space.arch import Arch
from superformer.space.stage import Spec, Stage
from superformer.train.loop import train

TOP, TAU, NOISE = 50, 0.4, 1e-9
"""The noise is that of the fit: a slope of zero must not be taken for a fall."""
Rounding = Literal["floor", "symmetric"]
Drawing = Callable[[Sequence[Mapping[str, Any]], str], str]


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
    """What was measured of a dimension, and where it goes. ``steps`` are those of eq. 8: positive is towards smaller
    values."""

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
    best = top_tier(errors, top)
    return (float(np.sort(np.asarray(errors, dtype=np.float64)).mean()) + best) / 2


def top_tier(errors: Sequence[float] | Floats, top: int = TOP) -> float:
    """The top-tier error: the mean of the best ``top``, at most of the better half."""
    if not len(ordered := np.sort(np.asarray(errors, dtype=np.float64))):
        raise SuperformerError("the E-T error of no architecture at all was asked for")
    return float(ordered[: max(1, min(top, math.ceil(len(ordered) / 2)))].mean())


def equation_7(values: Sequence[float] | Floats, errors: Sequence[float]) -> tuple[float, float]:
    """The slope and the intercept of the least squares line through the E-T errors of a dimension's values."""
    if len(set(values)) < 2:
        return 0.0, float(np.mean(errors))
    slope, intercept = np.polyfit(values, errors, 1)
    return float(slope), float(intercept)


def trend(
    dimension: Dimension, errors: Sequence[float], gamma: float, tau: float = TAU, rounding: Rounding = "floor"
) -> Trend:
    """Eqs. 7 and 8, for the E-T errors (in percent) of the sub-spaces of a dimension's values.

    ``floor`` is the paper's: any negative slope moves a list up by a step or more, a positive one moves it down from
    tau on. ``symmetric`` rounds towards zero, so both directions need a slope of tau. Only values above 0 stay."""
    slope, _ = equation_7(np.asarray(dimension.values) / gamma, errors)
    up, rounded = slope / tau + NOISE, slope / tau + math.copysign(NOISE, slope)
    steps = math.floor(up) if rounding == "floor" else math.trunc(rounded)
    return Trend(dimension, tuple(errors), slope, steps, _moved(dimension, steps, gamma))


def _moved(dimension: Dimension, steps: int, gamma: float) -> tuple[float, ...]:
    return tuple(v - steps * gamma for v in dimension.values if v - steps * gamma > 0) or dimension.values


def by_lot(trends: Sequence[Trend], own: SpaceEvolution, rng: np.random.Generator) -> list[Trend]:
    """The same steps, each up or down by lot."""
    out = []
    for t in trends:
        steps = t.steps * (1 if rng.random() < 0.5 else -1)
        out.append(replace(t, steps=steps, after=_moved(t.dimension, steps, own.gamma[t.dimension.name])))
    return out


def evolved(
    space: Space, trends: Sequence[Trend], name: str, within: Callable[[Space], bool] = lambda space: True
) -> tuple[Space, list[Trend]]:
    """The next space, and the trends with what really became of each dimension: values that the family cannot have, or
    with which a space is not ``within`` its limit, are left out."""
    space = replace(space, name=name)
    done = []
    for own in trends:
        kept, n = own.dimension.values, len(own.after)
        # the list, then without its largest values one after another, then without its smallest
        for values in [own.after[:k] for k in range(n, 0, -1)] + [own.after[k:] for k in range(1, n)]:
            try:
                moved = _with(space, own.dimension, values)
            except (SpaceError, SuperformerError):
                continue
            if not within(moved):
                continue
            space = moved
            kept = values
            break
        done.append(replace(own, after=kept))
    return space, done


def measurable(space: Space, num_classes: int, macs_max: float | None) -> bool:
    """Whether the space, and each sub-space that has to be measured, has a network of at most so many MACs."""
    if macs_max is None:
        return True
    parts = [space, *(part for _, some in subspaces(space) for part in some.values())]
    return bool(cost(space, [part.smallest() for part in parts], num_classes).macs.max() <= macs_max)


def _with(space: Space, dimension: Dimension, values: tuple[float, ...]) -> Space:
    """A space in which a dimension has other values."""
    whole = tuple(int(v) if float(v).is_integer() else float(v) for v in values)

    def listed(spec: Spec) -> Spec:
        if isinstance(spec, Choice):
            return Choice(whole)
        return Ratio(whole, spec.of) if isinstance(spec, Ratio) else spec

    def put(specs: Mapping[str, Spec]) -> dict[str, Spec]:
        return {name: listed(spec) if name == dimension.name else spec for name, spec in specs.items()}

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


def evolve_space(
    recipe: Recipe | str,
    spec: str,
    folder: str | Path,
    *changes: str,
    console: Console | None = None,
    draw: Drawing | None = None,
) -> dict[str, Any]:
    """Evolve the space of a recipe on pictures; returns the trace, which is also in ``evolution.json``. ``draw``
    (`superformer.draw.evolution.draw`) makes a picture of the trace and the recipe's name."""
    settings = recipe if isinstance(recipe, Recipe) else resolve(recipe, changes)
    space = space_of(settings)
    known = {d.name for d in dimensions(space)}
    if strange := set(settings.evolve.gamma) - known - set(SpaceEvolution().gamma):
        name = min(strange)
        raise SuperformerError(f"evolve.gamma has a step for {name!r}, which is no dimension: {nearest(name, known)}")
    if (most := settings.evolve.macs_max) is not None:  # a limit that nobody meets is refused before any training
        classes = len(data.load(spec, settings.data, settings.img_size or space.img_size).classes)
        space.sample(1, seed=0, macs=(None, most), num_classes=classes)
    world = World.join()
    try:
        return _evolve(settings, space, spec, Path(folder), world, quiet(console if world.first else None), draw)
    finally:
        world.leave()


def _evolve(
    settings: Recipe, space: Space, spec: str, folder: Path, world: World, console: Console, draw: Drawing | None
) -> dict[str, Any]:
    tell, trace = teller(console), list[dict[str, Any]]()

    for t in range(settings.evolve.rounds + 1):
        last = t == settings.evolve.rounds
        tell(f"space {t}: {space.size:.3g} architectures")
        here = folder if last else folder / "spaces" / str(t)
        run = train(_for(settings, space, folder, t), spec, here, console=console)
        if world.first:
            note_command(folder)
        entry, trends = _measure(run, settings, world, tell)
        trace.append({"space": json.loads(space.to_json()), **entry, "trends": [own.to_dict() for own in trends]})
        found = f"expected {entry['expected']:.2f} %, best found {entry['best']:.2f} %"
        tell(f"space {t}: E-T error {entry['et_error']:.2f} % ({found})")
        if world.first:
            files.write_object(folder / "evolution.json", {"spaces": trace})
        if not last:
            if settings.evolve.moves == "random":
                trends = by_lot(trends, settings.evolve, np.random.default_rng([settings.seed, 6, t]))
            classes, most = len(run.facts()["classes"]), settings.evolve.macs_max
            within = functools.partial(measurable, num_classes=classes, macs_max=most)
            if most is not None:  # where not all can move, those that gain most do
                trends = sorted(trends, key=lambda own: own.slope)
            space, trends = evolved(space, trends, f"{settings.name}-{t + 1}", within)
            trace[-1]["trends"] = [own.to_dict() for own in trends]
            for own in trends:
                if own.after != own.dimension.values:
                    change = f"{_list(own.dimension.values)} -> {_list(own.after)}"
                    tell(f"  {own.dimension.label}: {change} (slope {own.slope:+.2f} % a step)")
    if draw is not None and world.first:
        files.write(folder / "evolution.svg", draw(trace, settings.name))
        tell(f"a picture of the trace is in {folder / 'evolution.svg'}")
    whole: dict[str, Any] = json.loads(json.dumps({"spaces": trace}))
    return whole


def _for(recipe: Recipe, space: Space, folder: Path, t: int) -> Recipe:
    """The recipe of the t-th space; its supernet begins with what fits of the one before, or as the first one."""
    previous = t and recipe.evolve.start == "previous"
    before = {"run": str(folder / "spaces" / str(t - 1)), "timm": None} if previous else {}
    start = recipe.start.model_copy(update=before)
    said: dict[str, Any] = {"narrow": {}, "private": None, "identity": None}  # what they changed is in the space
    return recipe.model_copy(update={"space": json.loads(space.to_json()), "start": start, **said})


WHOLE = 0
"""The number of the whole space among the draws of `drawn`."""


def drawn(part: Space, recipe: Recipe, number: int, num_classes: int) -> list[Arch]:
    """The N architectures of eq. 5 that measure a space or, by their ``number``, one of its `subspaces`."""
    own, rng = recipe.evolve, np.random.default_rng([recipe.seed, 5, number])
    limit = None if own.macs_max is None else (None, own.macs_max)
    return part.sample(own.samples, rng, macs=limit, num_classes=num_classes)


def drawn_errors(
    part: Space, recipe: Recipe, number: int, num_classes: int, known: Mapping[str, float]
) -> list[float] | None:
    """The errors (in percent) of what `drawn` gives, each as often as it was drawn, by the accuracies that are known of
    paths; None if some are not."""
    paths = [arch.path for arch in drawn(part, recipe, number, num_classes)]
    return [100 * (1 - known[path]) for path in paths] if all(path in known for path in paths) else None


def subspaces(space: Space) -> Iterator[tuple[Dimension, dict[int, Space]]]:
    """Each dimension, and by number the sub-space of each of its values."""
    for k, own in enumerate(dimensions(space)):
        yield own, {1 + 100 * k + j: own.at(space, value) for j, value in enumerate(own.values)}


def _measure(run: Run, recipe: Recipe, world: World, tell: Tell) -> tuple[dict[str, float], list[Trend]]:
    """The E-T error of a space and of the sub-spaces of each dimension's values, in percent."""
    own, trained = recipe.evolve, TrainedRun.of(run, device=world.device)
    space, evaluator = trained.space, trained.evaluator()
    with run.lock() if world.first else nullcontext(), history_of(trained) if world.first else nullcontext() as history:
        scorer = Scorer(evaluator, history, world)

        def errors(part: Space, number: int) -> list[float]:
            archs = drawn(part, recipe, number, trained.net.num_classes)
            return [100 * (1 - a) for a in scorer.accuracies(archs, kind="space" if number == WHOLE else "subspace")]

        whole = errors(space, WHOLE)
        entry = {"et_error": et_error(whole, own.top), "expected": float(np.mean(whole)), "best": min(whole)}
        trends, found = list[Trend](), list(subspaces(space))
        for k, (dimension, parts) in enumerate(found):
            gamma = own.gamma.get(dimension.name)
            if gamma is None:
                continue  # a dimension without a step stays as it is
            measured = [et_error(errors(part, number), own.top) for number, part in parts.items()]
            trends.append(trend(dimension, measured, gamma, own.tau, own.rounding))
            each = ", ".join(f"{e:.2f}" for e in measured)
            tell(f"  {k + 1} of {len(found)}: {dimension.label} {_list(dimension.values)}: {each} %")
    world.wait()
    return entry, trends


def _list(values: tuple[float, ...]) -> str:
    return "{" + ", ".join(f"{v:g}" if math.isfinite(v) else "?" for v in values) + "}"
