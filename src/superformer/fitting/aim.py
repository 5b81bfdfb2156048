"""What is asked of a fit: a limit or a speed-up; whether a network can meet it; which networks of a front are kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from superformer.cost import cost
from superformer.cost.latency import measure_in_turn
from superformer.cost.runtimes import measuring_device
from superformer.errors import InfeasibleError, SuperformerError, nearest
from superformer.families.network import Network
from superformer.progress import Tell
from superformer.runs.processes import device_here
from superformer.settings import RUNTIMES
from superformer.space.arch import Arch
from superformer.space.sampling import say_cost
from superformer.spaces import model as build
from superformer.spaces.around import MOST_SPEED_UP, around

FURTHER = (1.0, 1.5, 2.5, 5.0)
"""How much further down than asked a space is made, until its smallest network meets the limit."""
LEAST = 1.5
"""The least speed-up that a space is made for: a front needs room below the limit."""
RUNG = 1.5
"""Between the costs of two networks that are kept."""
SECONDS = 1.0
"""That a network is timed for."""
AT_ONCE, MOST_MEASURED = 4, 16
"""Networks within the limit that are measured in turn; how many in all."""


@dataclass(frozen=True)
class Aim:
    """What is asked of the winner: one of these limits, or a speed-up. ``runtime``: what times are measured in."""

    latency: float | None = None
    macs: float | None = None
    speed_up: float = 2.0
    networks: int = 3
    runtime: str = "eager"

    def __post_init__(self) -> None:
        if self.latency is not None and self.macs is not None:
            raise SuperformerError("give one limit, --latency-max or --macs-max, not both")
        if self.runtime not in RUNTIMES:
            raise SuperformerError(f"unknown runtime {self.runtime!r}: {nearest(self.runtime, RUNTIMES)}")

    @property
    def words(self) -> str:
        """To tell two aims apart."""
        return " ".join(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
                        for name, value in vars(self).items() if value is not None)  # fmt: skip

    @property
    def cost(self) -> str:
        return "macs" if self.macs is not None else "latency"

    def limit(self, before: float) -> float:
        """The most that the winner may cost, where the network itself costs this much."""
        asked = self.macs if self.cost == "macs" else self.latency
        return asked if asked is not None else before / self.speed_up


def room_below(arch: Arch, aim: Aim) -> dict[str, float]:
    """What the network costs here (``macs``, ``latency``), and how far down the space around it must go (``shrink``) to
    have networks a rung below the limit, if it can. A limit that it cannot reach is refused, before anything is
    trained."""
    net, name, enough = build(arch).eval(), aim.cost, None
    own = _costs([net], aim.runtime)[0]
    for further in FURTHER:
        shrink = min(max(own[name] / aim.limit(own[name]), LEAST) * further, MOST_SPEED_UP)
        small = around(arch, shrink).smallest()
        own, least = _costs([net, build(small).eval()], aim.runtime)
        if least[name] <= aim.limit(own[name]) / RUNG:
            return own | {"shrink": shrink}
        if least[name] <= aim.limit(own[name]):
            enough = own | {"shrink": shrink}
    if enough is not None:
        return enough
    limit, reached, before = (_say(name, v) for v in (aim.limit(own[name]), least[name], own[name]))
    told = f"no network around {arch.key} has at most {limit}; the least has {reached}, the network itself {before}"
    raise InfeasibleError(told)


def _say(name: str, value: float) -> str:
    """2.5 M MACs, 3.2 ms."""
    return say_cost(name, value) + " MACs" * (name == "macs")


def times(nets: Sequence[nn.Module], runtime: str, seconds: float) -> list[float]:
    """Seconds for a picture on the device of this process, as the search that follows has them; in turn, so that all
    see the same machine, however busy."""
    device = measuring_device(None, device_here(), runtime)
    return [timing.median for timing in measure_in_turn(nets, runtime=runtime, seconds=seconds, device=device)]


def _costs(nets: Sequence[Network], runtime: str) -> list[dict[str, float]]:
    macs = [float(cost(n.space, [n.space.smallest()], n.num_classes).macs[0]) for n in nets]
    return [{"macs": m, "latency": s} for m, s in zip(macs, times(nets, runtime, SECONDS), strict=True)]


Row = dict[str, Any]


def pick(front: Sequence[Row], name: str, limit: float, networks: int, winner: Row | None = None) -> list[Row]:
    """Some networks of a front, the winner (if it is not given, the most accurate within the limit) last: the others
    are the most accurate within limits that are 1.5 times as large, 1.5 times as small, and so on."""
    first = winner or within(front, name, limit)[0]
    rungs = [RUNG**k for n in range(1, len(front) + networks) for k in (n, -n)]
    kept = [first]
    for rung in rungs:
        inside = [row for row in front if row[name] <= limit * rung]
        if inside and len(kept) < networks:
            row = max(inside, key=lambda r: (r["accuracy"], -r[name]))
            kept += [row] if row not in kept else []
    return kept[::-1]


def within(front: Sequence[Row], name: str, limit: float) -> list[Row]:
    """The networks within the limit, from the most accurate down."""
    inside = sorted((row for row in front if row[name] <= limit), key=lambda row: (-row["accuracy"], row[name]))
    if not inside:
        least, asked = (_say(name, v) for v in (min(row[name] for row in front), limit))
        raise InfeasibleError(f"no network that was found has at most {asked}; the least has {least}")
    return inside


def measured_winner(rows: Sequence[Row], aim: Aim, original: Network, tell: Tell) -> Row:
    """The most accurate of the networks within the limit that keeps to it when it is measured, twice, in turn with the
    original; of those that come nearest the best, if none does."""

    def shares(some: Sequence[Row]) -> list[float]:
        """Of what they may take."""
        nets = [build(Arch.from_json(json.dumps(row["arch"])), original.num_classes).eval() for row in some]
        own, *found = times([original, *nets], aim.runtime, SECONDS)
        return [seconds / aim.limit(own) for seconds in found]

    nearest: list[tuple[float, Row]] = []
    for start in range(0, min(len(rows), MOST_MEASURED), AT_ONCE):
        some = rows[start : start + AT_ONCE]
        tell(f"measuring {len(some)} networks within the limit, from the best down")
        for row, share in zip(some, shares(some), strict=True):
            if share <= 1 and shares([row])[0] <= 1:
                return row
            nearest.append((share, row))
    share, row = min(nearest, key=lambda found: found[0])
    tell(f"none of the {len(nearest)} best kept to the limit when measured; {row['key']} takes {share:.2f} of it")
    return row
