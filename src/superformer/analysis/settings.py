"""What can be asked of an analysis: its parts, and their ``key=value`` settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from superformer.errors import SuperformerError, nearest
from superformer.settings import SettingsBase

PARTS = (
    "distributions", "depths", "conflicts", "latency", "attention", "maps", "budgets", "seeds", "correlations",
    "weights",
)  # fmt: skip
CHEAP = PARTS[:4]
"""What is there already; the others run networks (attention, maps, budgets), searches (seeds) or trainings
(correlations, weights)."""
Pair = tuple[float, float]


class Settings(SettingsBase):
    """``key=value`` words of an analysis."""

    seed: int = Field(0, ge=0)
    samples: int | None = Field(
        None, ge=1, description="distributions, depths: random networks to evaluate; without it, those known already"
    )
    top: int = Field(50, ge=1, description="depths: the best of them for the top-tier error")
    architectures: int = Field(10, ge=2, description="budgets, correlations, weights: random networks")
    groups: int = Field(2, ge=1, description="of MACs: ranges that these are drawn in, as many in each")
    epochs: float | None = Field(
        None, gt=0, description="correlations, weights: of training by itself; without it, the recipe's"
    )
    arch: str | None = Field(
        None, description="attention, maps: best, smallest, largest, a key of the front, or a file"
    )
    picture: int | str = Field(0, description="maps: the number of a picture of the search split, or a file")
    query: Literal["class"] | Pair = Field(
        (0.25, 0.25), description="maps: the query, as shares of the picture's height and width, or the class token"
    )
    blocks: tuple[str, ...] = Field((), description="maps: such as [1-2, 3-7]; without it, some from first to last")
    heads: bool = Field(False, description="maps: each head by itself, not their mean")
    pictures: int = Field(64, ge=1, description="attention: of the search split")
    seeds: int = Field(3, ge=2, description="seeds: searches, with the seeds 0, 1, ...")
    method: str | None = Field(None, description="seeds: the method of the searches, if not that of the recipe")
    search: dict[str, Any] = Field(
        default_factory=dict, description="seeds: settings of that method, such as {population: 20}"
    )
    macs_max: float | None = Field(None, gt=0, description="distributions, depths, seeds: networks up to these MACs")

    @field_validator("query", mode="before")
    @classmethod
    def _pair(cls, given: Any) -> Any:
        """``query=0.3,0.5`` is one word of a command line."""
        return given.split(",") if isinstance(given, str) and "," in given else given

    @field_validator("query")
    @classmethod
    def _within(cls, given: Any) -> Any:
        if not isinstance(given, str) and not all(0 <= share < 1 for share in given):
            raise ValueError(f"a query lies from 0 on and below 1 of the picture's height and width, not at {given}")
        return given

    @field_validator("blocks", mode="before")
    @classmethod
    def _listed(cls, given: Any) -> Any:
        """``blocks=1-2,3-7``, too."""
        return [word.strip() for word in given.split(",")] if isinstance(given, str) else given


def chosen(parts: Iterable[str], changes: Mapping[str, Any]) -> Settings:
    """The settings of an analysis; a part or a setting that is not there is an error."""
    for name in parts:
        if name not in PARTS:
            raise SuperformerError(f"unknown part {name!r} of an analysis: {nearest(name, PARTS)}")
    return Settings.read(changes, "analyse")
