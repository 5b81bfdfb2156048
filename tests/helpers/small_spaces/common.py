"""What the strategies of all families share."""

from __future__ import annotations

from hypothesis import strategies as st

from superformer.space import Stage


def subset(values: tuple, min_size: int = 1) -> st.SearchStrategy[tuple]:
    """Some of the values, in their order."""
    return st.lists(st.sampled_from(values), min_size=min_size, max_size=3, unique=True).map(
        lambda v: tuple(sorted(v, key=values.index))
    )


@st.composite
def stages(draw: st.DrawFn, block: dict, choices: dict | None = None) -> Stage:
    """A stage with several depths, the last or others left out first, with skippable positions, or of equal blocks."""
    kind = draw(st.sampled_from(("shifted", "ranked", "free", "pairs", "tied")))
    own = choices or {}
    if kind == "shifted":
        return Stage(block, depth=draw(subset((0, 1, 2, 3))), choices=own)
    if kind == "ranked":
        return Stage(block, depth=(1, 2, 3), choices=own, order=draw(st.permutations(range(3))))
    if kind == "free":
        return Stage(block, depth=2, skippable=range(2), skip=0.2, choices=own)
    if kind == "pairs":
        return Stage(block, depth=3, skippable=(1,), choices=own)
    return Stage(block, depth=draw(subset((1, 2))), tied=True, choices=own)
