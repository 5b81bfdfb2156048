from __future__ import annotations

import numpy as np
import pytest

import superformer as sf
from superformer.space import Space, Stage, divided, ratio, times

BLOCK = {"heads": (1, 2), "attn": 4, "mlp": 8}


def vit(stage: Stage, **more: object) -> Space:
    return Space("small", "vit", (stage,), {"patch_size": 8, "width": 8, **more}, img_size=16)


def test_block_level_space_has_4000_architectures():
    assert sf.space("vitas-block").size == 4000


def test_v1_counts_paths_as_the_paper_and_networks_exactly():
    space = sf.space("vitas-v1")
    assert space.paths == 3 * 10 * 401**16
    assert f"{space.paths:.1e}" == "1.3e+43"
    assert space.size == 30 * sum(400**d for d in range(17))


def test_identity_shifting_removes_the_many_to_one():
    """Three operations, one of them the identity, in twelve layers: 3^12 paths are 2^13 - 1 networks (ViTAS v2, section
    5)."""
    shifted, free = vit(Stage(BLOCK, depth=range(13))), vit(Stage(BLOCK, depth=12, skippable=range(12)))
    assert shifted.size == shifted.paths == 2**13 - 1
    assert (free.size, free.paths) == (2**13 - 1, 3**12)


def test_size_is_the_number_of_different_networks():
    for stage in (
        Stage(BLOCK, depth=(1, 3)),
        Stage(BLOCK, depth=3, skippable=(1,)),
        Stage(BLOCK, depth=(0, 2), tied=True),
    ):
        space = vit(stage, width=(6, 8))
        grid = np.indices(space.bounds).reshape(len(space.bounds), -1).T
        assert len(set(space.decode(grid))) == space.size


def test_resnas_sizes():
    tiny = sf.space("vit-resnas-tiny")
    assert tiny.size == (5 * sum(28**d for d in range(3, 7))) ** 3
    assert tiny.paths == (5 * 28**3 * 29**3) ** 3


def test_smallest_and_largest():
    space = sf.space("vit-resnas-tiny")
    cost = sf.cost(space, [space.smallest(), space.largest(), *space.sample(500)])
    assert cost.macs[0] == cost.macs.min() == 752_489_984
    assert cost.macs[1] == cost.macs.max() == 3_497_553_920
    assert space.img_size == space.smallest().resolution == 224


def test_free_positions_have_a_canonical_form():
    space = vit(Stage(BLOCK, depth=4, skippable=(1, 3)))
    first, last = (space.decode(np.array([g]))[0] for g in ([1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]))
    assert first == last
    assert (first.stages[0].at, last.stages[0].at) == (None, (0, 2, 3))
    assert space.encode([last.canonical()]).tolist() == space.encode([first]).tolist()


def test_narrow_and_point():
    space = sf.space("autoformer-tiny")
    small = space.narrow(depth=(12, 13), heads=3, width=[192, 240], mlp=4)
    assert small.size == 2 * 2
    assert all(a in space for a in small.sample(10))
    assert space.narrow(depth=12).stages[0].positions == 12
    arch = space.sample(1)[0]
    point = space.point(arch)
    assert point.size == 1
    assert point.smallest() == point.largest() == arch
    assert sf.space("vit-resnas-tiny").narrow(width={1: 512}).stages[1].choices["width"].values == (512,)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sf.space("vit-resnas-tinny"), "did you mean 'vit-resnas-tiny'"),
        (lambda: sf.space("vitas-v1").narrow(widht=8), "did you mean 'width'"),
        (lambda: sf.space("vitas-v1").narrow(heads=7), "possible are 3, 6, 12, 16"),
        (lambda: sf.space("vitas-v1").narrow(depth=3), "cannot be narrowed"),
        (lambda: sf.space("vitas-v1").narrow(macs=(1, 2)), r"sample\(\)"),
        (lambda: vit(Stage(BLOCK, depth=())), "one or more numbers"),
        (lambda: vit(Stage(BLOCK, depth=(1, 2), skippable=(0,))), "either"),
        (lambda: vit(Stage(BLOCK, depth=2, skippable=(5,))), "within 0..1"),
        (lambda: vit(Stage({**BLOCK, "mlp": ()}, depth=1)), "no value"),
        (lambda: vit(Stage({**BLOCK, "mlp": (8, 8)}, depth=1)), "twice"),
        (lambda: vit(Stage({**BLOCK, "heads": 3}, depth=1)), "does not divide into 3 heads"),
        (lambda: vit(Stage({**BLOCK, "mlp": ratio(1, 1.01, of="width")}, depth=1)), "same width"),
        (lambda: vit(Stage({**BLOCK, "mlp": ratio(2, of="wide")}, depth=1)), "'width'"),
        (lambda: vit(Stage({"heads": 1, "attn": 4}, depth=1)), "lack mlp"),
        (lambda: vit(Stage({**BLOCK, "heads": divided(3, of="attn")}, depth=1)), "attn=4 .* does not divide by 3"),
        (lambda: vit(Stage({**BLOCK, "heads": divided(0, of="attn")}, depth=1)), "heads a whole number from 1 to"),
        (lambda: vit(Stage({**BLOCK, "heads": divided(2, of="atn")}, depth=1)), "'attn'"),
        (lambda: vit(Stage(BLOCK, depth=1), patch_size=5), "does not divide into patches of 5"),
        (lambda: Space("s", "vitt", (Stage(BLOCK, depth=1),)), "did you mean 'vit'"),
        (
            lambda: Space("s", "vit", (Stage(BLOCK, depth=1),), {"patch_size": 8, "width": 8}, 16, {"pol": "mean"}),
            "did you mean 'pool'",
        ),
        (
            lambda: Space(
                "s", "vit", (Stage(BLOCK, depth=1),), {"patch_size": 8, "width": 8}, 16, weights={"shared": "k"}
            ),
            "possible: qkv",
        ),
        (
            lambda: Space("s", "vit_res", (Stage(BLOCK, 1, {"width": 8}), Stage(BLOCK, 1, {"width": 6})), img_size=56),
            "cannot narrow",
        ),
        (lambda: Space.from_json("{}"), "lacks"),
        (lambda: Space.from_json("nonsense"), "JSON"),
        (lambda: Space.from_json('{"name": "a", "family": "vit", "stages": [{"blocks": 1}]}'), "did you mean 'block'"),
    ],
)
def test_mistakes_are_named(make, says):
    with pytest.raises(sf.SuperformerError, match=says):
        make()


