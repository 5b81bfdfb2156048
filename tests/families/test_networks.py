"""Supernets and stand-alone networks as users meet them: mistakes, timm's interface, registration, settings."""

from __future__ import annotations

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from torch.utils.flop_counter import FlopCounterMode

import superformer as sf
from superformer.families.network import Network
from superformer.kernels.lockstep import masked_is_better
from superformer.spaces import arch

X = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def net():
    return sf.supernet("vit-resnas-tiny", num_classes=10, patch_head=True).eval()


def test_mistakes_name_what_was_given_and_what_is_possible(net):
    a, b = net.space.sample(2)
    cases = [
        (lambda: net(X), "this is a supernet of 1.56e"),
        (lambda: net(X, [a, b, a]), "a batch of 2 cannot be cut into 3 equal parts"),
        (lambda: net(X, []), "empty list"),
        (lambda: net(X, [a, b], mode="mask"), "did you mean 'masked'"),
        (lambda: net(X, a, mode="mask"), "did you mean 'masked'"),
        (lambda: net(X[0], a), r"\(batch, 3, height, width\)"),
        (lambda: net(X[:, :1], a), r"\(batch, 3, height, width\)"),
        (lambda: net(X, sf.space("vitas-block").smallest()), "holds vit_res networks"),
        (lambda: net(X[..., :220], a), "does not divide into patches of 14"),
        (lambda: net(X, a, side="right"), "only bilateral"),
        (lambda: net.extract(a)(X, patches=True), "patch_head=True"),
        (lambda: sf.supernet("vitas-block", num_classes=-1), "num_classes"),
        (lambda: sf.model("vit_resnas_tinny"), "did you mean 'vit_resnas_tiny'"),
        (lambda: sf.cost(net.space, [a], img_size=225), "does not divide"),
        (lambda: timm.create_model("vitas_1g", pretrained=True), "no trained weights"),
        (lambda: sf.register_model("two words", a), "letters, digits"),
    ]
    for call, says in cases:
        with pytest.raises(sf.SuperformerError, match=says):
            call()


def test_token_labelling_head(net):
    arch = net.space.smallest()
    logits, patches = net(X, arch, patches=True)
    assert logits.shape == (2, 10)
    assert patches.shape == (2, 16, 10)
    plain, kept = net.extract(arch), net.extract(arch, patch_head=True)
    assert sum(p.numel() for p in kept.parameters()) - sum(p.numel() for p in plain.parameters()) == 640 * 10 + 10
    torch.testing.assert_close(kept(X, patches=True)[1], patches)
    mixed = net(X, [arch, net.space.largest()], patches=True)
    torch.testing.assert_close(mixed[1][:1], patches[:1], rtol=1e-4, atol=1e-5)


def test_the_same_seed_gives_the_same_supernet():
    space = sf.space("vitas-block")
    a, b, c = (sf.supernet(space, 10, seed=s).state_dict() for s in (0, 0, 1))
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert any(not torch.equal(a[k], c[k]) for k in a)


@pytest.mark.parametrize("name", sf.models())
def test_published_models_are_timm_models(name):
    model = timm.create_model(name, num_classes=7, drop_path_rate=0.1).eval()
    assert model.num_classes == 7
    size = model.space.img_size
    assert model.pretrained_cfg["input_size"] == (3, size, size)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        assert model(torch.zeros(1, 3, size, size)).shape == (1, 7)
    own = sf.cost(model.space, [model.space.smallest()], num_classes=7)
    assert own.macs[0] * 2 == counter.get_total_flops()
    assert own.params[0] == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["vitas_858m", "autoformer_tiny", "vit_resnas_tiny", "s3_tiny"])
