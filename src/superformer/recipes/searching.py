"""The part of a recipe that says how networks and spaces are searched: the methods and their settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from superformer.errors import SuperformerError, nearest
from superformer.settings import Runtime, SettingsBase

COSTS = ("macs", "params", "latency", "throughput", "memory")


class Evolution(SettingsBase):
    """S3's evolution search (algorithm 3, appendix A), the defaults, or ViT-ResNAS's (section 2.3 and 3.1),
    ``preset="vit-resnas"``."""

    method: Literal["evolution"] = "evolution"
    preset: Literal["s3", "vit-resnas"] = Field("s3", description="whose settings all others begin with")
    form: Literal["blocks", "parameters"] = Field("blocks", description="what varies as one: S3's, or ViT-ResNAS's")
    first: int = Field(50, ge=1, description="random architectures to begin with")
    rounds: int = Field(21, ge=1, description="populations evaluated, the first among them: S3's 20 steps follow it")
    parents: int = Field(10, ge=1, description="the best of all so far that have children")
    mutants: int = Field(25, ge=0, description="of each later round")
    crossovers: int = Field(25, ge=0, description="of each later round")
    p: float = Field(0.3, ge=0, le=1, description="parameters: probability that one is drawn anew")
    p_depth: float = Field(0.2, ge=0, le=1, description="blocks: probability that a stage's depth is drawn anew")
    p_embed: float = Field(0.2, ge=0, le=1, description="blocks: probability that a stage's embedding is drawn anew")
    p_block: float = Field(0.4, ge=0, le=1, description="blocks: probability that a block is drawn anew")

    @model_validator(mode="before")
    @classmethod
    def _begin_with_preset(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or given.get("preset") != "vit-resnas":
            return given
        numbers = {"first": 500, "rounds": 20, "parents": 75, "mutants": 75, "crossovers": 75, "p": 0.3}
        return {"form": "parameters", **numbers, **given}


class Nsga2(SettingsBase):
    """NSGA-II with ViTAS's settings (v1, appendix A; v2, appendix A.3; operators as released)."""

    method: Literal["nsga2"] = "nsga2"
    population: int = Field(50, ge=2, description="architectures of each generation")
    generations: int = Field(40, ge=1, description="populations that are evaluated, the first among them")
    crossover: float = Field(0.9, ge=0, le=1, description="probability of two-point crossover; else only mutation")
    eta: float = Field(3.0, ge=0, description="polynomial mutation: the larger, the smaller the steps")
    p: float | None = Field(None, ge=0, le=1, description="probability that a gene mutates; none: one gene on average")
    first: Literal["random", "even"] = Field(
        "random", description="even: begin with networks that differ in depth and input size alone, else the largest"
    )


class Predictor(SettingsBase):
    """NASViT's search on predicted accuracy (algorithm 2, appendix C.1)."""

    method: Literal["predictor"] = "predictor"
    first: int = Field(1024, ge=8, description="random ones evaluated: half train the predictor, half validate it")
    trees: int = Field(100, ge=1, description="of the random forest")
    parents: int = Field(128, ge=2, description="best on predictions that have children")
    mutants: int = Field(128, ge=0, description="of each round")
    crossovers: int = Field(128, ge=0, description="of each round")
    rounds: int = Field(40, ge=0, description="of evolution on predictions")
    p: float = Field(0.1, ge=0, le=1, description="probability that a mutant's parameter is drawn anew (as released)")
    front: int = Field(128, ge=1, description="best predicted ones evaluated at the end, the predicted front first")


class Random(SettingsBase):
    """Random architectures within the limits."""

    method: Literal["random"] = "random"
    evaluations: int = Field(1000, ge=1)
    batch: int = Field(50, ge=1, description="asked for at once")


class Exhaustive(SettingsBase):
    """Every architecture within the limits, for small spaces (ViTAS v1's blocks, section 5.3)."""

    method: Literal["exhaustive"] = "exhaustive"
    batch: int = Field(100, ge=1, description="asked for at once")
    most: int = Field(100_000, ge=1, description="paths of a space that is not too large")


SearchMethod = Evolution | Nsga2 | Predictor | Random | Exhaustive
METHODS: dict[str, type[SettingsBase]] = {m.model_fields["method"].default: m for m in get_args(SearchMethod)}


