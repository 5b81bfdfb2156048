"""Small networks of timm's classes with random weights."""

from __future__ import annotations

from functools import partial

import torch
from timm.layers import LayerNorm
from timm.models.resnet import Bottleneck, ResNet
from timm.models.swin_transformer import SwinTransformer
from timm.models.twins import Twins
from timm.models.vision_transformer import VisionTransformer

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 12, "depth": 3, "num_heads": 3, "mlp_ratio": 2.6}
CLIP = {"pre_norm": True, "norm_layer": partial(LayerNorm, eps=1e-5)}
VITS = {
    "vit": {},
    "deit3": {"no_embed_class": True, "init_values": 1e-6},
    "dinov2": {"init_values": 1e-5, "num_classes": 0},
    "dinov2 with registers": {"no_embed_class": True, "init_values": 1e-5, "reg_tokens": 4},
    "registers with positions": {"reg_tokens": 2},
    "mae": {"global_pool": "avg"},
    "the norm before the mean": {"global_pool": "avg", "fc_norm": False},
    "the norm of the class token": {"fc_norm": True},
    "gap": {"global_pool": "avg", "class_token": False, "fc_norm": False},
    "gap with registers": {"global_pool": "avg", "class_token": False, "reg_tokens": 1, "no_embed_class": True},
    "clip": CLIP,
    "clip, quick": CLIP | {"act_layer": "quick_gelu"},
    "gap of siglip": {"global_pool": "avg", "class_token": False, "fc_norm": False, "act_layer": "gelu_tanh"},
}
SWIN = {"img_size": 48, "embed_dim": 16, "depths": (2, 3), "num_heads": (2, 4), "window_size": 3}
TWINS = {"embed_dims": (8, 16), "num_heads": (2, 4), "mlp_ratios": (2, 3), "depths": (2, 1), "sr_ratios": (8, 4)}
OTHERS = {
    "swin": lambda: SwinTransformer(**SWIN, head_dim=6, mlp_ratio=3, num_classes=5),
    "twins": lambda: Twins(img_size=64, **TWINS, wss=(7, 7), num_classes=5),
    "pcpvt": lambda: Twins(img_size=64, **TWINS, num_classes=5),
    "resnet": lambda: ResNet(Bottleneck, (2, 1, 1, 2), channels=(8, 8, 16, 16), base_width=96, num_classes=5),
}


def small(**words) -> VisionTransformer:
    return VisionTransformer(**{"num_classes": 5, **SMALL, **words})


def stirred(model: torch.nn.Module) -> torch.nn.Module:
    """Random weights, all of them: also norms, their running statistics, layer scales and registers."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=generator)
            fan = tensor[0].numel() ** 0.5 if tensor.ndim > 1 and "token" not in name and "pos" not in name else 1
            tensor.copy_((noise / 2).exp() if name.endswith(("running_var", "gamma")) else noise / fan)
    return model.eval()


def made(name: str) -> torch.nn.Module:
    return stirred(small(**VITS[name]) if name in VITS else OTHERS[name]())
