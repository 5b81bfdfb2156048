"""What a family's spaces and architectures must say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from superformer.errors import ArchError, SpaceError, nearest
from superformer.space.arch import Arch, Values

if TYPE_CHECKING:
    from superformer.space import Space


@dataclass(frozen=True)
class Schema:
    """The names of a family's choices, its options with their defaults, and rules that names alone cannot express.

    ``stage`` may say for each stage of a space what it must choose. ``rules`` yields a sentence for everything that is wrong with a space.
    ``entry`` are those choices of a stage that only what leads into it depends on, no block and no other stage: drawing within limits
    need not pair them.
    """

    family: str
    choices: frozenset[str]
    stage: frozenset[str] | Callable[[Space, int], frozenset[str]]
    block: frozenset[str]
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    rules: Callable[[Space], Iterable[str]] = lambda space: ()
    entry: frozenset[str] = frozenset()

    def normal_options(self, options: Mapping[str, Any]) -> Values:
        """Options in their one form: those that are not the default."""
        for name in options:
            if name not in self.options:
                raise SpaceError(f"{self.family} networks have no option {name!r}: {nearest(name, self.options)}")
        return Values({k: _plain(v) for k, v in options.items() if _plain(v) != _plain(self.options[k])})

    def option(self, options: Mapping[str, Any], name: str) -> Any:
        return options.get(name, self.options[name])

    def check_space(self, space: Space) -> None:
        self._names(space.name, "network-wide choices", set(space.choices) - {"resolution"}, self.choices, SpaceError)
        if not space.stages:
            raise SpaceError(f"the space {space.name} has no stage")
        for i, stage in enumerate(space.stages):
            needed = self.stage(space, i) if callable(self.stage) else self.stage
            self._names(space.name, f"choices of stage {i}", set(stage.choices), needed, SpaceError)
            for block in stage.blocks:
                self._names(space.name, f"choices of the blocks of stage {i}", set(block), self.block, SpaceError)
        for name, value in space.weights.items():
            if value not in self.weights.get(name, ()):
                known = self.weights.get(name) or tuple(self.weights)
                raise SpaceError(f"{space.name}: weights {name}={value!r} is not known: {nearest(value, known)}")
        for wrong in self.rules(space):
            raise SpaceError(f"{space.name}: {wrong}")

    def check_arch(self, arch: Arch) -> None:
        """An architecture that comes from outside."""
        from superformer.space import point

        try:
            found = point(arch)
        except SpaceError as error:
            raise ArchError(f"not a {self.family} network: {error}") from error
        if found.options != arch.options:
            raise ArchError(f"options at their default are left out of an architecture: {arch.options} should be {found.options}")

    def _names(self, name: str, what: str, given: set[str], needed: frozenset[str], error: type[ValueError]) -> None:
        for extra in sorted(given - needed):
            raise error(f"{name}: {extra!r} is not among the {what} of {self.family}: {nearest(extra, sorted(needed))}")
        if missing := sorted(needed - given):
            raise error(f"{name}: the {what} of {self.family} lack {', '.join(missing)}")


def _plain(value: Any) -> Any:
    """JSON has no tuples, and Values hold numbers and words: truth is 1 or 0, nothing is an empty word."""
    if value is None:
        return ""
    return int(value) if isinstance(value, bool) else value
