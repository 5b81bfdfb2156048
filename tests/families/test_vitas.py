"""ViTAS's spaces: what the papers print of them, table 2's variants and identity shifting by one word, and recipes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.supernets import double, pictures

import superformer as sf
from superformer.recipes import resolve, space_of
from superformer.space import StageArch, point
from superformer.spaces import arch as published_arch
from superformer.spaces.vitas import vit_network

TABLE_2 = {
    "none": ("shared", "qkv"),
    "qk": ("shared", "v"),
    "v": ("shared", "qk"),
    "qk,v": ("shared", "none"),  # groups 1 and 2
    "cls_token": ("private", "qkv"),  # group 5
    "cls_token,v": ("private", "qk"),  # group 6
    "cls_token,qk": ("private", "v"),  # group 7, the paper's choice
    "all": ("private", "none"),  # groups 3 and 4
}
"""v1, table 2 (its column MHSA says what is shared): what is private, in a word; class token and what heads share."""


@pytest.mark.parametrize("word", TABLE_2)
def test_table_2_by_one_word(word):
    for name in ("vitas-v1", "vitas-v1-laptop", "vitas-deit"):
        changes = ["space=vitas-v1"] if name == "vitas-deit" else []
        weights = space_of(resolve(name, [*changes, f"private={word}"])).weights
        assert (weights["cls_token"], weights["shared"]) == TABLE_2[word]
    space = space_of(resolve("vitas-v1-laptop", [f"private={word}"]))
    net, x = double(space, "cyclic"), pictures(2, space)
    arch = space.sample(1, seed=3)[0]
    torch.testing.assert_close(net.extract(arch)(x), net(x, arch), rtol=1e-11, atol=1e-12)


def test_without_the_word_it_is_as_the_space_says():
    assert resolve("vitas-v1").private is None
    assert space_of(resolve("vitas-v1")) == sf.space("vitas-v1")
    assert space_of(resolve("vitas-v1", ["private=[cls_token, qk]"])) == sf.space("vitas-v1")


def test_v2_has_private_class_tokens_only():
    """v2, section 5 and appendix A.2: heads divide the same features."""
    for space in (sf.space("vitas-deit-tiny"), sf.space("vitas-deit-small"), space_of(resolve("vitas-deit-laptop"))):
        assert dict(space.weights) == {"cls_token": "private", "shared": "qkv"}
        assert space.with_private("cls_token") == space
    names = dict(sf.supernet(space_of(resolve("vitas-deit-laptop")), 10).named_parameters())
    assert any("attn.qkv.weight" in name for name in names)
    assert not any(".qk." in name for name in names)


@pytest.mark.parametrize(
    ("space", "words", "said"),
    [
        ("vitas-v1", "private=kv", "cannot have 'kv' private; possible: cls_token, qk, v, several with commas"),
        ("vitas-twins-small", "private=none", "just none private: attention; attention,mlp"),
        ("nasvit", "private=cls_token", "no weights that could be private"),
        ("vitas-block", "identity=free", "no identities"),
        ("vitas-v1", "identity=moved", "'shifted' or 'free'"),
    ],
)
def test_words_that_do_not_fit(space, words, said):
    with pytest.raises(sf.SuperformerError, match=said):
        space_of(resolve("vitas-v1", [f"space={space}", words]))


def test_private_weights_of_twins():
    twins = sf.space("vitas-twins-small")
    assert dict(twins.with_private("attention").weights) == {"type": "attention"}
    assert twins.with_private("all") == twins.with_private("attention", "mlp")
    assert dict(twins.with_private("all").weights) == {"type": "block"}


def test_identity_shifting_on_and_off():
    """v2, section 5: one architecture is one path; off, as v1, many paths are one. The architectures are the same."""
    v1, v2 = sf.space("vitas-v1"), sf.space("vitas-deit-tiny")
    on = space_of(resolve("vitas-v1", ["identity=shifted"]))
    assert on.size == on.paths == v1.size < v1.paths
    assert on.stages[0].depths == tuple(range(17))
    off = space_of(resolve("vitas-deit", ["identity=free"]))
    assert off.size == v2.size == v2.paths < off.paths
    assert off.stages[0].free == tuple(range(14))
    for archs, space in ((v1.sample(20), on), (v2.sample(20), off)):
        assert all(arch in space for arch in archs)
    assert off.with_identities("shifted").stages == v2.stages
    assert v2.with_identities("shifted") is v2
    laptop = resolve("vitas-v1-laptop")
    assert space_of(resolve("vitas-deit-laptop", ["identity=free"])).stages == space_of(laptop).stages
    pairs = sf.space("vit-resnas-tiny").with_identities("shifted")
    assert all(not stage.free and len(stage.depths) > 1 for stage in pairs.stages)
    gappy = sf.Space.from_json(v2.to_json().replace(str(list(range(15))), "[2, 4]"))
    with pytest.raises(sf.SuperformerError, match="all depths between 2 and 4"):
        gappy.with_identities("free")


def test_mean_depth_stays_where_identities_become_free():
    off = sf.space("vitas-deit-tiny").with_identities("free")
    depths = [len(arch.stages[0].blocks) for arch in off.sample(2000, seed=0)]
    assert sum(depths) / len(depths) == pytest.approx(7, abs=0.2)


def test_the_wider_block_space():
    """v1, appendix E: table 9's widths, one block up to 16 times; table 13's network is in it, and with its budget of
    5.0 G its block is repeated 12 times (section 3.2)."""
    space, found = sf.space("vitas-block-wide"), published_arch("vitas_block_5g")
    assert space.size == 16 * sf.space("vitas-block").size == 64_000
    assert space.widths("width")[-1] == 768
    assert space.widths("mlp")[-1] == 3 * space.widths("attn")[-1] == 2880
    assert found in space
    block = found.stages[0].blocks[0]
    assert (found.choices["width"], block["heads"], 3 * block.int("attn"), block["mlp"]) == (384, 6, 1152, 1728)
    assert sf.cost(space, [found]).macs[0] == pytest.approx(5.0e9, rel=0.02)
    deeper = replace(found, stages=(StageArch(found.stages[0].blocks[:1] * 13),))
    assert sf.cost(space, [deeper]).macs[0] > 5.0e9


def test_the_space_of_112_pixels():
    """v1, tables 2 and 3: half the side. DeiT-Ti then has 280 M; patches of 32 do not fit."""
    space, full = sf.space("vitas-v1-112"), sf.space("vitas-v1")
    assert space.img_size == 112
    assert space.widths("patch_size") == (14, 16)
    assert space.size == full.size * 2 // 3
    deit = replace(vit_network(192, [(3, 192, 768)] * 12), resolution=112)
    assert sf.cost(point(deit), [deit], num_classes=100).macs[0] == pytest.approx(280e6, rel=0.02)
    ends = sf.cost(space, [space.smallest(), space.largest()], num_classes=100)
    assert ends.macs[0] < 280e6 < 350e6 < ends.macs[1]


def test_resnet_recipes():
    """v2, appendix A.7, with BCNet's recipe; the two budgets of table 12 lie in the space."""
    recipe = resolve("vitas-resnet50")
    assert (recipe.sharing, recipe.sampling.rule, recipe.train.epochs) == ("cyclic", "single", 300)
    assert recipe.retrain.weights == "scratch"
    space = space_of(recipe)
    ends = sf.cost(space, [space.smallest(), space.largest()])
    assert ends.macs[0] < 1.4e9 < 2.4e9 < ends.macs[1]
    assert ends.params[0] < 15.7e6 < 22.1e6 < ends.params[1]
    small = space_of(resolve("vitas-resnet50-laptop"))
    assert small.family == space.family
    assert small.size == 4**16
