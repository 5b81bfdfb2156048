"""Numbers of a run in words."""

from __future__ import annotations

import math

from superformer.units import amount

SUPERSCRIPT = str.maketrans("0123456789", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
COSTS = {"macs": "MACs", "params": "parameters", "latency": "latency", "throughput": "throughput", "memory": "peak memory"}
MEASURED = {"latency": "measured", "throughput": "measured_throughput"}
"""Costs that are predicted, and under which name a row has what was measured of them (`superformer.search.measured`)."""


def number(value: object) -> float | None:
    """A number from a file, if it is one."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None


def percent(accuracy: object, digits: int = 2) -> str:
    """A share in percent."""
    return "\u2013" if (value := number(accuracy)) is None else f"{100 * value:.{digits}f} %"


def seconds(time: object) -> str:
    if (value := number(time)) is None:
        return "\u2013"
    if value < 1e-3:
        return f"{1e6 * value:.3g} µs"
    if value < 1:
        return f"{1e3 * value:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 7200 else f"{value / 3600:.3g} h"


def cost(name: str, value: object) -> str:
    """A cost with its unit."""
    if (own := number(value)) is None:
        return "\u2013"
    return seconds(own) if name == "latency" else amount(own) + {"throughput": "/s", "memory": "B"}.get(name, "")


def large(n: int) -> str:
    """A count, of architectures for instance, that may have many digits."""
    if n < 10**6:
        return f"{n:,}"
    digits, power = f"{n:.1e}".split("e")
    return f"{digits} \u00d7 10{str(int(power)).translate(SUPERSCRIPT)}"


def counted(n: int, one: str, more: str | None = None) -> str:
    return f"{n:,} {one if n == 1 else more or one + 's'}"
