"""Numbers for people to read and to write."""

from __future__ import annotations

import re

from superformer.errors import SuperformerError

AMOUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
BYTES = {"": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def amount(value: float) -> str:
    """Three digits: 1.75 G, 384 M, 12."""
    power, unit = next(((p, u) for p, u in ((9, "G"), (6, "M"), (3, "k")) if value >= 0.9995 * 10**p), (0, ""))
    return f"{value / 10**power:.3g} {unit}".strip()


def read_amount(text: str, what: str) -> float:
    """600M, 1.5G, 5e6, 12."""
    return _read(text, AMOUNTS, f"{what} must be a number such as 600M, 1.5G or 2e6, not {text!r}")


def read_bytes(text: str, what: str) -> float:
    """20MB, 1.5GiB, 500kB."""
    return _read(text, BYTES, f"{what} must be an amount of memory such as 20MB or 1.5GiB, not {text!r}")


def read_seconds(text: str, what: str) -> float:
    """20ms, 0.5s, 300us."""
    return _read(text, TIMES, f"{what} must be a time such as 20ms or 0.5s, not {text!r}")


def _read(text: str, units: dict[str, float], complaint: str) -> float:
    found = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    try:
        if found is None or found[2] not in units or float(found[1]) <= 0:
            raise ValueError
        return float(found[1]) * units[found[2]]
    except ValueError:
        raise SuperformerError(complaint) from None
