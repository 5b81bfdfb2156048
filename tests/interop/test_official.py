"""The released networks, with the fixtures' weights, give the released logits."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.released import FIXTURES, agree, load, pictures

import superformer as sf

CASES = sorted((p.parent.parent.name, p.parent.name) for p in FIXTURES.glob("*/*/meta.json"))
SINGLE = [c for c in CASES if "multi" not in c[1]]
SUPERNETS = [c for c in SINGLE if c[1].startswith("supernet")]


@pytest.mark.parametrize(("family", "name"), SINGLE)
@torch.no_grad()
def test_stand_alone_networks(family, name):
    meta, state, expected = load(family, name)
    net = sf.official.model(family, meta["arch"], state, img_size=meta["img_size"])
    x = pictures(meta["img_size"])
    agree(net(x), expected.get("logits_fixedpos_left", expected["logits"]))
    if "patch_logits_first4" in expected:
        if name.startswith("supernet"):
            agree(net(x), expected["logits_sliced"])
        _, patches = net(x, patches=True)
        agree(patches[:, :4], expected["patch_logits_first4"])
    params = sum(p.numel() for p in net.parameters())
    if family == "nasvit":  # their count takes supernet widths for some tensors and leaves others out
        meta["params"] = meta["params_active_minimal"]
    assert params == (meta["params"] if family != "vitas" or not name.startswith("supernet") else params)
    own = net.space.smallest()
    cost = sf.cost(net.space, [own], **({"patch_head": True} if family == "vit_resnas" else {}))
    assert cost.params[0] == params
    assert cost.macs[0] == {
        "vitas": meta.get("macs_true", cost.macs[0]),
        "vit_resnas": meta["macs"],
        "nasvit": meta["macs"],
    }.get(family, cost.macs[0])


@pytest.mark.parametrize(("family", "name"), SUPERNETS)
@torch.no_grad()
def test_supernets(family, name):
    meta, state, expected = load(family, name)
    net = sf.official.supernet(family, state)
    arch, x = sf.official.arch(family, meta["arch"]), pictures(meta["img_size"])
    logits = expected.get("logits_fixedpos_left", expected["logits"])
    agree(net(x, arch), logits)
    agree(net(x, [arch, arch], mode="masked"), logits)
    agree(net(x, [arch, arch], mode="sliced"), logits)
    if "logits_fixedpos_right" in expected:
        agree(net(x, arch, side="right"), expected["logits_fixedpos_right"])
        agree(net.extract(arch, side="right")(x), expected["logits_fixedpos_right"])
        agree(net(x, [arch, arch], side="right", mode="masked"), expected["logits_fixedpos_right"])


@pytest.mark.parametrize("mode", ["sliced", "masked"])
@torch.no_grad()
def test_two_sub_networks_in_one_pass(mode):
    meta, state, expected = load("vit_resnas", "supernet-tiny-multi-smallest-random1")
    net = sf.official.supernet("vit_resnas", state)
    archs, x = [sf.official.arch("vit_resnas", a) for a in meta["arch"]], pictures(224)
    logits, patches = net(x, archs, mode=mode, patches=True)
    agree(logits, expected["logits"])
    agree(patches[:, :4], expected["patch_logits_first4"])
    agree(net(x[:1].repeat(2, 1, 1, 1), archs, mode=mode), expected["logits_same_image"])


def test_layer_norms_have_the_released_eps():
    for family, name, blocks, final in (
        ("vitas", "ViTAS_1.3G", 1e-6, 1e-5),
        ("autoformer", "AutoFormer-T", 1e-5, 1e-5),
        ("vit_resnas", "ViT-ResNAS-Tiny", 1e-6, 1e-6),
    ):
        meta, state, _ = load(family, name)
        net = sf.official.model(family, meta["arch"], state)
        norms = {n: m.eps for n, m in net.named_modules() if isinstance(m, torch.nn.LayerNorm)}
        assert norms.pop("norm") == final
        assert set(norms.values()) == {blocks}


def test_macs_of_the_authors_search_operators():
    data = json.loads((FIXTURES / "vit_resnas" / "search_costs.json").read_text())
    checked = 0
    for key, entry in data["spaces"].items():
        space = sf.space("vit-resnas-tiny" if key == "tiny" else "vit-resnas-small")
        pairs = [
            p
            for v in entry.values()
            if isinstance(v, list)
            for p in v
            if isinstance(p, list) and len(p) == 2 and isinstance(p[1], int)
        ]
        pairs = [p for p in pairs if isinstance(p[0], list) and p[0] and p[0][0][0] == 4]
        archs = [sf.official.arch("vit_resnas", a) for a, _ in pairs]
        assert sf.cost(space, archs).macs.tolist() == [m for _, m in pairs]
        checked += len(pairs)
    assert checked >= 36


def test_position_tables_are_resized_to_another_input():
    meta, state, _ = load("vit_resnas", "ViT-ResNAS-Tiny")
    big = sf.official.model("vit_resnas", meta["arch"], state, img_size=280)
    small = sf.official.model("vit_resnas", meta["arch"], state)
    assert big.pos_embed.weight.shape[0] == 401
    x = pictures(280)
    with torch.no_grad():
        torch.testing.assert_close(big(x), small(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda s: s.update({"head.weight": torch.zeros(1000, 100)}),
            r"head.weight is \(1000, 100\).*needs \(1000, 192\)",
        ),
        (lambda s: s.pop("norm.weight"), "missing"),
        (lambda s: s.update(extra=torch.zeros(1)), "not expected"),
        (lambda s: s.pop("head.weight"), "no 'head.weight'"),
    ],
)
def test_weights_that_do_not_fit(change, says):
    meta, state, _ = load("autoformer", "AutoFormer-T")
    own = sf.official.model("autoformer", meta["arch"], state)
    released = {
        k.replace("stages.0.", "")
        .replace("mlp.", "")
        .replace("norm1", "attn_layer_norm")
        .replace("norm2", "ffn_layer_norm"): v
        for k, v in own.state_dict().items()
    }
    fixed = {}
    for k, v in released.items():
        k = (
            k.replace("stems.16.proj", "patch_embed_super.proj")
            .replace("stems.16.pos_embed.weight", "pos_embed")
            .replace("stems.16.cls_token.weight", "cls_token")
        )
        for a in "kv":
            k = k.replace(f"relative.{a}_rows.weight", f"rel_pos_embed_{a}.embeddings_table_v").replace(
                f"relative.{a}_cols.weight", f"rel_pos_embed_{a}.embeddings_table_h"
            )
        if k.endswith("qkv.weight"):
            v = v.reshape(3, -1, v.shape[1]).transpose(0, 1).reshape(-1, v.shape[1])
        fixed[k] = v[None] if k in ("pos_embed", "cls_token") else v
    again = sf.official.model("autoformer", meta["arch"], fixed)  # a stand-alone state dictionary in the authors' names
    x = pictures(224)
    with torch.no_grad():
        torch.testing.assert_close(again(x), own(x))
    change(fixed)
    with pytest.raises(sf.SuperformerError, match=says):
        sf.official.model("autoformer", meta["arch"], fixed)


def test_unknown_families_and_forms():
    with pytest.raises(sf.SuperformerError, match="did you mean 'vitas'"):
        sf.official.arch("vita", {})
    with pytest.raises(sf.SuperformerError, match="not an architecture in the form of vitas"):
        sf.official.arch("vitas", {"backbone": {}})
    with pytest.raises(sf.SuperformerError, match="type 7"):
        sf.official.arch("vit_resnas", [[7, 3]])
    _, state, _ = load("vit_resnas", "ViT-Res-Tiny")
    with pytest.raises(sf.SuperformerError, match="no ViT-ResNAS space"):
        sf.official.supernet("vit_resnas", state)
