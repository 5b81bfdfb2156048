"""Small random spaces of the plain vision transformer."""

from __future__ import annotations

from hypothesis import strategies as st

from helpers.small_spaces.common import stages, subset
from superformer.space import Space, Stage, ratio, times


@st.composite
def heritage(draw: st.DrawFn) -> dict[str, object]:
    """Options of the networks that people start from: DeiT-III, DINOv2, CLIP, MAE and others, in every mixture."""
    options: dict[str, object] = {"pool": draw(st.sampled_from(("cls", "mean")))}
    options |= {"act": draw(st.sampled_from(("gelu", "gelu_tanh", "quick_gelu"))), "pre_norm": draw(st.booleans())}
    options |= {"reg_tokens": draw(st.sampled_from((None, 1, 3))), "layer_scale": draw(st.sampled_from((None, 0.5)))}
    if options["pool"] == "mean":
        options |= {"class_token": draw(st.booleans()), "pool_norm": draw(st.booleans())}
    if options.get("class_token", True) or options["reg_tokens"]:
        options["embed_class"] = draw(st.booleans())
    return options


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
    if not late and not relative:
        options |= draw(heritage())
    weights = {
        "shared": draw(st.sampled_from(("qkv", "v", "qk", "none"))),
        "cls_token": draw(st.sampled_from(("private", "shared"))),
    }
    body = [draw(stages(block))]
    if late:
        body.append(Stage(block, depth=(1, 2)))
    choices = {"patch_size": draw(subset((8, 4))), "width": draw(subset((6, 8, 10)))}
    return Space("small", "vit", tuple(body), choices, img_size=16, options=options, weights=weights)
