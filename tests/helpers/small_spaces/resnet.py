"""Small random spaces of ResNet."""

from __future__ import annotations

from hypothesis import strategies as st

from helpers.small_spaces.common import stages, subset
from superformer.space import Space


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    body = []
    for widths in ((8, 10, 12), (10, 12, 16), (12, 16, 20))[: draw(st.integers(1, 3))]:
        inner = draw(subset((4, 5, 7)))
        own = {"width": draw(subset(widths)), "entry1": draw(subset((4, 6, 7))), "entry2": inner}
        body.append(draw(stages({"mid1": inner, "mid2": draw(subset((4, 6)))}, own)))
    return Space("small", "resnet", tuple(body), {"stem": draw(subset((4, 5, 6)))}, img_size=32)
