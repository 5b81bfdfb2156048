"""Which sub-networks a step trains.

* ``single``: one, drawn uniformly (SPOS, AutoFormer, ViTAS);
* ``sandwich``: the largest, the smallest, and some random ones (S3, algorithm 2, with two; NASViT, section 2, with two);
* ``multi``: several in one forward-backward pass, each on its part of the batch (ViT-ResNAS, section 2.3).

There is no state: the step's number and the seed decide everything, so a resumed run draws what the unbroken one would have drawn, and
all processes draw the same. (NASViT's and AutoFormer's processes draw each its own.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superformer.cost.population import cost, skeleton
from superformer.errors import InfeasibleError, SuperformerError
from superformer.recipes.settings import Sampling
from superformer.sharing import SIDES, Sharing
from superformer.space import Space
from superformer.space.arch import Arch
from superformer.train import identity, warmup

ARCHS, SIDE, IDENTITY = 1, 2, 3
"""What a random stream is for."""
BLOCK = 64
"""Steps whose networks are drawn together: a draw within limits costs hardly more than one for a single step."""


@dataclass(frozen=True)
class Turn:
    """One forward-backward pass of a step.

    Several ``archs`` share the batch in equal parts. Two ``sides`` (bilateral sharing): a pass with each on the same pictures, their logits
    added, one backward, as ViTAS released it. The ``largest`` of a sandwich is the teacher of the others.
    """

    archs: tuple[Arch, ...]
    sides: tuple[str, ...] = ("left",)
    role: str = "subnet"


class Sampler:
    """The turns of every step.

    With limits (``macs``, ``params``) random networks are drawn within them; the largest and the smallest of a sandwich remain those of the
    space, which bound all others (S3's algorithm 2 is "without resource constraints"; no paper limits a sandwich). During a
    warm-up the smallest is that of the choices admitted so far. With limits the warm-up begins where the first networks within them appear.
    """

    def __init__(
        self, space: Space, settings: Sampling, *, sharing: str, num_classes: int, seed: int, total_steps: int, img_size: int | None = None
    ):
        self.settings, self.num_classes, self.seed, self.img_size = settings, num_classes, seed, img_size
        self.random = {"single": 1, "sandwich": settings.networks, "multi": settings.networks}[settings.rule]
        if settings.rule == "multi" and not self.random:
            raise SuperformerError("sampling: rule=multi needs networks of at least 1, the number that share a batch")
        if settings.sides != "left" and Sharing(sharing).sides != SIDES:
            raise SuperformerError(f"sampling: sides={settings.sides} needs bilateral sharing; {sharing} sharing has the left side only")
        if settings.identity is not None:
            if settings.over != "choices":
                raise SuperformerError("sampling: identity sets a probability of over=choices; over=architectures does not use it")
            space = identity.aligned(space, settings.identity, [seed, IDENTITY], num_classes, img_size)
        self.space, self.sharing = space, sharing
        self.warmup_steps = round(settings.warmup * total_steps)
        self._lengths = warmup.lengths(space)
        self._spaces: dict[tuple[int, ...], Space] = {}
        self._drawn: tuple[tuple[object, int], list[Arch]] | None = None

    def turns(self, step: int) -> list[Turn]:
        """The passes of a step, in order."""
        if step < 0:
            raise SuperformerError(f"steps are counted from 0, not {step}")
        sides, drawn = self._sides(step), self._random(step)
        if self.settings.rule == "multi":
            return [Turn(tuple(drawn), sides)]
        if self.settings.rule == "single":
            return [Turn((drawn[0],), sides)]
        smallest = self.space_at(step).smallest()
        return [Turn((self.space.largest(),), sides, "largest"), *(Turn((arch,), sides) for arch in (smallest, *drawn))]

    def covers_all(self) -> bool:
        """Whether every step touches every weight: the largest of a sandwich does, unless some weights are private to other choices
        (ViTAS v1's class tokens, q and k; NASViT's scales)."""
        if self.settings.rule != "sandwich" and self.space.size > 1:
            return False
        net = skeleton(self.space, self.num_classes)
        return bool(cost(self.space, self.space.largest(), self.num_classes).params[0] == sum(p.numel() for p in net.parameters()))

    def space_at(self, step: int) -> Space:
        """The space that a step's random networks come from: during the warm-up a part of the whole."""
        if step >= self.warmup_steps:
            return self.space
        level = self._level(step)
        if level not in self._spaces:
            self._spaces[level] = self._narrowed(step)
        return self._spaces[level]

    def _level(self, step: int) -> tuple[int, ...]:
        return tuple(warmup.enabled(n, step, self.warmup_steps) for n in self._lengths)

    def _narrowed(self, step: int) -> Space:
        """The space of a step of the warm-up, or of the first later one that has a network within the limits."""
        level: tuple[int, ...] = ()
        for later in range(step, self.warmup_steps):
            if self._level(later) != level:
                level, space = self._level(later), warmup.narrowed(self.space, later, self.warmup_steps)
                try:
                    self._draw(space, 1, np.random.default_rng(0))
                except InfeasibleError:
                    continue
                return space
        return self.space

    def _draw(self, space: Space, n: int, rng: np.random.Generator) -> list[Arch]:
        own = self.settings
        return space.sample(n, rng, macs=own.macs, params=own.params, over=own.over, num_classes=self.num_classes, img_size=self.img_size)

    def _random(self, step: int) -> list[Arch]:
        """Independent draws. (ViT-ResNAS's released code draws the networks of one device without replacement from each list.)"""
        block, at = divmod(step, BLOCK)
        space = self.space_at(step)
        key = (space.name, self._level(step) if step < self.warmup_steps else None), block
        if self._drawn is None or self._drawn[0] != key:
            rng = np.random.default_rng([self.seed, ARCHS, block])
            self._drawn = key, self._draw(space, BLOCK * self.random, rng)
        return self._drawn[1][at * self.random : (at + 1) * self.random]

    def _sides(self, step: int) -> tuple[str, ...]:
        if self.settings.sides == "random":
            return (SIDES[int(np.random.default_rng([self.seed, SIDE, step]).integers(2))],)
        return SIDES if self.settings.sides == "both" else SIDES[:1]
