"""What a search seeks, beside the settings of its method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from superformer.cost import Runtime
from superformer.errors import SuperformerError
from superformer.part import Part

COSTS = ("macs", "params", "latency", "throughput", "memory")


class Options(Part):
    objectives: tuple[str, ...] | None = Field(None, description="accuracy first, then others; by default those that are limited, or macs")
    seed: int = Field(0, ge=0)
    pictures: int | None = Field(None, ge=1, description="the most of the search split to use")
    racing: bool = Field(False, description="stop candidates that cannot reach the front any more (superformer.search.racing)")
    margin: float | None = Field(None, ge=0, description="races: or probably cannot, by so many standard errors; none: for sure")
    threads: int = Field(1, ge=1, description="latency and throughput: threads")
    runtime: Runtime = Field("eager", description="latency and throughput: what runs the networks")
    batch: int = Field(1, ge=1, description="latency: pictures at once")
    throughput_batch: int = Field(32, ge=1, description="throughput: pictures at once")
    table_seconds: float = Field(20, gt=0, description="latency, throughput: time to measure networks for a table")

    def sought(self, limits: Mapping[str, object]) -> tuple[str, ...]:
        """The objectives, accuracy first."""
        if self.objectives is None:
            return ("accuracy", *([c for c in COSTS if c in limits] or ["macs"]))
        if self.objectives[:1] != ("accuracy",) or set(self.objectives[1:]) - set(COSTS):
            raise SuperformerError(f"objectives are accuracy and then some of {', '.join(COSTS)}, not {', '.join(self.objectives)}")
        return self.objectives


def split(changes: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
    """The options among ``key=value`` words; the rest are settings of the method."""
    own = {k: v for k, v in changes.items() if k in Options.model_fields}
    if isinstance(own.get("objectives"), str):
        own["objectives"] = [word.strip() for word in own["objectives"].split(",")]
    return Options.read(own, "search"), {k: v for k, v in changes.items() if k not in own}
