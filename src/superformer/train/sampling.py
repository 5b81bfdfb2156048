"""Which sub-networks a step trains.

* ``single``: one, drawn uniformly (SPOS, AutoFormer, ViTAS);
* ``sandwich``: the largest, the smallest, and some random ones (S3, algorithm 2; NASViT, section 2: two);
* ``multi``: several in one forward-backward pass, each on its part of the batch (ViT-ResNAS, section 2.3).

There is no state: the step's number and the seed decide everything, so a resumed run draws what the unbroken one would
have drawn, and all processes draw the same. (NASViT's and AutoFormer's processes draw each its own.) Below are the
warm-up, in which the largest choices come first, and the search for the probability of identities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from superformer.cost.latency_table import LatencyTable
from superformer.errors import InfeasibleError, SuperformerError
from superformer.recipes.settings import Identity, Recipe
from superformer.settings import Limits
from superformer.sharing import SIDES, Sharing
from superformer.space import Space, Stage
from superformer.space.arch import Arch
from superformer.space.costs import cost, skeleton
from superformer.space.genes import widest
from superformer.space.stage import Divided, Spec, Times

ARCHS, SIDE, IDENTITY = 1, 2, 3
"""What a random stream is for."""
BLOCK = 64
"""Steps whose networks are drawn together: a draw within limits costs hardly more than one for a single step."""
EXISTENCE = 4
"""Whether a skippable block runs is a choice from the list [yes, yes, no, no], as released."""
SAMPLES, START, HUNDREDTHS = 1000, 50, 100
"""Of the search for the probability of identities: samples for each mean; the first probability, in hundredths."""
MEASURED, BATCHES = ("latency", "throughput"), {"latency": 1, "throughput": 32}
"""Costs whose expectation needs a table of measured times, and pictures at once unless a recipe says otherwise."""


@dataclass(frozen=True)
class Turn:
    """One forward-backward pass of a step.

    Several ``archs`` share the batch in equal parts. Two ``sides`` (bilateral sharing): a pass with each on the same
    pictures, their logits added, one backward, as ViTAS released it. The ``largest`` of a sandwich is the teacher of
    the others."""

    archs: tuple[Arch, ...]
    sides: tuple[str, ...] = ("left",)
    role: str = "subnet"


class Sampler:
    """The turns of every step.

    With limits (``macs``, ``params``) random networks are drawn within them; the largest and the smallest of a sandwich
    remain those of the space, which bound all others (S3's algorithm 2 is "without resource constraints"; no paper
    limits a sandwich). During a warm-up the smallest is that of the choices admitted so far. With limits the warm-up
    begins where the first networks within them appear."""

    def __init__(self, space: Space, recipe: Recipe, num_classes: int, total_steps: int):
        settings = recipe.sampling
        self.settings, self.num_classes, self.seed, self.img_size = settings, num_classes, recipe.seed, recipe.img_size
        self.random = {"single": 1, "sandwich": settings.networks, "multi": settings.networks}[settings.rule]
        if settings.rule == "multi" and not self.random:
            raise SuperformerError("sampling: rule=multi needs networks of at least 1, the number that share a batch")
        if settings.sides != "left" and Sharing(recipe.sharing).sides != SIDES:
            needs = f"sides={settings.sides} needs bilateral sharing"
            raise SuperformerError(f"sampling: {needs}; {recipe.sharing} sharing has the left side only")
        if settings.even and (settings.macs or settings.params):
            raise SuperformerError("sampling: networks with even widths may be beyond the limits: set even=0")
        if settings.identity is not None:
            if settings.over != "choices":
                needs = "identity sets a probability of over=choices"
                raise SuperformerError(f"sampling: {needs}; over=architectures does not use it")
            space = with_budget(space, settings.identity, [self.seed, IDENTITY], num_classes, self.img_size)
        self.space = space
        self.warmup_steps = round(settings.warmup * total_steps)
        self._counts = choice_counts(space)
        self._spaces: dict[tuple[int, ...], Space] = {}
        self._drawn: tuple[tuple[object, int], list[Arch]] | None = None

    def turns(self, step: int, at: float | None = None) -> list[Turn]:
        """The passes of a step, in order; ``at``: where in the training it is, if its number does not say."""
        if step < 0:
            raise SuperformerError(f"steps are counted from 0, not {step}")
        place = step if at is None else int(at)
        sides, drawn = SIDES if self.settings.sides == "both" else SIDES[:1], self._random(step, place)
        if self.settings.sides == "random":
            sides = (SIDES[int(np.random.default_rng([self.seed, SIDE, step]).integers(2))],)
        if self.settings.rule == "multi":
            return [Turn(tuple(drawn), sides)]
        if self.settings.rule == "single":
            return [Turn((drawn[0],), sides)]
        smallest = self.space_at(place).smallest()
        return [Turn((self.space.largest(),), sides, "largest"), *(Turn((arch,), sides) for arch in (smallest, *drawn))]

    def covers_all(self) -> bool:
        """Whether every step touches every weight: the largest of a sandwich does, unless some weights are private to
        other choices (ViTAS v1's class tokens, q and k; NASViT's scales)."""
        if self.settings.rule != "sandwich" and self.space.size > 1:
            return False
        used = cost(self.space, self.space.largest(), self.num_classes).params[0]
        return bool(used == sum(p.numel() for p in skeleton(self.space, self.num_classes).parameters()))

    def _random(self, step: int, place: int) -> list[Arch]:
        """Independent draws. (ViT-ResNAS's released code draws the networks of one device without replacement from each
        list.)"""
        block, at = divmod(step, BLOCK)
        space = self.space_at(place)
        key = (space.name, self._level(place) if place < self.warmup_steps else None), block
        if self._drawn is None or self._drawn[0] != key:
            rng = np.random.default_rng([self.seed, ARCHS, block])
            self._drawn = key, self._draw(space, BLOCK * self.random, rng)
        return self._drawn[1][at * self.random : (at + 1) * self.random]

    def _draw(self, space: Space, n: int, rng: np.random.Generator) -> list[Arch]:
        own, size = self.settings, self.img_size
        limits = {"macs": own.macs, "params": own.params}
        drawn = space.sample(n, rng, **limits, over=own.over, num_classes=self.num_classes, img_size=size)
        if not own.even:
            return drawn
        genes, chosen = space.encode(drawn), rng.random(n) < own.even
        return space.decode(np.where(chosen[:, None], widest(space, genes), genes))

    def space_at(self, step: int) -> Space:
        """The space that a step's random networks come from: during the warm-up a part of the whole, that of the step
        or of the first later one that has a network within the limits."""
        if step >= self.warmup_steps:
            return self.space
        level = self._level(step)
        if level not in self._spaces:
            self._spaces[level] = self.space
            tried: tuple[int, ...] = ()
            for later in range(step, self.warmup_steps):
                if self._level(later) == tried:
                    continue
                tried, part = self._level(later), warmup_space(self.space, later, self.warmup_steps)
                with suppress(InfeasibleError):
                    self._draw(part, 1, np.random.default_rng(0))
                    self._spaces[level] = part
                    break
        return self._spaces[level]

    def _level(self, step: int) -> tuple[int, ...]:
        return tuple(enabled(n, step, self.warmup_steps) for n in self._counts)


# Filter warm-up (ViT-ResNAS, appendix C, *warm up*): only the largest sub-network is sampled at first, then smaller
# widths and depths, too, and any "after 25 % of total training epochs". The paper does not say how; the schedule is the
# released one, by steps instead of epochs.


def enabled(choices: int, step: int, length: int) -> int:
    """How many of a list of choices, the largest ones, may be drawn at a step of a warm-up of ``length`` steps."""
    return choices if step >= length else 1 + step * (choices - 1) // length


def skip_probability(stage: Stage, step: int, length: int) -> float:
    """The probability of leaving a skippable block out: with [yes, yes, no, no] nothing, then 1/3, then 1/2. With
    another final probability the odds grow in the same way: nothing, half of the final ones, the final ones."""
    absent = max(enabled(EXISTENCE, step, length) - EXISTENCE // 2, 0) / (EXISTENCE // 2)
    odds = absent * stage.skip / (1 - stage.skip)
    return odds / (1 + odds)


def choice_counts(space: Space) -> tuple[int, ...]:
    """The lengths of all lists of choices: two steps with the same number enabled of each have the same space."""
    found = {len(spec.values) for spec in space.choices.values()}
    for stage in space.stages:
        found |= {len(spec.values) for specs in (stage.choices, *stage.blocks) for spec in specs.values()}
        found.add(EXISTENCE if stage.free else len(stage.depths))
    return tuple(sorted(found))


def warmup_space(space: Space, step: int, length: int) -> Space:
    """The space that a step of the warm-up draws from: every architecture in it lies in ``space``, too."""
    if step >= length:
        return space

    def last(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return values[-enabled(len(values), step, length) :]

    def cut(specs: Mapping[str, Spec]) -> dict[str, Spec]:
        return {k: s if isinstance(s, Times | Divided) else replace(s, values=last(s.values)) for k, s in specs.items()}

    stages = []
    for stage in space.stages:
        depth = stage.positions if stage.free else last(stage.depths)
        blocks = [cut(specs) for specs in stage.blocks]
        own = replace(stage, block=blocks, depth=depth, skippable=(), choices=cut(stage.choices))
        if stage.free and (share := skip_probability(stage, step, length)):
            own = replace(own, skippable=stage.free, skip=share)
        stages.append(own)
    return replace(space, name=f"{space.name}-warmup", stages=tuple(stages), choices=cut(space.choices))


# The probability of identities (ViTAS v1, section 4.3, *constrained sampling for budget alignment*): where every
# position of a stage may be one, the paper sets their probability ``p`` such that ``B = E[B(alpha)]`` for a budget
# ``B``: the supernet is trained at about the size that is searched for. As released: start at 0.5; while the mean of
# 1000 samples lies above the window add 0.01, while it lies below subtract 0.01. The released counter takes the
# classifier once for each patch and leaves the class token out; here the samples' true MACs are counted. The released
# code has a second loop for a budget of throughput, that of batches of 256; here a table of measured times predicts it.


def search_probability(
    mean: Callable[[float], float],
    low: float,
    high: float,
    say: Callable[[float], str] = "{:,.0f} MACs".format,
    rate: bool = False,
) -> float:
    """The probability at which ``mean``, which falls as it grows, lies between ``low`` and ``high``. The released loop
    runs for ever when a step of 0.01 jumps over the window; this one says so (``rate``: of the inverse)."""
    at, seen = START, dict[int, float]()
    while True:
        value = seen[at] = mean(at / HUNDREDTHS)
        if low <= value <= high:
            return at / HUNDREDTHS
        here, at = at, at + (1 if value > high else -1)
        wanted = f"no probability of identities gives an expected cost from {say(low)} to {say(high)}: "
        wanted += f"{here / HUNDREDTHS:g} gives {say(value)}"
        if at in seen:
            raise InfeasibleError(f"{wanted}, {at / HUNDREDTHS:g} gives {say(seen[at])}; widen the window")
        if not 0 < at < HUNDREDTHS:
            how = "raise" if (value > high) != rate else "lower"
            raise InfeasibleError(f"{wanted}, and there is nothing beyond; {how} the window")


def with_identities(space: Space, probability: float) -> Space:
    """The space whose skippable positions are identities with this probability."""
    stages = (replace(s, depth=s.positions, skip=probability) if s.free else s for s in space.stages)
    return replace(space, stages=tuple(stages))


def with_budget(
    space: Space,
    wanted: Limits | Identity | float,
    seed: list[int],
    num_classes: int,
    img_size: int | None,
    table: LatencyTable | None = None,
) -> Space:
    """The space with the probability of identities that brings the expected cost within limits: MACs, or what
    ``wanted`` names, latency and throughput as a ``table`` predicts them. Every probability is tried with the same
    random numbers, drawn from ``seed``."""
    if not any(s.free for s in space.stages):
        raise SuperformerError(
            f"sampling: identity needs free identities, and {space.name} has none (its stages have lists of depths); "
            "give the limits as macs instead, and every random network is drawn within them"
        )
    if isinstance(wanted, float):
        return with_identities(space, wanted)
    name = wanted.cost if isinstance(wanted, Identity) else "macs"
    limits: Limits = getattr(wanted, name) if isinstance(wanted, Identity) else wanted
    low, high = (-np.inf if limits[0] is None else limits[0]), (np.inf if limits[1] is None else limits[1])
    if low > high:
        raise InfeasibleError(f"identity={limits!r} leaves nothing: the lower end must not be above the upper end")
    if name in MEASURED and table is None:
        raise SuperformerError(f"sampling: identity by {name} needs a table of times, which train measures")

    def mean(probability: float) -> float:
        genes = with_identities(space, probability).sample_genes(SAMPLES, np.random.default_rng(seed))
        if table is not None:
            return float(table.latency(space, genes).mean())
        return float(getattr(cost(space, genes, num_classes, img_size), name).mean())

    if name == "throughput":  # of all samples one after the other, so that it falls as the mean time grows
        assert table is not None
        low, high = table.batch / high if high else np.inf, table.batch / low if low > 0 else np.inf
    return with_identities(
        space, search_probability(mean, float(low), float(high), _saying(name, table), name == "throughput")
    )


def _saying(name: str, table: LatencyTable | None) -> Callable[[float], str]:
    """How the costs that were tried are told."""
    if name == "throughput" and table is not None:
        return lambda value: f"{table.batch / value if value else np.inf:,.0f} pictures a second"
    if name == "latency":
        return lambda value: f"{1e3 * value:,.3g} ms"
    return lambda value: f"{value:,.0f} {'MACs' if name == 'macs' else 'parameters'}"


def measured_identity(
    space: Space, recipe: Recipe, num_classes: int, img_size: int, device: str
) -> tuple[float, LatencyTable] | None:
    """The probability of identities for a budget of time, and the table that it follows from, measured now on the
    device that trains; None where nothing needs to be measured."""
    wanted = recipe.sampling.identity
    if not isinstance(wanted, Identity) or wanted.cost not in MEASURED:
        return None
    if not any(s.free for s in space.stages):
        with_budget(space, wanted, [], num_classes, img_size)  # says what is wrong
    how: dict[str, Any] = {"threads": wanted.threads, "seconds": wanted.seconds, "seed": recipe.seed}
    batch = wanted.batch or BATCHES[wanted.cost]
    table = LatencyTable.build(space, num_classes, img_size, batch=batch, device=device, **how)
    own = with_budget(space, wanted, [recipe.seed, IDENTITY], num_classes, img_size, table)
    return next(s.skip for s in own.stages if s.free), table
