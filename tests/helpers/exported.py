"""A small stored network of every family, with weights that matter, for the tests of exports: few blocks, but all kinds
of them."""

from __future__ import annotations

import torch

import superformer as sf
from superformer.runs.storage import StoredNetwork
from superformer.space import Space, Stage, ratio, times

CLASSES = ("ant", "bee", "cat", "dog", "elk")
MEAN, STD, CROP = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3), 0.5

WINDOW = {"window": 3, "heads": 2, "attn": times(4, of="heads"), "mlp": 8}
HEADS = {"heads": 2, "attn": times(4, of="heads"), "mlp": 8}
SPACES = {
    "relative": Space(
        "s", "vit", (Stage(HEADS, 1),), {"patch_size": 4, "width": 12}, 16, {"rel_pos": 2, "pool": "mean"}
    ),
    "vit": Space(
        "s",
        "vit",
        (Stage(HEADS, 1), Stage(HEADS, 1)),
        {"patch_size": 8, "width": 12},
        16,
        {"class_attention": 1, "layer_scale": 0.5},
    ),
    "registers": Space(
        "s",
        "vit",
        (Stage(HEADS, 1),),
        {"patch_size": 4, "width": 12},
        16,
        {"reg_tokens": 2, "embed_class": 0, "pre_norm": 1, "act": "quick_gelu", "pool": "mean", "pool_norm": 1},
    ),
    "vit_res": Space(
        "s",
        "vit_res",
        (Stage(HEADS, 1, {"width": 8}), Stage(HEADS, 0, {"width": 12})),
        img_size=56,
        options={"stem": 4},
    ),
    "swin": Space(
        "s", "swin", (Stage(WINDOW, 2, {"width": 8}), Stage(WINDOW, 0, {"width": 12})), img_size=28
    ),  # 7 x 7 tokens
    "twins": Space(
        "s",
        "twins",
        tuple(Stage({**HEADS, "type": t}, 1, {"width": 8}) for t in ("local", "global")),
        {},
        32,
        {"ws": 3, "sr": 4},
    ),
    "nasvit": Space(
        "s",
        "nasvit",
        (
            Stage({}, 0, {"width": 8, "kernel": 3, "expand": 2}),
            Stage({}, 1, {"width": 16, "mlp": ratio(1, of="width"), "windows": 4}),
        ),
        {"stem": 8, "head": 6},
        32,
        {"stages": "ct", "head_dim": 4, "strides": "22", "squeeze_excite": "10"},
    ),
    "resnet": Space(
        "s",
        "resnet",
        tuple(Stage({"mid1": 4, "mid2": 5}, d, {"width": 8, "entry1": 4, "entry2": 5}) for d in (0, 1)),
        {"stem": 6},
        32,
    ),
}


def stored(name: str, seed: int = 0) -> StoredNetwork:
    """One of the networks. Nothing in it is as it began: scales of 1e-4 and norms of zero would hide what they
    multiply."""
    net = sf.model(SPACES[name].smallest(), len(CLASSES), seed=seed).eval()
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, tensor in net.state_dict().items():
            if tensor.is_floating_point():
                noise = 0.3 * torch.randn(tensor.shape, generator=rng)
                tensor.add_(noise.abs() if key.endswith("running_var") else noise)
    return StoredNetwork(net, CLASSES, MEAN, STD, {"crop": CROP})
