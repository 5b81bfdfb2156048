"""Small random spaces of ViT-Res."""

from __future__ import annotations

from hypothesis import strategies as st

from helpers.small_spaces.common import stages, subset
from superformer.space import Space, times


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    body = []
    for widths, head in (((6, 8), 4), ((8, 10, 12), 3), ((12, 16), 5))[: draw(st.integers(1, 3))]:
        block = {"heads": draw(subset((1, 2, 3))), "attn": times(head, of="heads"), "mlp": draw(subset((5, 8, 11)))}
        body.append(draw(stages(block, {"width": draw(subset(widths))})))
    options = {"stem": draw(st.sampled_from((4, 0))), "residual": draw(st.booleans())}
    return Space("small", "vit_res", tuple(body), img_size=56, options=options)
