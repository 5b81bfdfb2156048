"""Predicted against measured latency of the front, where a search had a table of latencies (`superformer.cost.latency_table`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from superformer.analysis.correlation import coefficients


def predicted(front: Mapping[str, Any]) -> dict[str, Any] | None:
    """Of a ``front.json``: points (predicted, measured) in seconds, the median relative error and the rank correlation; None if nothing
    of it was measured."""
    points = [(row["latency"], row["measured"]) for row in front["front"] if "latency" in row and "measured" in row]
    if not points:
        return None
    guess, real = np.asarray(points, dtype=np.float64).T
    return {
        "points": [list(map(float, pair)) for pair in points],
        "median_error": float(np.median(np.abs(guess - real) / real)),
        "spearman": coefficients(guess, real)["spearman"],
    }
