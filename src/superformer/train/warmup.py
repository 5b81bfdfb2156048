"""Progressive shrinking: the largest choices first, smaller ones little by little (ViT-ResNAS, appendix C: *warm up*; filter warm-up).

"At the beginning, we only sample and train the largest sub-network. As the training proceeds, we gradually sample and train sub-networks
with smaller widths and depths. After 25 % of total training epochs, sub-networks with any width and depth can be sampled." The paper does
not say how; the schedule is the released one, by steps instead of epochs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from superformer.space import Space, Stage
from superformer.space.stage import Spec, Times

EXISTENCE = 4
"""Whether a skippable block runs is a choice from the list [yes, yes, no, no], as released."""


def enabled(choices: int, step: int, length: int) -> int:
    """How many of a list of choices, the largest ones, may be drawn at a step of a warm-up of ``length`` steps."""
    return choices if step >= length else 1 + step * (choices - 1) // length


def skip(stage: Stage, step: int, length: int) -> float:
    """The probability of leaving a skippable block out: with [yes, yes, no, no] nothing, then 1/3, then 1/2.

    With another final probability than one half the odds grow in the same way: nothing, half of the final ones, the final ones.
    """
    absent = max(enabled(EXISTENCE, step, length) - EXISTENCE // 2, 0) / (EXISTENCE // 2)
    odds = absent * stage.skip / (1 - stage.skip)
    return odds / (1 + odds)


def lengths(space: Space) -> tuple[int, ...]:
    """The lengths of all lists of choices: two steps with the same number enabled of each have the same space."""
    found = {len(spec.values) for spec in space.choices.values()}
    for stage in space.stages:
        found |= {len(spec.values) for specs in (stage.choices, *stage.blocks) for spec in specs.values()}
        found.add(EXISTENCE if stage.free else len(stage.depths))
    return tuple(sorted(found))


def narrowed(space: Space, step: int, length: int) -> Space:
    """The space that a step of the warm-up draws from: every architecture in it lies in ``space``, too."""
    if step >= length:
        return space

    def cut(specs: Mapping[str, Spec]) -> dict[str, Spec]:
        return {
            name: spec if isinstance(spec, Times) else replace(spec, values=spec.values[-enabled(len(spec.values), step, length) :])
            for name, spec in specs.items()
        }

    stages = []
    for stage in space.stages:
        own = replace(stage, block=[cut(b) for b in stage.blocks], depth=stage.positions, skippable=(), choices=cut(stage.choices))
        if not stage.free:
            own = replace(own, depth=stage.depths[-enabled(len(stage.depths), step, length) :])
        elif share := skip(stage, step, length):
            own = replace(own, skippable=stage.free, skip=share)
        stages.append(own)
    return replace(space, name=f"{space.name}-warmup", stages=tuple(stages), choices=cut(space.choices))
