"""Small random spaces and architectures of every family."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from superformer.space import Space, Stage, ratio, times
from superformer.space.arch import Arch


def subset(values: tuple, min_size: int = 1) -> st.SearchStrategy[tuple]:
    """Some of the values, in their order."""
    return st.lists(st.sampled_from(values), min_size=min_size, max_size=3, unique=True).map(lambda v: tuple(sorted(v, key=values.index)))


@st.composite
def stages(draw: st.DrawFn, block: dict, choices: dict | None = None) -> Stage:
    """A stage with several depths, with skippable positions, or of equal blocks."""
    kind = draw(st.sampled_from(("shifted", "free", "pairs", "tied")))
    own = choices or {}
    if kind == "shifted":
        return Stage(block, depth=draw(subset((0, 1, 2, 3))), choices=own)
    if kind == "free":
        return Stage(block, depth=2, skippable=range(2), skip=0.2, choices=own)
    if kind == "pairs":
        return Stage(block, depth=3, skippable=(1,), choices=own)
    return Stage(block, depth=draw(subset((1, 2))), tied=True, choices=own)


@st.composite
def vit_spaces(draw: st.DrawFn) -> Space:
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
    weights = {"shared": draw(st.sampled_from(("qkv", "v", "qk", "none"))), "cls_token": draw(st.sampled_from(("private", "shared")))}
    body = [draw(stages(block))]
    if late:
        body.append(Stage(block, depth=(1, 2)))
    choices = {"patch_size": draw(subset((8, 4))), "width": draw(subset((6, 8, 10)))}
    return Space("small", "vit", tuple(body), choices, img_size=16, options=options, weights=weights)


@st.composite
def vit_res_spaces(draw: st.DrawFn) -> Space:
    body = []
    for widths, head in (((6, 8), 4), ((8, 10, 12), 3), ((12, 16), 5))[: draw(st.integers(1, 3))]:
        block = {"heads": draw(subset((1, 2, 3))), "attn": times(head, of="heads"), "mlp": draw(subset((5, 8, 11)))}
        body.append(draw(stages(block, {"width": draw(subset(widths))})))
    options = {"stem": 4, "residual": draw(st.booleans())}
    return Space("small", "vit_res", tuple(body), img_size=56, options=options)


spaces = st.one_of(vit_spaces(), vit_res_spaces())
sharings = st.sampled_from((("ordinal", "left"), ("bilateral", "left"), ("bilateral", "right"), ("cyclic", "left")))


@st.composite
def spaces_with_archs(draw: st.DrawFn, n: int = 1, of: st.SearchStrategy[Space] = spaces) -> tuple[Space, list[Arch]]:
    space = draw(of)
    return space, space.sample(n, seed=np.random.default_rng(draw(st.integers(0, 2**32))))
