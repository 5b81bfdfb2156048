"""Small random spaces of the plain vision transformer."""

from __future__ import annotations

from hypothesis import strategies as st

from helpers.small_spaces.common import stages, subset
from superformer.space import Space, Stage, ratio, times


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    relative = draw(st.booleans())
    late = not relative and draw(st.booleans())
    heads = draw(subset((1, 2, 4)))
    if relative:
        block = {"heads": heads, "attn": times(4, of="heads"), "mlp": ratio(1, 2.5, of="width")}
    else:
        block = {"heads": heads, "attn": draw(subset((4, 8, 12))), "mlp": draw(subset((5, 8, 11)))}
    options: dict[str, object] = {}
    if relative:
        options |= {"rel_pos": draw(st.sampled_from((1, 3))), "pool": draw(st.sampled_from(("cls", "mean")))}
    else:
        options["scale"] = draw(st.sampled_from(("head", "embed", 0.3)))
    if late:
        options |= {"class_attention": True, "layer_scale": 0.5}
    weights = {
        "shared": draw(st.sampled_from(("qkv", "v", "qk", "none"))),
        "cls_token": draw(st.sampled_from(("private", "shared"))),
    }
    body = [draw(stages(block))]
    if late:
        body.append(Stage(block, depth=(1, 2)))
    choices = {"patch_size": draw(subset((8, 4))), "width": draw(subset((6, 8, 10)))}
    return Space("small", "vit", tuple(body), choices, img_size=16, options=options, weights=weights)
