"""Small random spaces of Swin transformers: windows that divide the map and windows that do not, maps with odd
sides."""

from __future__ import annotations

from hypothesis import strategies as st

from helpers.small_spaces.common import stages, subset
from superformer.space import Space, divided, ratio, times


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    img_size = draw(st.sampled_from((16, 20, 24, 28, 32)))
    side, body = img_size // 4, []
    for widths in ((6, 8), (8, 10, 12), (12, 16))[: draw(st.integers(1, 3 if side > 4 else 2))]:
        by_heads = {
            "heads": draw(subset((1, 2, 3))),
            "attn": draw(st.sampled_from((times(4, of="heads"), (6, 12), 12))),
        }
        by_width = {"attn": draw(subset((4, 8, 12))), "heads": divided(4, of="attn")}
        block = {
            "window": draw(subset(tuple(range(2, side + 1)))),
            **draw(st.sampled_from((by_heads, by_width))),
            "mlp": draw(st.sampled_from((ratio(1, 2.5, of="width"), (5, 8, 11)))),
        }
        body.append(draw(stages(block, {"width": draw(subset(widths))})))
        side = (side + 1) // 2
    return Space("small", "swin", tuple(body), img_size=img_size)
