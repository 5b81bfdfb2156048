"""Claims of the papers, as data: which recipe, which changes of it are compared, by what, and who should win."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import Field, model_validator

from superformer.errors import SuperformerError, nearest
from superformer.settings import SettingsBase, load_yaml

Measure = Literal[
    "late_loss", "smallest", "largest", "median", "conflict", "alone", "found", "kendall", "kendall_macs", "et_error",
    "best_error", "searched", "chosen", "weights", "distance", "ratio",
    "spread",
]  # fmt: skip
LOW_IS_BETTER = ("late_loss", "conflict", "et_error", "best_error")
OF_ONE_SUPERNET = ("searched", "chosen", "weights", "distance", "ratio", "spread")
"""Measures whose arms are about the same supernet: their words are not those of its recipe."""


class Claim(SettingsBase):
    """One claim. ``arms``: words that change the recipe (`superformer.recipes`); ``order``: the best first, as the
    paper claims."""

    title: str
    paper: str
    where: str = Field(description="section, table or figure")
    says: str = Field(description="the paper's own figures")
    recipe: str
    measure: Measure
    arms: dict[str, list[str]]
    order: list[str]
    common: list[str] = Field([], description="words that all arms have")
    search: list[str] = Field([], description="words of the search, where there is one")
    limit: Literal["macs", "latency"] = Field("macs", description="of a search, half-way between the extremes")
    same: Literal["epochs", "minutes"] = Field("epochs", description="of the arms' trainings")
    equal: str = Field("the same pictures, as often", description="what arms have in common, in words")
    note: str = ""

    def length(self, arm: str) -> str:
        """What runs that are trained equally long have in common: the recipe; of equal times also the arm."""
        return self.recipe if self.same == "epochs" else f"{self.recipe}, {self.title}, {arm}"

    @property
    def of_one_supernet(self) -> bool:
        return self.measure in OF_ONE_SUPERNET

    @property
    def low_is_better(self) -> bool:
        return self.measure in LOW_IS_BETTER

    @model_validator(mode="after")
    def _arms_are_ordered(self) -> Claim:
        if len(self.order) < 2 or len(set(self.order)) < len(self.order) or not set(self.order) <= set(self.arms):
            raise ValueError(f"order must name two or more of the arms {', '.join(self.arms)}, not {self.order}")
        return self


class Left(SettingsBase):
    """A claim that is not measured, and why."""

    title: str
    paper: str
    where: str
    why: str


@cache
def declared() -> dict[str, Claim]:
    """All claims, by name."""
    return {name: Claim.read(tree, f"the claim {name}") for name, tree in _file("declared.yaml").items()}


@cache
def left_out() -> tuple[Left, ...]:
    """Claims that cannot be measured honestly here."""
    return tuple(Left.read(tree, f"the claim {name}") for name, tree in _file("left_out.yaml").items())


def _file(name: str) -> dict[str, Any]:
    found: dict[str, Any] = load_yaml((resources.files(__package__) / name).read_text(), name)
    return found


def named(names: list[str]) -> dict[str, Claim]:
    """Some of them; without names all."""
    known = declared()
    for name in names:
        if name not in known:
            raise SuperformerError(f"there is no claim {name!r}: {nearest(name, list(known))}")
    return {name: known[name] for name in (names or known)}
