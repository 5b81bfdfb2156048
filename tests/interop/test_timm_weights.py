"""timm's networks in our families: the same logits."""

from __future__ import annotations

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

import superformer as sf
from superformer.interop.timm_weights import from_timm


def stirred(model: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data += 0.02 * torch.randn(p.shape, generator=generator)
    return model.eval()


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "deit3_small_patch16_224", "vit_tiny_patch16_224"])
@torch.no_grad()
def test_vit(name):
    settings = {"no_embed_class": False} if name.startswith("deit3") else {}
    theirs = stirred(timm.create_model(name, **settings))
    ours = from_timm(theirs)
    x = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    expected = theirs(x)
    assert (ours(x) - expected).abs().max() < 1e-5 * expected.std() + 1e-5
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    assert not ours.training


def test_what_is_not_known_is_refused():
    with pytest.raises(sf.SuperformerError, match="have no family here; known: VisionTransformer"):
        from_timm("convnext_atto")
    with pytest.raises(sf.SuperformerError, match="register or distillation tokens"):
        from_timm(VisionTransformer(img_size=32, patch_size=16, embed_dim=12, depth=1, num_heads=2, reg_tokens=2))
