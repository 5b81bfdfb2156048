"""Search spaces: declared as the papers' tables, counted exactly, encoded as integer arrays.

A space has network-wide choices (patch size, width, resolution), and stages. A stage has its own choices, a number of
blocks and choices for each block. How many blocks run is declared in one of two ways:

* ``depth=(12, 13, 14)``: identities sit at the end of the stage (ViTAS v2, section 5, *identity shifting*), so that one
  architecture is one point;
* ``depth=16, skippable=range(16)``: any of these positions may be an identity (ViTAS v1; in ViT-ResNAS the second block
  of each pair). Many *paths* through the supernet are then one architecture; `Space.size` counts architectures,
  `Space.paths` counts paths.

Values are written from the smallest network to the largest.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from superformer.errors import ArchError, SpaceError, nearest, shown
from superformer.space import sampling
from superformer.space.arch import CHECKS, Arch, Value, Values, plain
from superformer.space.genes import Genes, Layout, Population
from superformer.space.sampling import Limit
from superformer.space.schema import family
from superformer.space.stage import (
    Choice,
    Divided,
    Ratio,
    Spec,
    Stage,
    Times,
    following,
    read_space,
    scaled,
    spec_of,
    specs_of,
    written,
)

MOST = 10**300
"""Paths of the largest space: numbers of architectures are also told and weighed as floating-point numbers."""


@dataclass(frozen=True)
class Space:
    """A space of architectures of one family.

    ``options`` set the family's function (relative positions, pooling; they become part of every arch), ``weights`` how
    the supernet keeps its weights (which of q, k, v are private to a head count)."""

    name: str
    family: str
    stages: tuple[Stage, ...]
    choices: Mapping[str, Any] = field(default_factory=dict)
    img_size: int = 224
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.choices, Mapping) or not isinstance(self.stages, Iterable):
            raise SpaceError("a space's choices are named values, and its stages a list of stages")
        choices = dict(self.choices)
        resolution = choices.pop("resolution", self.img_size)
        object.__setattr__(self, "choices", {"resolution": spec_of("resolution", resolution), **specs_of(choices)})
        object.__setattr__(self, "stages", tuple(self.stages))
        if wrong := [stage for stage in self.stages if not isinstance(stage, Stage)]:
            raise SpaceError(f"a space's stages are Stage(...), not {shown(wrong[0])}")
        schema = family(self.family).schema
        object.__setattr__(self, "options", schema.normal_options(self.options))
        object.__setattr__(self, "weights", Values(self.weights))
        for where, specs in self._scopes():
            for name, spec in specs.items():
                if not isinstance(spec, Choice) and not (isinstance(spec.of, str) and spec.of in where):
                    near = nearest(spec.of, where)
                    raise SpaceError(
                        f"{self.name}: {name} is a multiple of {shown(spec.of)}, which is not there: {near}"
                    )
        schema.check_space(self)
        if self.paths > MOST:
            raise SpaceError(f"{self.name} has more than {MOST:.0e} paths: give blocks, or their choices, fewer values")
        for i, stage in enumerate(self.stages):
            for p, block in enumerate(stage.blocks[:1] if len(set(map(str, stage.blocks))) == 1 else stage.blocks):
                for name, spec in block.items():
                    bases = self._bases(i, p, spec.of) if isinstance(spec, Ratio) else ()
                    if any(len({scaled(b, v) for v in spec.values}) < len(spec.values) for b in bases):
                        same = f"two ratios of {name} in stage {i} give the same width"
                        raise SpaceError(f"{self.name}: {same}; leave one out")
                    if isinstance(spec, Divided):
                        self._check_divides(i, name, spec, self._bases(i, p, spec.of))

    def _check_divides(self, stage: int, name: str, spec: Divided, bases: Iterable[Value]) -> None:
        if odd := [b for b in bases if not isinstance(b, int) or b % spec.divisor]:
            parts = f"{spec.of}={odd[0]} of stage {stage} does not divide by {spec.divisor}"
            raise SpaceError(f"{self.name}: {parts}, which {name} needs: write multiples of {spec.divisor}")

    def _scopes(self) -> Iterable[tuple[set[str], Mapping[str, Spec]]]:
        yield set(self.choices), self.choices
        for stage in self.stages:
            yield set(self.choices) | set(stage.choices), stage.choices
            for block in stage.blocks:
                yield set(self.choices) | set(stage.choices) | set(block), block

    # --- what is in it ---

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    @functools.cached_property
    def size(self) -> int:
        """The number of different architectures, exactly."""
        count = math.prod(len(s.values) for s in self.choices.values())
        for stage in self.stages:
            count *= math.prod(len(s.values) for s in stage.choices.values()) * sum(map(stage.sequences, stage.depths))
        return count

    @functools.cached_property
    def paths(self) -> int:
        """The number of paths through the supernet, as ViTAS v1 counts with free identities: 3 * 10 * 401^16."""
        count = math.prod(len(s.values) for s in self.choices.values())
        for stage in self.stages:
            count *= math.prod(len(s.values) for s in stage.choices.values())
            if stage.free:
                count *= math.prod(stage.options(p) + (p in stage.free) for p in range(stage.positions))
            else:
                count *= sum(map(stage.sequences, stage.depths))
        return count

    def _bases(self, stage: int, position: int, name: str) -> tuple[Value, ...]:
        own = self.stages[stage]
        for specs in (own.blocks[position] if own.positions else {}, own.choices, self.choices):
            if name in specs:
                spec: Spec = specs[name]
                if isinstance(spec, Choice):
                    return spec.values
                bases = self._bases(stage, position, spec.of)
                return tuple({following(spec, b, v) for b in bases for v in spec.values})
        return ()

    def widths(self, name: str, stage: int = 0, position: int = 0) -> tuple[int, ...]:
        """Every size that a value may take, ascending."""
        return tuple(sorted(int(v) for v in self._bases(stage, position, name)))

    def unit(self, name: str, stage: int, position: int) -> int:
        """How many channels move together: a head's, where the value is a multiple of the number of heads, or the heads
        are what it divides into."""
        block = self.stages[stage].blocks[position]
        spec = block[name]
        if isinstance(spec, Times):
            return spec.factor
        return next((s.divisor for s in block.values() if isinstance(s, Divided) and s.of == name), 1)

    def smallest(self) -> Arch:
        """The first value of every choice."""
        return self.decode(np.zeros((1, len(self.bounds)), dtype=np.int64))[0]

    def largest(self) -> Arch:
        """The last value of every choice."""
        return self.decode(np.asarray(self.bounds, dtype=np.int64)[None] - 1)[0]

    # --- populations as integer arrays ---

    @functools.cached_property
    def layout(self) -> Layout:
        return Layout.of(self)

    @property
    def bounds(self) -> tuple[int, ...]:
        """The number of values of each gene; a gene is an index into the values of one choice."""
        return self.layout.bounds

    @property
    def gene_names(self) -> tuple[str, ...]:
        return self.layout.names

    def population(self, genes: Genes) -> Population:
        """The values of a whole population, as arrays."""
        return self.layout.population(np.asarray(genes))

    def encode(self, archs: Iterable[Arch]) -> Genes:
        """Architectures as rows of genes; the genes of blocks that do not run are 0."""
        rows = [self.layout.row(self.same_kind(arch)) for arch in archs]
        return np.asarray(rows, dtype=np.int64).reshape(len(rows), len(self.bounds))

    def decode(self, genes: Genes) -> list[Arch]:
        """Rows of genes as architectures; the genes of blocks that do not run are not looked at."""
        found = self.population(genes)
        return [found.arch(k) for k in range(found.n)]

    def same_kind(self, arch: Arch) -> Arch:
        """The architecture, if it is one of the family, the options and the number of stages that the space holds."""
        if not isinstance(arch, Arch):
            how = "make one with Arch.from_json(text) or space.decode(genes)"
            raise ArchError(f"an Arch is needed, not {type(arch).__name__}; {how}")
        if arch.family != self.family:
            raise ArchError(f"{arch.key} is a {arch.family}; the space {self.name} holds {self.family} networks")
        ours, mine, theirs = f"networks of the space {self.name}", len(self.stages), len(arch.stages)
        if arch.options != self.options:
            raise ArchError(f"{arch.key} has the options {arch.options}; {ours} have {self.options}")
        if theirs != mine:
            raise ArchError(f"{arch.key} has {theirs} stages; {ours} have {mine}")
        return arch

    def __contains__(self, arch: object) -> bool:
        if not isinstance(arch, Arch):
            return False
        try:
            self.encode([arch])
        except ArchError:
            return False
        return True

    # --- drawing and varying ---

    def sample(
        self,
        n: int = 1,
        seed: int | np.random.Generator = 0,
        *,
        macs: Limit | None = None,
        params: Limit | None = None,
        over: str = "choices",
        num_classes: int = 1000,
        img_size: int | None = None,
    ) -> list[Arch]:
        """Draw ``n`` architectures, every choice uniform as the papers sample: depth and network-wide choices first,
        then active blocks; or uniformly over different architectures (``over="architectures"``: nearly always the
        deepest, they are the most). Limits ``macs=(lo, hi)``, ``params=(lo, hi)``, both ends included, condition it."""
        how: Any = {"macs": macs, "params": params, "over": over, "num_classes": num_classes, "img_size": img_size}
        return self.decode(self.sample_genes(n, seed, **how))

    def sample_genes(
        self,
        n: int = 1,
        seed: int | np.random.Generator = 0,
        *,
        macs: Limit | None = None,
        params: Limit | None = None,
        over: str = "choices",
        num_classes: int = 1000,
        img_size: int | None = None,
    ) -> Genes:
        """The same as `sample`, as rows of genes."""
        rng = np.random.default_rng(seed)
        limits = {name: limit for name, limit in (("macs", macs), ("params", params)) if limit is not None}
        if not limits:
            return sampling.sample(self, n, rng, over)
        return sampling.sample_within(self, n, rng, over, limits, num_classes, img_size)

    # --- smaller spaces ---

    def narrow(self, **limits: Any) -> Space:
        """A smaller space: ``space.narrow(patch_size=16, depth=(12, 13), heads=[3])`` keeps only these values of the
        named choices. Values of a ratio are given as ratios; ``depth={0: 3}`` limits stage 0 only."""
        named = [self.choices, *(specs for s in self.stages for specs in (s.choices, *s.blocks[:1]))]
        known = [*dict.fromkeys(name for specs in named for name in specs), "depth"]
        for name, limit in limits.items():
            if name in ("macs", "params"):
                raise SpaceError(f"narrow() limits choices; give {name}=(lo, hi) to sample()")
            if name not in known:
                raise SpaceError(f"the space {self.name} has no choice {name!r}: {nearest(name, known)}")
            if not isinstance(limit, Mapping):
                continue
            if name in self.choices:
                raise SpaceError(f"{self.name}: {name} is a choice of the whole network; {limit!r} does not fit")
            if not set(limit) <= set(range(len(self.stages))):
                last = len(self.stages) - 1
                raise SpaceError(f"{self.name}: {name} has stages 0 to {last}; {limit!r} does not fit")

        def limit_of(name: str, stage: int | None) -> Any:
            given = limits.get(name)
            return given.get(stage) if isinstance(given, Mapping) else given

        def cut(specs: Mapping[str, Spec], stage: int | None) -> dict[str, Spec]:
            return {name: _narrowed(name, spec, limit_of(name, stage)) for name, spec in specs.items()}

        stages = []
        for i, stage in enumerate(self.stages):
            depth = limit_of("depth", i)
            depths = stage.depths if depth is None else _narrowed("depth", Choice(stage.depths), depth).values
            if stage.free and set(depths) != set(stage.depths):
                raise SpaceError(f"stage {i} of {self.name} has free identities: its depth cannot be narrowed")
            at = stage.placement(int(max(depths)))
            order = [at.index(p) for p in stage.ranked if p in at] if stage.order else ()
            kept = stage.positions if stage.free else tuple(int(d) for d in depths)
            blocks = [cut(stage.blocks[p], i) for p in at]
            stages.append(replace(stage, block=blocks, depth=kept, choices=cut(stage.choices, i), order=order))
        return replace(self, name=f"{self.name}-narrowed", stages=tuple(stages), choices=cut(self.choices, None))

    # --- the same choices, other supernets ---

    def with_private(self, *words: str) -> Space:
        """The space with these weights private and all others shared (ViTAS v1, table 2): ``"cls_token"``, ``"qk"``,
        ``"v"`` of a vit; ``"none"`` or ``"all"``."""
        return replace(self, weights=family(self.family).schema.private_weights(words))

    def with_identities(self, where: str) -> Space:
        """The space with identities ``"shifted"`` to the end of each stage (ViTAS v2, section 5) or ``"free"`` to sit
        at any position that may be left out (v1). A free one is drawn half of the time: the mean depth stays."""
        if where not in ("shifted", "free"):
            raise SpaceError(f"identities are shifted or free, not {where!r}")
        if all(len(s.depths) == 1 for s in self.stages):
            raise SpaceError(f"the space {self.name} has no identities: the depths of its stages are fixed")
        changed = tuple(s.with_identities(where) for s in self.stages)
        return self if changed == self.stages else replace(self, name=f"{self.name}-{where}", stages=changed)

    def point(self, arch: Arch) -> Space:
        """The space of one architecture. A network is a supernet of such a space."""
        self.encode([arch])
        return point(arch)

    # --- JSON ---

    def to_json(self) -> str:
        return written(self)

    @staticmethod
    def from_json(text: str) -> Space:
        return read_space(text, Space)

    def __repr__(self) -> str:
        return f"Space({self.name}: {self.family}, {self.size:.3g} architectures)"


def point(arch: Arch) -> Space:
    """The space that holds one architecture only."""
    stages = tuple(Stage([dict(b) for b in s.blocks], len(s.blocks), dict(s.choices)) for s in arch.stages)
    return Space(arch.key, arch.family, stages, dict(arch.choices), arch.resolution, dict(arch.options))


def check_arch(arch: Arch) -> None:
    """Refuse an architecture from outside that its family cannot have."""
    try:
        found = point(arch)
    except SpaceError as error:
        raise ArchError(f"not a {arch.family} network: {error}") from error
    if found.options != arch.options:
        wrong = f"{arch.options} should be {found.options}"
        raise ArchError(f"options at their default are left out of an architecture: {wrong}")


CHECKS.append(check_arch)


def _narrowed(name: str, spec: Spec, limit: Any) -> Spec:
    if limit is None:
        return spec
    wanted = [plain(v) for v in limit] if isinstance(limit, Iterable) and not isinstance(limit, str) else [plain(limit)]
    for value in wanted:
        if value not in spec.values:
            raise SpaceError(f"{name}={value} is not in the space: possible are {', '.join(map(str, spec.values))}")
    if isinstance(spec, Times | Divided):
        return spec
    return replace(spec, values=tuple(v for v in spec.values if v in wanted))
