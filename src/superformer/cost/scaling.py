"""Uniform scaling of a network to a budget: the hand-made baseline that found networks are compared with.

ViTAS v2 scales a network that it found to another one's MACs (table 11) and Twins-S to Twins-T (section 6), ViTAS v1
scales DeiT-Ti from 280M to 350M (table 2); DeiT's own networks are such a row, too. The papers do not say how. Here one
factor multiplies depths and widths alike: the blocks of each stage, the width of tokens, the hidden width of MLPs and
the number of heads, whose size stays. Patches, windows, kernels and expansions stay as they are. Every number is
rounded to a step that divides the network's own, so that the factor 1 gives the network itself.

The factor is found by bisection. Where depths or numbers of heads jump over the budget, the widths alone move: up from
the network below the jump or down from the one above it, whichever side of the middle the budget lies. In a space every
value is the nearest of its list, and between the two networks that enclose the budget values move one after the other,
those of all blocks of a stage together. All networks that can come out for a given one are thus a fixed row, ordered by
cost: the nearest of them to a larger budget never costs less."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from superformer.cost.latency import measure
from superformer.cost.latency_table import LatencyTable
from superformer.errors import InfeasibleError, SuperformerError
from superformer.space import Arch, Choice, Genes, Ratio, Space, Spec, StageArch, Values, point
from superformer.space.arch import Value
from superformer.space.costs import cost
from superformer.space.sampling import Limits, excess, say_cost
from superformer.space.schema import family
from superformer.space.stage import Floats, following
from superformer.spaces import arch as published_arch
from superformer.spaces import model
from superformer.spaces import space as published_space

COARSE, STEP = 24, 8
"""A width's step is a power of two up to 8, and at most so small a part of the smallest width of its kind."""
GOLDEN = (math.sqrt(5) - 1) / 2
"""Its multiples spread evenly, however many of them are taken."""
GROW, MOST = 1.25, 40.0
"""How the factors that enclose a budget are sought, and how far."""
FINE, MEASURED = 1e-6, 1e-2
"""How near the ends of a bisection come; where every step is a measurement."""
NEAR = 0.05
"""A budget that lies so little beyond the largest or the smallest network is met by it."""
BATCH, SECONDS = 32, 0.3
"""Pictures at once that throughput is measured with; time to measure a network."""

Make = Callable[[float, float], Arch]
"""The network whose depths and heads are multiplied by the first, and whose widths by the second factor."""
Pair = tuple[Arch | None, Arch | None]
"""The largest network up to a budget, and the smallest above it."""


def scaled(
    arch: Arch | str,
    *,
    macs: float | None = None,
    params: float | None = None,
    latency: float | None = None,
    throughput: float | None = None,
    space: Space | str | None = None,
    num_classes: int = 1000,
    img_size: int | None = None,
    table: LatencyTable | None = None,
) -> Arch:
    """The network of the same proportions that comes nearest to a budget: one of ``macs``, ``params``, ``latency``
    (seconds a picture) and ``throughput`` (pictures a second).

    With a ``space`` a network of it, else any that the family can have. Latency and throughput are measured here, on
    the CPU with one thread, or predicted by a ``table`` of the space. A budget that no such network comes near raises
    `InfeasibleError`."""
    given = {"macs": macs, "params": params, "latency": latency, "throughput": throughput}
    name, budget = _budget({n: v for n, v in given.items() if v is not None})
    own = published_arch(arch) if isinstance(arch, str) else arch
    home = published_space(space) if isinstance(space, str) else space
    timed = name in ("latency", "throughput")
    if table is not None and (home is None or not timed):
        raise SuperformerError("table= predicts the latency or throughput of networks of a space: give space=, too")
    target = 1 / budget if name == "throughput" else budget  # seconds a picture, which grow with the network
    if timed and table is None:
        costs = _clock(BATCH if name == "throughput" else 1, num_classes, img_size)
        found = _on_path(proportions(own, home), costs, target, MEASURED)[0]
    elif home is None:
        costs = functools.cache(lambda a: _exact(name, point(a), [a], num_classes, img_size)[0])
        if costs(own) == target:  # also where a choice costs nothing, such as an MLP without blocks
            return own.canonical()
        found = _around(proportions(own), costs, target)
    else:

        def of_genes(genes: Genes) -> Floats:
            if table is not None:
                return table.latency(home, genes) / (table.batch if name == "throughput" else 1)
            return _exact(name, home, genes, num_classes, img_size)

        costs = functools.cache(lambda a: float(of_genes(home.encode([a]))[0]))
        found = around(home, own, of_genes, target)
    below, above = found
    if below is None or above is None:
        end = below or above
        assert end is not None
        if abs(costs(end) - target) > NEAR * target:
            reached = 1 / costs(end) if name == "throughput" else costs(end)
            only = f"{'the largest' if above is None else 'the smallest'} has {say_cost(name, reached)}"
            where = "" if home is None else f" in {home.name}"
            wanted = f"no network of the proportions of {own.key} has {say_cost(name, budget)} {name}{where}"
            raise InfeasibleError(f"{wanted}: {only}")
        return end
    return below if target - costs(below) <= costs(above) - target else above


