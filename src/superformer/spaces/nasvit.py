"""NASViT's search space (table 1), as the paper has it and as it was released; AlphaNet's; the networks of table 13.

Depths here count the layers after a stage's first one, so they are one less than in the paper's tables."""

from __future__ import annotations

from collections.abc import Sequence

from superformer.families.nasvit import RELEASED, NasVit
from superformer.space import Space, Stage, ratio
from superformer.space.arch import Arch, StageArch, Values

RESOLUTIONS = (192, 224, 256, 288)
STEM, HEAD = (16, 24), (1792, 1984)


def _convs(width: Sequence[int], depth: range, kernel: Sequence[int], expand: Sequence[int]) -> Stage:
    return Stage({}, [d - 1 for d in depth], {"width": width, "kernel": kernel, "expand": expand})


def _transformer(
    width: Sequence[int], depth: range, mlp: Sequence[int], windows: Sequence[int], **opening: Sequence[int]
) -> Stage:
    choices = {"width": width, "mlp": ratio(*mlp, of="width"), "windows": windows, **opening}
    return Stage({}, [d - 1 for d in depth], choices)


CONVOLUTIONS = (_convs((16, 24), range(1, 3), (3, 5), (1,)), _convs((24, 32), range(3, 6), (3, 5), (4, 5, 6)))
CHOICES = {"stem": STEM, "head": HEAD, "resolution": RESOLUTIONS}

PAPER = (
    *CONVOLUTIONS,
    _convs((32, 40), range(3, 7), (3, 5), (4, 5, 6)),
    _transformer((64, 72), range(3, 7), (1, 2), (4, 1)),
    _transformer((112, 120, 128), range(3, 9), (1, 2), (1,)),
    _transformer((160, 168, 176, 184), range(3, 9), (1, 2), (1,)),
    _transformer((208, 216, 224), range(3, 7), (1, 2), (1,)),
)
AS_RELEASED = (
    *CONVOLUTIONS,
    _convs((32, 40), range(3, 7), (3,), (4, 5, 6)),
    _transformer((64, 72), range(3, 7), (1,), (1,), kernel=(3,), expand=(4, 5, 6)),
    _transformer((112, 120, 128), range(3, 10), (1,), (1,), kernel=(3,), expand=(4, 5, 6)),
    _transformer((160, 168, 176, 184), range(3, 9), (1,), (1,), kernel=(3,), expand=(6,)),
    _transformer((208, 216, 224), range(3, 7), (1,), (1,), kernel=(3,), expand=(6,)),
)
ALPHANET = (
    *CONVOLUTIONS,
    _convs((32, 40), range(3, 7), (3, 5), (4, 5, 6)),
    _convs((64, 72), range(3, 7), (3, 5), (4, 5, 6)),
    _convs((112, 120, 128), range(3, 9), (3, 5), (4, 5, 6)),
    _convs((192, 200, 208, 216), range(3, 9), (3, 5), (6,)),
    _convs((216, 224), range(1, 3), (3, 5), (6,)),
)
"""The convolutional space that section 4.3 trains; its table is that of AttentiveNAS, from which AlphaNet took it."""
SQUEEZED = "0010111"
CONVOLUTIONAL = {"stages": "ccccccc", "strides": "1222121", "squeeze_excite": SQUEEZED}

SPACES = (
    Space("nasvit", "nasvit", PAPER, CHOICES),
    Space("nasvit-released", "nasvit", AS_RELEASED, CHOICES, options={**RELEASED, "squeeze_excite": SQUEEZED}),
    Space("alphanet", "nasvit", ALPHANET, CHOICES, options=CONVOLUTIONAL),
)


def network(
    resolution: int, width: Sequence[int], depth: Sequence[int], kernel: Sequence[int], expand: Sequence[int]
) -> Arch:
    """A network of the released space, in the released form: ``width`` of the stem, the seven stages and the head."""
    stem, *widths, head = (int(w) for w in width)
    stages = []
    for i, (w, d, k, t) in enumerate(zip(widths, depth, kernel, expand, strict=True)):
        own = {"width": w, "kernel": int(k), "expand": int(t)} | ({"mlp": w, "windows": 1} if i >= 3 else {})
        stages.append(StageArch((Values(),) * (int(d) - 1), Values(own)))
    return Arch("nasvit", int(resolution), Values(stem=stem, head=head), tuple(stages), Values(SPACES[1].options))


def map_side(resolution: int, stage: int) -> int:
    """The side of a stage's map."""
    side: int = NasVit.map_sizes(resolution, NasVit.schema.options["strides"])[stage]
    return side


def _table13(resolution: int, expand: Sequence[int], widths: Sequence[int], depth: Sequence[int]) -> Arch:
    """A column of table 13 and what all share. Its expansion 3 of MBConv-1 contradicts table 1, which has 1."""
    return network(resolution, (16, 16, 24, 32, 64, *widths), (1, 3, 3, 4, *depth), (3,) * 7, (1, *expand, 4, 4, 6, 6))


MODELS = {
    "nasvit_smallest": network(
        192, (16, 16, 24, 32, 64, 112, 160, 208, 1792), (1, 3, 3, 3, 3, 3, 3), (3,) * 7, (1, 4, 4, 4, 4, 6, 6)
    ),
    "nasvit_largest": network(
        288, (24, 24, 32, 40, 72, 128, 184, 224, 1984), (2, 5, 6, 6, 9, 8, 6), (5, 5, 3, 3, 3, 3, 3), (1, *(6,) * 6)
    ),
    "nasvit_a1": _table13(192, (4, 4), (112, 160, 216, 1792), (3, 3, 3)),
    "nasvit_a2": _table13(224, (4, 6), (112, 160, 208, 1792), (3, 5, 4)),
    "nasvit_a3": _table13(256, (5, 5), (112, 160, 216, 1984), (4, 7, 5)),
    "nasvit_a4": _table13(288, (4, 6), (120, 160, 216, 1984), (3, 6, 6)),
}
