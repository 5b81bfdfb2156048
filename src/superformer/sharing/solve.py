"""Finding the cyclic mapping of a list of widths (ViTAS v2, eqs. 5 to 13): the first channel of each width's run.

The runs of all widths but the largest (which has every channel) lie around a circle of channels. Two sums over their
pairs say everything. The overlaps: they sum to the least possible exactly if every channel is trained equally often, or
once more (eq. 12). The overlaps divided by both widths: eq. 13 but for constants.

`place` finds a mapping, the same on every machine: all of them where that is possible, otherwise the best of many ways
to lay the runs end to end around the circle, which always fulfils eq. 12. `bound`: what no mapping can get below."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
ALL, CHUNK = 2_000_000, 100_000
"""The most mappings that are all looked at; at once."""
WORK, ROUNDS, KEPT, SPARES, REFINED = 8_000_000, 30, 0.05, 3, 4
"""Of the search: pairs of runs that are compared, rounds, the best that have children, pieces of what is left over, and
the best that are refined."""
SMALL = 12
"""Of the bound: the smallest widths, whose sets are all looked at."""


def _overlap(ahead: Ints, first: Any, second: Any, size: int) -> Ints:
    """Of a run of ``first`` channels with one of ``second`` that begins so far ``ahead``, around a circle."""
    near = np.minimum(first - ahead, second)
    return np.asarray(np.maximum(near, 0) + np.maximum(0, np.minimum(first, ahead + second - size)))


def _sums(starts: Ints, widths: Ints, size: int) -> tuple[Ints, Floats]:
    """Of mappings (mappings, widths): overlaps of all pairs, and these divided by both widths."""
    times, spread = np.zeros(len(starts), np.int64), np.zeros(len(starts))
    for i, j in itertools.combinations(range(len(widths)), 2):
        both = _overlap((starts[:, j] - starts[:, i]) % size, widths[i], widths[j], size)
        times += both
        spread += both / (widths[i] * widths[j])
    return times, spread


def _fair(own: Ints, size: int) -> int:
    """The sum of overlaps with which eq. 12 holds: a channel in ``c`` runs is in ``c (c - 1) / 2`` overlaps."""
    total = int(own.sum())
    fewest, more = divmod(total, size)
    return ((size - more) * fewest**2 + more * (fewest + 1) ** 2 - total) // 2


@functools.lru_cache(maxsize=1024)
def place(widths: tuple[int, ...]) -> tuple[list[int], bool]:
    """Starts for which eq. 12 holds, with a small gap (eq. 13), and whether all mappings were looked at."""
    size, own = widths[-1], np.asarray(widths[:-1], np.int64)
    if len(own) < 2:
        return [0] * len(widths), True
    best = size ** (len(own) - 1) <= ALL
    found = _all(own, size) if best else _search(own, size)
    return [*map(int, (found - found[-1]) % size), 0], best


def _all(own: Ints, size: int) -> Ints:
    """The best of all mappings; turning everything changes nothing, so the largest run stays at 0."""
    shape, fair = (size,) * (len(own) - 1), _fair(own, size)
    best, least = np.zeros(len(own), np.int64), math.inf
    for begin in range(0, math.prod(shape), CHUNK):
        some = np.arange(begin, min(begin + CHUNK, math.prod(shape)))
        starts = np.stack([*np.unravel_index(some, shape), np.zeros_like(some)], 1)
        times, spread = _sums(starts, own, size)
        spread[times > fair] = math.inf
        first = int(spread.argmin())
        if spread[first] < least - 1e-12:
            best, least = starts[first], float(spread[first])
    return best


def _search(own: Ints, size: int) -> Ints:
    """The best of many orders of the runs, laid end to end.

    A run that begins where another ends keeps what was trained equally often equal; what is left over at last, up to
    the next full turn, may also be left out elsewhere, in pieces that do not overlap."""
    rng = np.random.RandomState(0)  # its numbers are frozen: the same everywhere and with every numpy
    n, spare, fair = len(own), int(-own.sum() % size), _fair(own, size)
    pieces = min(spare, SPARES)
    count, many = n + pieces, WORK // ROUNDS // (n * (n - 1) // 2)
    orders = rng.random_sample((many, count)).argsort(1, kind="stable")
    cuts = rng.randint(0, spare + 1, (many, max(pieces - 1, 0)))
    cuts[rng.random_sample(cuts.shape) < 0.3] = spare
    pool: dict[bytes, tuple[float, Ints]] = {}
    for _ in range(ROUNDS):
        ends = np.concatenate([np.zeros((many, 1), np.int64), np.sort(cuts, 1)], 1)[:, : max(pieces, 1)]
        gaps = np.diff(ends, axis=1, append=spare)[:, :pieces]
        lengths = np.concatenate([np.tile(own, (many, 1)), gaps], 1)
        laid = np.take_along_axis(lengths, orders, 1)
        starts = np.empty_like(laid)
        np.put_along_axis(starts, orders, (np.cumsum(laid, 1) - laid) % size, 1)
        times, spread = _sums(starts[:, :n], own, size)
        spread[times > fair] = math.inf
        first = np.argsort(spread, kind="stable")[: max(2, int(KEPT * many))]
        for k in first[:REFINED]:
            turned = (starts[k, :n] - starts[k, n - 1]) % size
            pool[turned.tobytes()] = (float(spread[k]), turned)
        parents = rng.choice(first, many - len(first))
        children, moved = orders[parents], cuts[parents]
        rows, (a, b) = np.arange(len(parents)), rng.randint(0, count, (2, len(parents)))
        children[rows, a], children[rows, b] = children[rows, b], children[rows, a]
        if moved.size:
            anew = rng.random_sample(moved.shape) < 0.3
            moved[anew] = rng.randint(0, spare + 1, int(anew.sum()))
        orders, cuts = np.concatenate([orders[first], children]), np.concatenate([cuts[first], moved])
    finalists = sorted(pool.values(), key=lambda entry: entry[0])[: REFINED if n <= SMALL else 2]
    return min((_refined(starts, own, size) for _, starts in finalists), key=lambda entry: entry[0])[1]


def _refined(starts: Ints, own: Ints, size: int) -> tuple[float, Ints]:
    """Sets of a few runs are moved around the circle together, as long as that helps and eq. 12 holds: sets that fill
    whole turns, or leave gaps where there may be some, go anywhere."""
    n, offsets = len(own), np.arange(size)
    most = 4 if n <= SMALL else 2
    groups = [g for k in range(1, min(most, n // 2) + 1) for g in itertools.combinations(range(n), k)]
    while True:
        best, least = None, -1e-9
        for group in groups:
            times, spread = np.zeros(size, np.int64), np.zeros(size)
            for i in group:
                for j in set(range(n)) - set(group):
                    both = _overlap((starts[j] - starts[i] - offsets) % size, own[i], own[j], size)
                    times += both
                    spread += both / (own[i] * own[j])
            spread[times > times[0]] = math.inf
            at = int(spread.argmin())
            if spread[at] - spread[0] < least:
                best, least = (group, at), float(spread[at] - spread[0])
        if best is None:
            return float(_sums(starts[None], own, size)[1][0]), starts
        starts = starts.copy()
        starts[list(best[0])] = (starts[list(best[0])] + best[1]) % size


def bound(widths: Sequence[int]) -> float:
    """What eq. 13 cannot get below where eq. 12 holds.

    Each channel is used by some set of widths, of ``c`` or ``c + 1`` of them. Which sets, and how many channels each
    has, is a linear program: a set costs the squared distance of its influence from the mean, width ``j`` is in the
    sets of ``j`` channels. That runs are continuous is left out; of the widths beyond the smallest twelve only the
    range of their influence is kept."""
    from scipy.optimize import linprog  # slow to import

    size, own = widths[-1], np.asarray(widths[:-1], np.int64)
    if not len(own):
        return 0.0
    small, rest = own[:SMALL], np.sort(1 / own[SMALL:])
    fewest, more = divmod(int(own.sum()), size)
    sets = (np.arange(2 ** len(small))[:, None] >> np.arange(len(small))) & 1
    mean, columns, costs = len(own) / size, [], []
    sums = np.concatenate([[0], np.cumsum(rest)]), np.concatenate([[0], np.cumsum(rest[::-1])])
    for once_more in (0, 1):
        others = fewest + once_more - sets.sum(1)
        possible = (others >= 0) & (others <= len(rest))
        some, others = sets[possible], others[possible]
        own_part = some @ (1 / small)
        off = np.maximum(0, np.maximum(own_part + sums[0][others] - mean, mean - own_part - sums[1][others]))
        columns.append(np.concatenate([some, np.full((len(some), 1), once_more), np.ones((len(some), 1))], 1))
        costs.append(off**2)
    right, matrix, cost = np.concatenate([small, [more, size]]), np.concatenate(columns), np.concatenate(costs)
    found: Any = linprog(cost, A_eq=matrix.T, b_eq=right, method="highs")  # type: ignore[no-untyped-call]
    if found.status != 0:
        return 0.0
    prices = found.eqlin.marginals  # any prices prove a bound: the solver's rounding cannot make it too large
    below = right @ prices + size * min(0.0, float((cost - matrix @ prices).min()))
    return max(0.0, float(2 * size * below))