def method_settings(name: str, values: Mapping[str, Any] | None = None) -> SettingsBase:
    """The settings of a method; the error names the nearest method or setting, or what is possible."""
    if name not in METHODS:
        raise SuperformerError(f"unknown search method {name!r}: {nearest(name, METHODS)}")
    return METHODS[name].read(values or {}, name)


def method_with_changes(own: SearchMethod, name: str | None, changes: Mapping[str, Any]) -> SettingsBase:
    """The settings of a method, by default that of a recipe; a recipe's own settings hold for its own method (and
    preset) only."""
    before = own.model_dump() if name in (None, own.method) else {}
    if changes.get("preset", before.get("preset")) != before.get("preset"):
        before = {}
    return method_settings(name or own.method, {**before, **changes})


class SpaceEvolution(SettingsBase):
    """S3's search of the search space (algorithm 1, section 4.1)."""

    rounds: int = Field(3, ge=1, description="times that the space moves (T)")
    samples: int = Field(1000, ge=2, description="networks drawn of each sub-space (N; the ablation takes 1,000)")
    top: int = Field(50, ge=1, description="the best of them for the top-tier error")
    tau: float = Field(0.4, gt=0, description="slope, in percent a step, that moves a list by one step")
    # the step of each dimension, by name
    gamma: dict[str, Annotated[float, Field(gt=0, le=65536)]] = {
        "depth": 1, "width": 64, "mlp": 0.5, "attn": 64, "window": 7, "heads": 1,
    }  # fmt: skip
    start: Literal["previous", "fresh"] = Field(
        "previous", description="a later supernet begins with what fits of the one before, or anew (table 5, figure 6)"
    )
    rounding: Literal["floor", "symmetric"] = Field("floor", description="as the paper's eq. 8, or alike both ways")
    moves: Literal["measured", "random"] = Field(
        "measured",
        description="against the slopes, or as many steps up or down by lot (what a measured move must beat)",
    )
    macs_max: float | None = Field(None, gt=0, description="networks are drawn up to these MACs")


class Options(SettingsBase):
    """What a search seeks, beside the settings of its method."""

    objectives: tuple[str, ...] | None = Field(None, description="accuracy, then others; none: those limited, or macs")
    # block-level search: stages of equal blocks are as deep as the limits allow (ViTAS v1, section 3.2)
    depth: Literal["searched", "budget"] = "searched"
    seed: int = Field(0, ge=0)
    pictures: int | None = Field(None, ge=1, description="the most of the search split to use")
    judging: Literal["racing", "full"] | None = Field(
        None, description="few pictures first (search.judging), or all of them; none: racing from 2,000 pictures on"
    )
    few: int | None = Field(None, ge=1, description="judging=racing: pictures that all candidates see; none: 1 in 32")
    sure: float = Field(1.75, ge=0, description="judging=racing: standard errors within which candidates go on")
    racing: bool = Field(False, description="stop candidates that cannot reach the front any more (search.scores)")
    margin: float | None = Field(None, ge=0, description="races: or probably cannot, by so many standard errors")
    threads: int = Field(1, ge=1, description="latency and throughput: threads")
    runtime: Runtime = Field("eager", description="latency and throughput: what runs the networks")
    device: str | None = Field(None, description="latency and throughput: where (or a name that was imported)")
    batch: int = Field(1, ge=1, description="latency: pictures at once")
    throughput_batch: int = Field(32, ge=1, description="throughput: pictures at once")
    table_seconds: float = Field(20, gt=0, description="latency, throughput: time to measure networks for a table")

    def sought(self, limits: Mapping[str, object], imported: Iterable[str] = ()) -> tuple[str, ...]:
        """The objectives, accuracy first; ``imported``: costs that the run knows besides."""
        costs = (*COSTS, *imported)
        if self.objectives is None:
            return ("accuracy", *([c for c in costs if c in limits] or ["macs"]))
        if self.objectives[:1] != ("accuracy",) or set(self.objectives[1:]) - set(costs):
            known, given = ", ".join(costs), ", ".join(self.objectives)
            raise SuperformerError(f"objectives are accuracy and then some of {known}, not {given}")
        return self.objectives


def split_options(changes: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
    """The options among ``key=value`` words; the rest are settings of the method."""
    own = {k: v for k, v in changes.items() if k in Options.model_fields}
    if isinstance(own.get("objectives"), str):
        own["objectives"] = [name.strip() for name in own["objectives"].split(",")]
    return Options.read(own, "search"), {k: v for k, v in changes.items() if k not in own}