@torch.no_grad()
def test_timm_interface(name):
    model = timm.create_model(name, num_classes=7).eval()
    features = model.forward_features(X)
    assert features.shape[-1] == model.num_features == model.head_hidden_size
    torch.testing.assert_close(model.forward_head(features), model(X))
    assert model.forward_head(features, pre_logits=True).shape == (2, model.num_features)
    final, maps = model.forward_intermediates(X)
    torch.testing.assert_close(final, features)
    assert [m.shape[1] for m in maps] == [i["num_chs"] for i in model.feature_info]
    assert [224 // m.shape[-1] for m in maps] == [i["reduction"] for i in model.feature_info]
    early = model.forward_intermediates(X, indices=[0], stop_early=True, intermediates_only=True)
    torch.testing.assert_close(early[0], maps[0])
    tokens = model.forward_intermediates(
        X, indices=1, output_fmt="NLC", intermediates_only=True, return_prefix_tokens=True
    )
    assert tokens[0][0].shape[1] == maps[-1].shape[-1] ** 2
    assert tokens[0][1].shape[1] == model.num_prefix_tokens
    backbone = timm.create_model(name, features_only=True, out_indices=(0, 1, 2)).eval()
    out = backbone(X)
    assert [o.shape[1] for o in out] == backbone.feature_info.channels()
    assert [224 // o.shape[-1] for o in out] == backbone.feature_info.reduction()
    model.reset_classifier(3)
    assert model(X).shape == (2, 3)
    model.reset_classifier(0)
    assert model(X).shape == (2, model.num_features)
    assert model.get_classifier() is None


@pytest.mark.parametrize("name", ["vitas_858m", "vit_resnas_tiny"])
def test_timm_training_tools(name):
    model = timm.create_model(name, num_classes=7)
    groups = param_groups_layer_decay(model, layer_decay=0.7)
    assert len({g["lr_scale"] for g in groups}) > 5
    assert any("pos_embed" in n for n in model.no_weight_decay())
    plain = model.train()(X)
    model.set_grad_checkpointing()
    torch.testing.assert_close(model(X), plain)


def test_any_architecture_can_be_registered(net):
    arch = net.space.sample(1, seed=3)[0]
    sf.register_model("my_searched_network", arch)
    model = timm.create_model("my_searched_network", num_classes=10).eval()
    model.load_state_dict(net.extract(arch).state_dict())
    torch.testing.assert_close(model(X), net(X, arch))
    assert "my_searched_network" in timm.list_models("my_*")


def test_stochastic_depth_drops_blocks_in_training_only():
    net = sf.supernet("vitas-block", 10, drop_path=0.9)
    arch = net.space.smallest()
    torch.manual_seed(0)
    assert not torch.equal(net(X, arch), net(X, arch))
    net.eval()
    assert torch.equal(net(X, arch), net(X, arch))
    assert net.stage(0).block(0).drop_path == 0
    assert net.stage(0).block(11).drop_path == pytest.approx(0.9)


def test_other_inputs():
    gray = sf.supernet("vitas-block", 10, in_chans=1)
    assert gray.extract(gray.space.smallest())(X[:, :1]).shape == (2, 10)
    small = sf.model("vitas_1g", num_classes=10, img_size=112)
    assert small(X[..., :112, :112]).shape == (2, 10)
    assert small.space.img_size == 112


@pytest.mark.parametrize("name", ["s3_tiny", "s3_small", "s3_base"])
def test_another_input_size_is_what_the_papers_and_retraining_have(name):
    """S3 at 384 pixels has windows of 12 and 24 (section 4.3): one rule for sf.model, timm and retrain."""
    own, published = arch(name), arch(f"{name}_384")
    with torch.device("meta"):
        nets = [sf.model(name, 5, img_size=384), timm.create_model(name, num_classes=5, img_size=384)]
    for net in nets:
        assert net.space.smallest() == published == type(net).rescaled(own, 384)


@torch.no_grad()
def test_a_rescaled_network_computes_as_the_published_one():
    x = torch.randn(1, 3, 384, 384, generator=torch.Generator().manual_seed(0))
    ours, published = (
        sf.model(name, 5, seed=3, **size).eval() for name, size in (("s3_tiny", {"img_size": 384}), ("s3_tiny_384", {}))
    )
    assert torch.equal(ours(x), published(x))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("s3_tiny", 160), ("vit_resnas_tiny", 280), ("autoformer_tiny", 160),
        ("twins_svt_s", 160), ("nasvit_a1", 160), ("resnet50_plain", 160),
    ],
)  # fmt: skip
@torch.no_grad()
def test_other_input_sizes_of_all_families(name, size):
    net = sf.model(name, 5, img_size=size).eval()
    assert net.space.img_size == size
    assert net(X[:1, :, :1, :1].expand(-1, -1, size, size)).shape == (1, 5)


def test_what_forward_says_of_modes_holds():
    """Without a mode: sliced on the CPU, masked elsewhere from four architectures on."""
    said = " ".join((Network.forward.__doc__ or "").split())
    assert "parts run sliced on the CPU" in said
    assert "other devices masked from four architectures on" in said
    for parts in (1, 3, 4, 64):
        assert not masked_is_better(X, parts)
        assert masked_is_better(X.to("meta"), parts) == (parts >= 4)


def test_extracted_networks_can_be_traced():
    """No Python of the supernet is left in the way: an extracted network exports as a plain graph."""
    model = sf.supernet("vitas-block", 10).eval()
    model = model.extract(model.space.smallest())
    program = torch.export.export(model, (X,))
    torch.testing.assert_close(program.module()(X), model(X))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"class_token": False}, "without a class token .* pool=mean"),
        ({"pool_norm": True}, "goes with pool=mean"),
        ({"act": "relu"}, "act must be gelu or gelu_tanh or quick_gelu, not 'relu'"),
        ({"reg_tokens": 0}, "reg_tokens .* must be a whole number from 1"),
        ({"class_token": False, "pool": "mean", "embed_class": False}, "embed_class=false is for a class token"),
        ({"rel_pos": 2, "reg_tokens": 1}, "relative positions go with a class token alone"),
        ({"class_attention": True, "reg_tokens": 1}, "class attention goes with"),
    ],
)
def test_options_of_a_vit_that_contradict_each_other(options, says):
    block = {"heads": 2, "attn": sf.times(4, of="heads"), "mlp": 8}
    stages = (sf.Stage(block, 1),) * (2 if "class_attention" in options else 1)
    with pytest.raises(sf.SpaceError, match=says):
        sf.Space("s", "vit", stages, {"patch_size": 8, "width": 8}, 16, options)
