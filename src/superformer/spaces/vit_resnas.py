"""ViT-ResNAS: the search spaces of table 5 and the networks of tables 4 and 6 to 8."""

from __future__ import annotations

from superformer.space import Space, Stage, times
from superformer.space.arch import Arch, StageArch, Values

HEAD_WIDTHS = (32, 48, 64)


def _stage(widths: tuple[int, ...], head: int, heads: tuple[int, ...], hidden: range, blocks: int) -> Stage:
    """Pairs of blocks, the second of which can be skipped; with an odd number the last block has no second."""
    block = {"heads": heads, "attn": times(head, of="heads"), "mlp": hidden}
    return Stage(block, depth=blocks, choices={"width": widths}, skippable=range(1, blocks, 2), skip=0.5)


TINY = (
    _stage((160, 176, 192, 224, 256), 32, (3, 4, 5, 6), range(384, 769, 64), 6),
    _stage((320, 352, 384, 448, 512), 48, (6, 8, 10, 12), range(768, 1537, 128), 6),
    _stage((640, 704, 768, 896, 1024), 64, (6, 8, 10, 12), range(1536, 3073, 256), 6),
)
SMALL = (
    _stage((200, 220, 240, 280, 320), 32, (5, 6, 7, 8), range(480, 961, 80), 7),
    _stage((400, 440, 480, 560, 640), 48, (10, 12, 14, 16), range(960, 1921, 160), 7),
    _stage((800, 880, 960, 1120, 1280), 64, (10, 12, 14, 16), range(1920, 3841, 320), 7),
)
"""Small and Medium share one space."""
SPACES = (Space("vit-resnas-tiny", "vit_res", TINY), Space("vit-resnas-small", "vit_res", SMALL))


def network(*stages: tuple[int, list[tuple[int, int]]], heads: tuple[int, ...] = HEAD_WIDTHS) -> Arch:
    """A network of stages (width, blocks), blocks (heads, hidden width)."""
    out = []
    for (width, blocks), head in zip(stages, heads, strict=True):
        values = (Values(heads=h, attn=head * h, mlp=hidden) for h, hidden in blocks)
        out.append(StageArch(tuple(values), Values(width=width)))
    return Arch("vit_res", 224, Values(), tuple(out))


MODELS = {
    "vit_res_tiny": network((192, [(3, 768)] * 4), (384, [(6, 1536)] * 4), (768, [(12, 3072)] * 4), heads=(64, 64, 64)),
    "vit_resnas_tiny": network(
        (176, [(3, 704), (3, 576), (3, 640), (4, 576), (4, 704)]),
        (352, [(10, 1408), (8, 1408), (8, 1280), (8, 1408), (10, 1280), (10, 1024)]),
        (704, [(10, 2560), (10, 1792), (10, 2816), (8, 2816), (8, 2560)]),
    ),
    "vit_resnas_small": network(
        (220, [(5, 880), (5, 880), (7, 800), (5, 720), (5, 720), (5, 720)]),
        (440, [(10, 1760), (10, 1440), (10, 1920), (10, 1600), (12, 1600), (12, 1440)]),
        (880, [(16, 3200), (12, 3200), (16, 2880), (12, 2240), (14, 2560)]),
    ),
    "vit_resnas_medium": network(
        (240, [(7, 960), (6, 960), (7, 800), (8, 960), (7, 880), (8, 880), (6, 800)]),
        (640, [(10, 1120), (14, 1760), (14, 1920), (16, 1760), (14, 1440), (16, 1760), (16, 1920)]),
        (880, [(16, 3200), (10, 3840), (16, 3840), (12, 3200), (16, 3520), (14, 3520)]),
    ),
}
