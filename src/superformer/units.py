"""Numbers for people to read."""

from __future__ import annotations


def amount(value: float) -> str:
    """Three digits: 1.75 G, 384 M, 12."""
    power, unit = next(((p, u) for p, u in ((9, "G"), (6, "M"), (3, "k")) if value >= 0.9995 * 10**p), (0, ""))
    return f"{value / 10**power:.3g} {unit}".strip()
