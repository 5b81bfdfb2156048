"""What can be asked of an analysis: its parts, and their ``key=value`` settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field

from superformer.errors import SuperformerError, nearest
from superformer.settings import SettingsBase

PARTS = ("distributions", "conflicts", "latency", "attention", "budgets", "seeds", "correlations", "weights")
CHEAP = PARTS[:3]
"""What is there already; the others run networks (attention, budgets), searches (seeds) or trainings (correlations,
weights)."""


class Settings(SettingsBase):
    """``key=value`` words of an analysis."""

    seed: int = Field(0, ge=0)
    samples: int | None = Field(
        None, ge=1, description="distributions: random networks to evaluate; without it, those known already"
    )
    architectures: int = Field(10, ge=2, description="budgets, correlations, weights: random networks")
    groups: int = Field(2, ge=1, description="of MACs: ranges that these are drawn in, as many in each")
    epochs: float | None = Field(
        None, gt=0, description="correlations, weights: of training by itself; without it, the recipe's"
    )
    arch: str | None = Field(None, description="attention: best, smallest, largest, a key of the front, or a file")
    pictures: int = Field(64, ge=1, description="attention: of the search split")
    seeds: int = Field(3, ge=2, description="seeds: searches, with the seeds 0, 1, ...")
    method: str | None = Field(None, description="seeds: the method of the searches, if not that of the recipe")
    search: dict[str, Any] = Field(
        default_factory=dict, description="seeds: settings of that method, such as {population: 20}"
    )
    macs_max: float | None = Field(None, gt=0, description="distributions, seeds: networks up to these MACs")


def chosen(parts: Iterable[str], changes: Mapping[str, Any]) -> Settings:
    """The settings of an analysis; a part or a setting that is not there is an error."""
    for name in parts:
        if name not in PARTS:
            raise SuperformerError(f"unknown part {name!r} of an analysis: {nearest(name, PARTS)}")
    return Settings.read(changes, "analyse")
