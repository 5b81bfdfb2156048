"""Small random spaces of Twins."""

from __future__ import annotations

from hypothesis import strategies as st

from helpers.small_spaces.common import stages, subset
from superformer.space import Space, times


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    body = []
    for widths in ((6, 8), (6, 8, 10), (8, 12))[: draw(st.integers(1, 3))]:
        heads = draw(subset((1, 2, 4)))
        block = {
            "type": draw(subset(("local", "global"))),
            "heads": heads,
            "attn": draw(st.sampled_from((times(3, of="heads"), (4, 8, 12), 8))),
            "mlp": draw(subset((5, 8, 11))),
        }
        body.append(draw(stages(block, {"width": draw(subset(widths))})))
    options = {"ws": draw(st.sampled_from((2, 3, 7))), "sr": draw(st.sampled_from((1, 2, 4)))}
    return Space(
        "small",
        "twins",
        tuple(body),
        img_size=32,
        options=options,
        weights={"type": draw(st.sampled_from(("block", "attention")))},
    )
