"""Small random spaces of NASViT's hybrids, as the paper has them and as released, and of convolutions alone."""

from __future__ import annotations

from hypothesis import strategies as st

from helpers.small_spaces.common import subset
from superformer.families.nasvit import RELEASED, NasVit
from superformer.space import Space, Stage, ratio


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    kinds = draw(st.sampled_from(("c", "ct", "cc", "tt", "ctt")))
    released = draw(st.booleans())
    options: dict[str, object] = {"stages": kinds, "head_dim": 4}
    options["strides"] = "".join(draw(st.sampled_from("12")) for _ in kinds)
    options["squeeze_excite"] = "".join(draw(st.sampled_from("01")) for _ in kinds)
    if released:
        options |= RELEASED
    else:
        options["scale"] = draw(st.sampled_from(("width", "shared", "none")))
        options["resize"] = draw(st.booleans())
    sizes = draw(subset((16, 32))) if options.get("resize", True) else (16,)
    stages = []
    for i, kind in enumerate(kinds):
        convolution = {"kernel": draw(subset((1, 3, 5))), "expand": draw(st.sampled_from(((1,), (2,), (2, 3))))}
        choices: dict[str, object] = {"width": draw(subset((8, 12, 16)))}
        if kind == "c" or released:
            choices |= convolution
        if kind == "t":
            even = all(NasVit.map_sizes(size, str(options["strides"]))[i] % 2 == 0 for size in sizes)
            choices["mlp"] = draw(st.sampled_from((ratio(1, of="width"), ratio(1, 2, of="width"))))
            choices["windows"] = draw(subset((4, 1))) if even else (1,)
        stages.append(Stage({}, draw(subset((0, 1, 2))), choices))
    top = {"stem": draw(subset((8, 16))), "head": draw(subset((5, 6))), "resolution": sizes}
    return Space("small", "nasvit", tuple(stages), top, img_size=sizes[-1], options=options)
