"""Claims of the papers, as data: which recipe, which changes of it are compared, by what, and who should win."""

from __future__ import annotations

from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any, Literal

from pydantic import Field, model_validator

from superformer.errors import SuperformerError, nearest
from superformer.settings import SettingsBase, load_yaml, read_key_value

Measure = Literal[
    "late_loss", "early_loss", "smallest", "largest", "median", "conflict", "alone", "found", "kendall",
    "kendall_macs", "kendall_in_ranges", "et_error", "best_error", "searched", "chosen", "weights", "distance", "ratio",
    "spread",
]  # fmt: skip
LOW_IS_BETTER = ("late_loss", "early_loss", "conflict", "et_error", "best_error")
LIMITED = ("found", "searched", "chosen", "ratio", "spread")
"""Of networks within a limit on their cost."""
ASKED = ("recipe", "which", "weights", "blocks", "networks", "evolved")
"""Words of an arm that say what is asked of a run; all others change its recipe (of ``searched``, the search)."""


class Claim(SettingsBase):
    """One claim. ``arms``: words that change the recipe (`superformer.recipes`); ``order``: the best first, as the
    paper claims."""

    title: str
    paper: str
    where: str = Field(description="section, table or figure")
    says: str = Field(description="the paper's own figures")
    recipe: str = Field(description="of all arms but those that say recipe=NAME")
    measure: Measure
    arms: dict[str, list[str]]
    order: list[str]
    pairs: list[tuple[str, str]] = Field(
        [], description="what is compared, the better first; none: neighbours in order"
    )
    margin: float = Field(0.0, ge=0, description="by how much the better may be worse and still be as good")
    common: list[str] = Field([], description="words that all arms have")
    search: list[str] = Field([], description="words of the search, where there is one")
    retrain: list[str] = Field([], description="words of the training of what was found")
    limit: Literal["macs", "latency"] = Field("macs", description="of a search")
    place: float = Field(
        0.3, gt=0, le=1, description="of the limit, on the way from the smallest network to the largest"
    )
    same: Literal["epochs", "minutes"] = Field("epochs", description="of the arms' trainings")
    epochs: float | None = Field(
        None, gt=0, description="of the trainings; none: those of other claims, or the recipe's"
    )
    equal: str = Field("the same pictures, as often", description="what arms have in common, in words")
    note: str = ""

    @property
    def compared(self) -> list[tuple[str, str]]:
        """Pairs of arms, the better first as the paper has it."""
        return self.pairs or list(pairwise(self.order))

    @property
    def low_is_better(self) -> bool:
        return self.measure in LOW_IS_BETTER

    def asked(self, arm: str) -> dict[str, Any]:
        """What an arm asks of a run."""
        return dict(read_key_value(word) for word in self.arms[arm] if _key(word) in ASKED)

    def recipe_of(self, arm: str) -> tuple[str, list[str]]:
        """The recipe of an arm, and the words that change it."""
        own = [] if self.measure == "searched" else [word for word in self.arms[arm] if _key(word) not in ASKED]
        return str(self.asked(arm).get("recipe", self.recipe)), [*self.common, *own]

    def words(self, arm: str) -> str:
        """All that an arm is run with: figures that were measured with other words are not the arm's."""
        told = " ".join([self.recipe, *self.common, *self.arms[arm]])
        if self.measure in LIMITED:
            told = " ".join([told, f"limit: {self.limit} {self.place:g}", *self.search])
        return " ".join([told, "retrain:", *self.retrain]) if self.retrain else told

    @model_validator(mode="after")
    def _arms_are_ordered(self) -> Claim:
        if len(self.order) < 2 or len(set(self.order)) < len(self.order) or not set(self.order) <= set(self.arms):
            raise ValueError(f"order must name two or more of the arms {', '.join(self.arms)}, not {self.order}")
        if not {arm for pair in self.pairs for arm in pair} <= set(self.arms):
            raise ValueError(f"pairs must be of the arms {', '.join(self.arms)}, not {self.pairs}")
        return self


def _key(word: str) -> str:
    return word.partition("=")[0].strip()


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