def test_archs_outside_the_space_are_refused_with_what_is_possible():
    tiny, small = sf.space("autoformer-tiny"), sf.space("autoformer-small")
    with pytest.raises(sf.ArchError, match="width=320 is not in the space; possible: 192, 216, 240"):
        tiny.encode([small.smallest()])
    with pytest.raises(sf.ArchError, match="holds vit networks"):
        tiny.encode([sf.space("vit-resnas-tiny").smallest()])
    with pytest.raises(sf.ArchError, match="options"):
        sf.space("vitas-block").encode([tiny.smallest()])
    from superformer.spaces import arch

    with pytest.raises(sf.ArchError, match=r"block 2: mlp=576 is not in the space; possible: 672, 768"):
        tiny.encode([arch("autoformer_tiny")])
    assert arch("autoformer_small") in small
    with pytest.raises(sf.ArchError, match="an Arch is needed"):
        tiny.encode(["nonsense"])


def test_genes_are_checked():
    space = sf.space("vitas-block")
    with pytest.raises(sf.ArchError, match="rows of 4 numbers"):
        space.decode(np.zeros((1, 3), dtype=int))
    with pytest.raises(sf.ArchError, match="from 0 to 9"):
        space.decode(np.array([[10, 0, 0, 0]]))
    with pytest.raises(sf.ArchError, match="whole numbers"):
        space.decode(np.zeros((1, 4)))


def test_values_that_are_multiples_are_resolved():
    space = vit(
        Stage({"heads": (1, 2), "attn": times(4, of="heads"), "mlp": ratio(2, 2.5, of="width")}, depth=1), width=(6, 8)
    )
    archs = set(space.sample(200))
    assert {b["mlp"] for a in archs for b in a.stages[0].blocks} == {12, 15, 16, 20}
    assert all(b["attn"] == 4 * b["heads"] for a in archs for b in a.stages[0].blocks)
    assert space.widths("mlp") == (12, 15, 16, 20)


def test_heads_that_follow_from_the_attention_width():
    """The same architectures as with a width that follows from the heads: one is chosen, the other is not."""
    by_width = vit(Stage({"attn": (4, 8, 12), "heads": divided(4, of="attn"), "mlp": 8}, depth=(1, 2)))
    by_heads = vit(Stage({"heads": (1, 2, 3), "attn": times(4, of="heads"), "mlp": 8}, depth=(1, 2)))
    assert Space.from_json(by_width.to_json()) == by_width != by_heads
    assert by_width.size == by_heads.size == 3 + 9
    assert by_width.sample(50, seed=3) == by_heads.sample(50, seed=3)
    assert by_width.gene_names == tuple(n.replace("heads", "attn") for n in by_heads.gene_names)
    for space in (by_width, by_heads):
        assert (space.widths("heads"), space.widths("attn"), space.unit("attn", 0, 0)) == ((1, 2, 3), (4, 8, 12), 4)
        assert space.decode(space.encode(by_width.sample(20))) == by_width.sample(20)
    assert by_width.narrow(attn=[8]).widths("heads") == (2,)