def baseline(space: Space, costs: Callable[[Genes], Mapping[str, Floats]], limits: Limits) -> Arch | None:
    """What one would draw by hand: the largest network of a space scaled to limits on any costs of genes, throughput
    among them, so that it uses them up; in proportions of its middle or smallest network where lists of ratios or input
    sizes keep it from becoming so small. None if none of them is within the limits."""

    def used(genes: Genes) -> Floats:
        """The share of the limit that is used up first."""
        found, shares = costs(genes), [np.zeros(len(genes))]
        for name, (low, high) in limits.items():
            shares.append(low / found[name] if name == "throughput" else found[name] / high)
        share: Floats = np.max(shares, 0)
        return share

    for arch in origins(space):
        below, _ = around(space, arch, used, 1.0)
        if below is not None and not excess(limits, costs(space.encode([below])))[0]:
            return below
    return None


def origins(space: Space) -> list[Arch]:
    """The largest, the middle and the smallest network."""
    middle = space.decode(np.asarray(space.bounds, dtype=np.int64)[None] // 2)[0]
    return [space.largest(), middle, space.smallest()]


def _budget(given: Mapping[str, float]) -> tuple[str, float]:
    if len(given) != 1:
        told = ", ".join(f"{n}={v}" for n, v in given.items()) or "none"
        raise SuperformerError(f"scaled() needs one budget, macs=, params=, latency= or throughput=; given: {told}")
    ((name, budget),) = given.items()
    if isinstance(budget, bool) or not isinstance(budget, int | float | np.number) or not 0 < budget < math.inf:
        raise SuperformerError(f"{name}={budget!r} is no budget: give a number above 0")
    return name, float(budget)


def _exact(name: str, space: Space, archs: Genes | list[Arch], num_classes: int, img_size: int | None) -> Floats:
    counted = cost(space, archs, num_classes, img_size)
    return (counted.macs if name == "macs" else counted.params).astype(np.float64)


def _clock(batch: int, num_classes: int, img_size: int | None) -> Callable[[Arch], float]:
    """Seconds a picture, each network measured once."""

    @functools.cache
    def seconds(arch: Arch) -> float:
        return measure(model(arch, num_classes), img_size, batch=batch, seconds=SECONDS).median / batch

    return seconds


# --- networks of the same proportions ---


def proportions(arch: Arch, space: Space | None = None) -> Make:
    """Networks of the proportions of ``arch``: any, or the nearest ones of a space."""
    return _Free(arch).network if space is None else _Inside(arch, space).network


class _Free:
    """Networks that no space bounds."""

    def __init__(self, arch: Arch):
        self.arch, self.schema = arch, family(arch.family).schema
        all_ = [arch.choices, *(v for s in arch.stages for v in (s.choices, *s.blocks))]
        self.steps = {}
        for name, least in self.schema.widths.items():
            least = self.schema.option(arch.options, least) if isinstance(least, str) else least
            widths = [v.int(name) for v in all_ if name in v]
            fine = (u for u in (STEP, 4, 2, 1) if all(w % u == 0 for w in widths) and COARSE * u <= min(widths))
            self.steps[name] = least if least > 1 else next(fine, 1) if widths else 1

    def network(self, counts: float, widths: float) -> Arch:
        arch, opens = self.arch, self.schema.opens
        stages = []
        for stage in arch.stages:
            layers = len(stage.blocks) + opens
            depth = max(_whole(layers * counts), min(layers, 1)) - opens
            known = [self._values(b, counts, widths) for b in stage.blocks]
            if not known and not self.schema.block:  # blocks that choose nothing are all alike
                known = [Values()]
            blocks = resampled(known, depth) if known else ()
            stages.append(StageArch(tuple(blocks), self._values(stage.choices, counts, widths)))
        top = self._values(arch.choices, counts, widths)
        return Arch(arch.family, arch.resolution, top, tuple(stages), arch.options)

    def _values(self, own: Values, counts: float, widths: float) -> Values:
        out: dict[str, Value] = dict(own)
        for name, step in self.steps.items():
            if name in own:
                out[name] = step * max(_whole(own.int(name) * widths / step), 1)
        if "heads" in own and "attn" in own:
            heads = max(_whole(own.int("heads") * counts), 1)
            out |= {"heads": heads, "attn": heads * (own.int("attn") // own.int("heads"))}
        return Values(out)


class _Inside:
    """The nearest networks of a space: every value the nearest of its list, multiples of others as near to what they
    are in the network."""

    def __init__(self, arch: Arch, space: Space):
        space.same_kind(arch)
        self.arch, self.space, self.schema = arch, space, family(arch.family).schema

    def network(self, counts: float, widths: float) -> Arch:
        arch, space, opens = self.arch, self.space, self.schema.opens
        factors = dict.fromkeys(self.schema.widths, widths) | {"heads": counts}
        old: dict[str, Value] = {"resolution": arch.resolution, **arch.choices}
        top = _chosen(space.choices, old, old, {}, factors)
        stages = []
        for stage, own in zip(space.stages, arch.stages, strict=True):
            before, layers = {**old, **own.choices}, len(own.blocks) + opens
            choices = _chosen(stage.choices, own.choices, before, top, factors)
            most = [d for d in stage.depths if d + opens >= min(layers, 1)] or list(stage.depths)
            depth = int(_near(most, layers * counts - opens))
            blocks = resampled(own.blocks or (Values(),), depth)
            blocks = blocks[:1] * depth if stage.tied else blocks
            made = []
            for p, block in zip(stage.placement(depth), blocks, strict=True):
                scope = {**before, **block}
                made.append(Values(_chosen(stage.blocks[p], block, scope, {**top, **choices}, factors)))
            stages.append(StageArch(tuple(made), Values(choices)))
        resolution = top.pop("resolution")
        assert isinstance(resolution, int)
        return Arch(arch.family, resolution, Values(top), tuple(stages), arch.options)


def _chosen(
    specs: Mapping[str, Spec],
    given: Mapping[str, Value],
    old: Mapping[str, Value],
    new: Mapping[str, Value],
    factors: Mapping[str, float],
) -> dict[str, Value]:
    """A value for each choice, near to a multiple of the ``given`` one. ``old`` and ``new`` are the values that others
    are multiples of, in the network and in the one that is made."""
    out: dict[str, Value] = {}

    def choose(name: str) -> Value:
        if name in out:
            return out[name]
        if name not in specs:
            return new[name]
        spec, own = specs[name], given.get(name)
        if isinstance(spec, Choice):
            if isinstance(own, int | float):
                out[name] = _near([v for v in spec.values if not isinstance(v, str)], own * factors.get(name, 1.0))
            else:
                out[name] = own if own in spec.values else spec.values[0]
            return out[name]
        base, share = choose(spec.of), spec.values[0]
        if isinstance(spec, Ratio) and isinstance(own, int | float):
            was = old[spec.of]
            assert isinstance(was, int | float)
            share = _near([v for v in spec.values if not isinstance(v, str)], own / was)
        out[name] = following(spec, base, share)
        return out[name]

    for name in specs:
        choose(name)
    return out


def _near(values: Sequence[int | float], wanted: float) -> int | float:
    return min(values, key=lambda v: (abs(v - wanted), v))


def _whole(x: float) -> int:
    return math.floor(x + 0.5)


def resampled(blocks: Sequence[Values], depth: int) -> tuple[Values, ...]:
    """So many of the blocks, in their order. A deeper stage has every block of a shallower one, so that depth never
    saves; kinds of blocks (local, global) keep their rhythm."""
    kinds = [tuple(v for v in b.values() if isinstance(v, str)) for b in blocks]
    wanted = [kinds[k % len(kinds)] for k in range(depth)]
    left = {}
    for kind in dict.fromkeys(wanted):
        own = [b for b, k in zip(blocks, kinds, strict=True) if k == kind]
        times, rest = divmod(wanted.count(kind), len(own))
        more = sorted(range(len(own)), key=lambda k: (k + 1) * GOLDEN % 1)[:rest]
        left[kind] = iter([b for k, b in enumerate(own) for _ in range(times + (k in more))])
    return tuple(next(left[kind]) for kind in wanted)


# --- those around a budget ---


def around(space: Space, arch: Arch, costs: Callable[[Genes], Floats], budget: float) -> Pair:
    """The two networks of a space around a budget, of the proportions of ``arch``."""
    one = functools.cache(lambda a: float(costs(space.encode([a]))[0]))
    below, above = _around(proportions(arch, space), one, budget)
    if below is None or above is None:
        return below, above
    low, high = space.encode([below, above])
    moves = np.flatnonzero(low != high)
    if np.any(high < low):
        return below, above
    groups: dict[tuple[bool, str], list[int]] = {}
    for k in moves.tolist():
        counts = (name := space.gene_names[k]).endswith((".on", ".depth"))
        groups.setdefault((counts, name if counts else re.sub(r"block\d+", "block", name)), []).append(k)
    order = [genes for _, genes in sorted(groups.items(), key=lambda one: one[0][0])]  # new blocks after their values
    rows = np.tile(low, (len(order) + 1, 1))
    for n, genes in enumerate(order, 1):
        rows[n:, genes] = high[genes]
    found = costs(rows)
    at = int(np.flatnonzero(found <= budget)[-1])
    first, second = space.decode(rows[[at, at + 1]])
    return first, second


def _around(make: Make, costs: Callable[[Arch], float], budget: float) -> Pair:
    """The two networks around a budget: on the path of one factor, or, where counts jump, of widths alone."""
    (below, above), low, high = _on_path(make, costs, budget)
    if below is None or above is None or make(high, low) == below:
        return below, above
    middle = (costs(below) + costs(above)) / 2

    def wider(target: float) -> Pair:
        return _bisect(lambda g: make(low, g), costs, target, low)[0]

    def narrower(target: float) -> Pair:
        return _bisect(lambda g: make(high, g), costs, target, high)[0]

    if budget <= middle:
        below, above = wider(budget)
        return below, narrower(middle)[1] if above is None or costs(above) > middle else above
    below, above = narrower(budget)
    return wider(middle)[0] if below is None or costs(below) <= middle else below, above


def _on_path(
    make: Make, costs: Callable[[Arch], float], budget: float, fine: float = FINE
) -> tuple[Pair, float, float]:
    return _bisect(lambda f: make(f, f), costs, budget, 1.0, fine)


def _bisect(
    make: Callable[[float], Arch], costs: Callable[[Arch], float], budget: float, start: float, fine: float = FINE
) -> tuple[Pair, float, float]:
    """The networks around a budget and their factors. Only the first is there if nothing costs more, only the second if
    nothing costs less."""

    def fits(factor: float) -> bool:
        return costs(make(factor)) <= budget

    up = fits(start)
    end, other = start, start
    while fits(other) == up:
        if (end := other) > MOST or end < 1 / MOST:
            return ((make(end), None) if up else (None, make(end))), end, end
        other = end * GROW if up else end / GROW
    low, high = (end, other) if up else (other, end)
    while high / low > 1 + fine:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return (make(low), make(high)), low, high
