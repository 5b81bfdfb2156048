"""timm's networks in our families, and ours in timm's classes: the same logits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import timm
import torch
from helpers.timm_networks import OTHERS, SMALL, SWIN, TWINS, VITS, made, small, stirred
from safetensors.torch import save_file
from timm.layers import SwiGLUPacked
from timm.models.resnet import BasicBlock, ResNet
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import ParallelScalingBlock, ResPostBlock

import superformer as sf
from superformer.families.network import Network
from superformer.families.vit import Vit
from superformer.interop.timm_weights import from_timm, timm_words, to_timm
from superformer.space.arch import StageArch, Values


def pictures(size: int, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


def equal(a: torch.Tensor, b: torch.Tensor) -> None:
    assert b.std() > 0.1
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [*VITS, *OTHERS])
@torch.no_grad()
def test_there_and_back(name):
    theirs = made(name)
    ours, x = from_timm(theirs), pictures(48 if name == "swin" else 64 if name in OTHERS else 32)
    equal(ours(x), theirs(x))
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    assert not ours.training
    again = to_timm(ours)
    assert type(again) is type(theirs)
    equal(again(x), theirs(x))
    arch = ours.space.smallest()
    assert from_timm(again).space.smallest().stages == arch.stages
    assert sf.Arch.from_json(arch.to_json()) == arch


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "vit_tiny_patch16_224"])
@torch.no_grad()
def test_a_whole_network(name):
    theirs = stirred(timm.create_model(name))
    equal(from_timm(theirs)(pictures(224)), theirs(pictures(224)))


NAMES = {
    "deit3_small_patch16_224": {"embed_class": 0, "layer_scale": 1e-6},
    "vit_small_patch14_dinov2": {"layer_scale": 1e-5},
    "vit_small_patch14_reg4_dinov2": {"embed_class": 0, "layer_scale": 1e-5, "reg_tokens": 4},
    "vit_base_patch16_gap_224": {"class_token": 0, "pool": "mean"},
    "vit_wee_patch16_reg1_gap_256": {
        "class_token": 0, "embed_class": 0, "layer_scale": 1e-5, "pool": "mean", "pool_norm": 1, "reg_tokens": 1,
    },
    "vit_base_patch16_clip_224": {"eps": 1e-5, "final_eps": 1e-5, "pre_norm": 1},
    "vit_base_patch16_clip_quickgelu_224": {"act": "quick_gelu", "eps": 1e-5, "final_eps": 1e-5, "pre_norm": 1},
    "vit_base_patch16_siglip_gap_224": {"class_token": 0, "pool": "mean"},
    "swin_s3_tiny_224": {},
    "twins_pcpvt_small": {"ws": None},
    "wide_resnet50_2": {},
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_architecture_of_real_networks(name):
    """And the words that make it: the same number of weights, nothing of them in memory."""
    with torch.device("meta"):
        theirs = timm.create_model(name)
        ours = from_timm(theirs)
        arch = ours.space.smallest()
        entry, words = timm_words(arch)
        again = timm.create_model(entry, num_classes=theirs.num_classes, **words)
    assert NAMES[name].items() >= dict(arch.options).items()
    shapes = {key: tensor.shape for key, tensor in theirs.state_dict().items()}
    assert {key: tensor.shape for key, tensor in again.state_dict().items()} == shapes


REFUSED = {
    "attention pooling": {"global_pool": "map", "class_token": False},
    "gated MLPs": {"mlp_layer": SwiGLUPacked, "mlp_ratio": 2},
    "attention and MLP side by side": {"block_fn": ParallelScalingBlock},
    "norms after attention and MLP": {"block_fn": ResPostBlock},
    "layers of the kind SiLU": {"act_layer": "silu"},
    "RMS norms": {"norm_layer": "rmsnorm"},
    "no position table": {"pos_embed": "none"},
    "norms within attention": {"qk_norm": True},
    "a norm of the patches": {"embed_norm_layer": "layernorm"},
    "matrices without biases": {"qkv_bias": False},
    "no final norm": {"final_norm": False},
    "the pooling 'max'": {"global_pool": "max"},
    "a mean of all tokens": {"global_pool": "avg", "pool_include_prefix": True},
    "no blocks": {"depth": 0},
    "square pictures": {"img_size": (32, 16)},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_vision_transformers_of_other_kinds_are_refused(reason):
    with pytest.raises(sf.SuperformerError, match=reason):
        from_timm(small(**REFUSED[reason]))


def test_what_a_class_cannot_say_is_refused_too():
    mixed, biased = small(), small()
    mixed.blocks[1].norm1.eps, mixed.blocks[2].mlp.act = 1e-3, torch.nn.ReLU()
    with pytest.raises(sf.SuperformerError, match="layers of the kind ReLU"):
        from_timm(mixed)
    mixed.blocks[2].mlp.act = timm.layers.QuickGELU()
    with pytest.raises(sf.SuperformerError, match="blocks of several kinds, norms of several eps"):
        from_timm(mixed)
    biased.norm_pre = torch.nn.LayerNorm(12)
    with pytest.raises(sf.SuperformerError, match="a bias of the patches before a norm"):
        from_timm(biased)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("convnext_atto", "have no family here; known: VisionTransformer"),
        ("deit_tiny_distilled_patch16_224", "two classifiers"),
        ("mobilenetv3_large_100", "ReLU and hard swish"),
        ("efficientnet_b0", "no shortcut"),
        ("vit_small_patch16_dinov3", "rotary positions"),
        ("resnet18", "blocks of two 3x3 convolutions"),
        ("resnet50d", "shortcuts that average"),
        ("resnet50c", "a stem of three convolutions"),
    ],
)
def test_networks_of_other_kinds_are_refused(name, reason):
    with torch.device("meta"), pytest.raises(sf.SuperformerError, match=reason):
        from_timm(name)


def changed(net: Network, **values) -> Network:
    """The same network but for values of its last block, with new weights."""
    arch = net.space.smallest()
    *first, last = arch.stages[0].blocks
    return sf.model(replace(arch, stages=(StageArch((*first, Values({**last, **values}))),)), 5)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"mlp": 20}, "VisionTransformer cannot be this network: mlp of block 2 of stage 0 is 20, there it is 31"),
        ({"heads": 2}, "heads of block 2 of stage 0 is 2, there it is 3"),
        ({"attn": 6}, "attn of block 2 of stage 0 is 6, there it is 12"),
    ],
)
def test_blocks_of_several_sizes_are_no_class_of_timm(values, reason):
    with pytest.raises(sf.SuperformerError, match=reason):
        to_timm(changed(from_timm(small()), **values))


def test_supernets_and_families_that_timm_has_not():
    space = sf.space("autoformer-tiny")
    with pytest.raises(sf.SuperformerError, match="this is a supernet of"):
        to_timm(Vit.skeleton(space))
    with pytest.raises(sf.SuperformerError, match="rel_pos is 14, there it is the default"):
        timm_words(space.smallest())
    with pytest.raises(sf.SuperformerError, match="no class for networks of the family nasvit"):
        timm_words(sf.space("nasvit").smallest())
    basic = ResNet(BasicBlock, (1, 1, 1, 1), channels=(8, 8, 8, 8))
    with pytest.raises(sf.SuperformerError, match="BasicBlock"):
        from_timm(basic)


@pytest.mark.parametrize("name", ["vit", "dinov2 with registers", "gap"])
@torch.no_grad()
def test_pictures_of_another_size_as_timm_resizes_its_tables(name):
    theirs = stirred(small(**VITS[name], dynamic_img_size=True))
    for x in (pictures(16), pictures(56), pictures(64)[..., :40]):
        equal(from_timm(theirs)(x), theirs(x))


SIZED = {
    "vit_tiny_patch16_224": (SMALL | {"img_size": 64}, 48),
    "vit_small_patch14_reg4_dinov2": (SMALL | {"img_size": 64, "num_classes": 5}, 40),
    "swin_tiny_patch4_window7_224": (SWIN | {"window_size": 6, "num_classes": 5}, 24),  # the last windows shrink
    "twins_svt_small": (TWINS | {"img_size": 64}, 32),
    "resnet26": ({"channels": (8, 8, 8, 8), "layers": (1, 1, 1, 1)}, 96),
}


@pytest.mark.parametrize("name", SIZED)
@torch.no_grad()
def test_a_checkpoint_for_another_size_is_what_timm_makes_of_it(name, tmp_path):
    words, size = SIZED[name]
    native = stirred(timm.create_model(name, **words))
    file, x, other = str(tmp_path / "weights.safetensors"), pictures(size), dict(words)
    save_file(native.state_dict(), file)
    if "img_size" in words:
        other["img_size"] = size
    overlay = {"file": file, "num_classes": native.num_classes, "custom_load": False}
    theirs = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **other).eval()
    ours = from_timm(name, checkpoint_path=file, **(words | {"img_size": size})).eval()
    assert ours.space.smallest().resolution == size
    equal(ours(x), theirs(x))
    if name.startswith("vit"):
        native.set_input_size((size, size))
        equal(ours(x), native(x))


def test_padded_windows_are_refused():
    with pytest.raises(sf.SuperformerError, match="was built for pictures of 32 pixels, not 64"):
        from_timm(small(), img_size=64)
    with pytest.raises(sf.SuperformerError, match="a map of 10 x 10 tokens is padded to windows of 3; timm attends"):
        from_timm(SwinTransformer(**SWIN | {"img_size": 40}))
