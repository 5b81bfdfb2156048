"""What tokens attend to: the weights that networks compute, where queries and keys lie, and how far they are apart."""

from __future__ import annotations

import math
from itertools import product
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.strategies import SMALL, sharings, spaces_with_archs
from helpers.supernets import double, pictures
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

import superformer as sf
from superformer.analysis import attention
from superformer.analysis.attention import (
    Attended,
    attended,
    attention_distances,
    attention_maps,
    mean_distance,
    top_distance,
)
from superformer.draw import attention as drawing
from superformer.elastic.positions import Places

ATTENDING = st.one_of(*(SMALL[name] for name in ("vit", "vit_res", "swin", "twins", "nasvit") if name in SMALL))


def grid_of(rows: int, cols: int) -> Places:
    where = torch.tensor([[*at, 1.0] for at in product(range(rows), range(cols))], dtype=torch.float64)[None]
    return Places.of((rows, cols), where, where)


# --- the weights, and whose they are ---


class Outputs(TorchFunctionMode):
    """What torch's attention was given, and what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            self.seen.append((args, kwargs, out))
        return out


@settings(max_examples=25)
@given(spaces_with_archs(1, ATTENDING), sharings)
def test_the_weights_are_those_that_the_network_uses(case, sharing):
    (space, (arch,)), (rule, side) = case, sharing
    net, x = double(space, rule), pictures(2, space)
    want = net(x, arch, side=side)
    with torch.no_grad(), Outputs() as outputs:
        torch.testing.assert_close(net(x, arch, side=side), want)
    for args, words, out in outputs.seen:
        torch.testing.assert_close(attention._weights(*args, **words) @ args[2], out)
    found = list(attended(net, x, arch, side))
    blocks = [
        f"{i + 1}-{k + 1}"
        for i, s in enumerate(arch.stages)
        for k in range(len(s.blocks))
        if space.family != "nasvit" or space.options["stages"][i] == "t"
    ]
    assert [one.name for one in found] == blocks
    for one in found:
        torch.testing.assert_close(one.weights.sum(-1), torch.ones_like(one.weights[..., 0]))
        assert one.weights.shape[:2] == (2, len(one.places.queries))
        assert one.weights.shape[3:] == (one.places.queries.shape[1], one.places.keys.shape[1])


def calls(net, x, arch):
    """The blocks of a pass with what they are given."""
    found = []
    hooks = [cell.register_forward_pre_hook(lambda block, args: found.append(args)) for cell in net.cells()]
    with torch.no_grad():
        net(x, arch)
    for hook in hooks:
        hook.remove()
    return found


def looked(tokens, visit, at):
    with torch.no_grad(), attention._AttentionWatch() as watch:
        visit.block(tokens, visit, at)
    return torch.cat(watch.seen) if watch.seen else None


def by_window(weights, where):
    """Of one picture: (windows, heads, queries, keys)."""
    return weights.view(len(where.queries), -1, *weights.shape[2:])


def one(family, size, block, choices=None, top=None, depth=1, **options):
    """A space of one network of a stage."""
    return sf.Space("one", family, (sf.Stage(block, depth=depth, choices=choices or {}),), top or {}, size, options)


HEADS = {"heads": 2, "attn": 8, "mlp": 8}
HYBRID = {"stem": 8, "head": 8, "resolution": 32}
WHERE = {
    "class token": (one("vit", 32, HEADS, None, {"patch_size": 8, "width": 8}), (32, 24)),
    "registers": (one("vit", 32, HEADS, None, {"patch_size": 8, "width": 8}, reg_tokens=2, embed_class=0), (32, 24)),
    "registers alone": (
        one("vit", 16, HEADS, None, {"patch_size": 8, "width": 8}, reg_tokens=2, class_token=0, pool="mean"),
        (16, 16),
    ),
    "relative positions": (one("vit", 24, HEADS, None, {"patch_size": 8, "width": 8}, rel_pos=2), (24, 32)),
    "vit_res": (one("vit_res", 56, HEADS, {"width": 8}, stem=4), (56, 56)),
    "windows that move": (one("swin", 32, {"window": 4, **HEADS}, {"width": 8}, depth=2), (32, 32)),
    "windows that move, padding": (one("swin", 24, {"window": 4, **HEADS}, {"width": 8}, depth=2), (24, 20)),
    "small windows": (one("swin", 20, {"window": 2, **HEADS}, {"width": 8}, depth=2), (20, 28)),
    "one window": (one("swin", 16, {"window": 4, **HEADS}, {"width": 8}, depth=2), (16, 16)),
    "local": (one("twins", 32, {"type": "local", **HEADS}, {"width": 8}, ws=3, sr=1), (32, 24)),
    "summaries": (one("twins", 32, {"type": "global", **HEADS}, {"width": 8}, sr=2), (32, 24)),
    "summaries, a rest": (one("twins", 32, {"type": "global", **HEADS}, {"width": 8}, sr=3), (32, 28)),
    "hybrid": (
        one(
            "nasvit",
            32,
            {},
            {"width": 8, "mlp": 8, "windows": 4},
            HYBRID,
            2,
            stages="t",
            strides="2",
            squeeze_excite="0",
            head_dim=4,
        ),
        (32, 32),
    ),
}


@pytest.mark.parametrize("name", WHERE)
def test_queries_and_keys_are_where_the_places_say(name):
    """Another token at a place changes the logits of the keys there, and of its own query, and of no other: so the
    weights of the other keys keep their proportions. The places of all tokens are looked at, and each is found."""
    space, size = WHERE[name]
    net, generator = double(space), torch.Generator().manual_seed(0)
    for tokens, visit, at in calls(
        net, torch.randn(1, 3, *size, generator=generator, dtype=torch.float64), space.smallest()
    ):
        before, where = looked(tokens, visit, at), visit.block.places(net, 0, visit, at)
        rows, cols = where.grid
        assert int(where.real.sum()) == rows * cols
        for r, c in product(range(rows), range(cols)):
            other = tokens.clone()
            place = other[:, r, c] if other.dim() == 4 else other[:, net.prefix_tokens(0) + r * cols + c]
            place += torch.randn(place.shape, generator=generator, dtype=torch.float64)
            change = by_window(looked(other, visit, at) / before, where).log()
            here = ((where.keys - torch.tensor([r, c])).abs() <= (where.side - 1) / 2).all(-1)
            asks = where.real & (where.queries != torch.tensor([r, c])).any(-1)
            for w, q in asks.nonzero().tolist():
                still = change[w, :, q, where.pairs[w, q] & ~here[w]]
                moved = change[w, :, q, where.pairs[w, q] & here[w]]
                assert (still.amax(1) - still.amin(1)).max() < 1e-7
                assert moved.shape[1] < 2
                assert not moved.numel() or (moved[:, 0] - still[:, 0]).abs().max() > 1e-7
            filled = r < rows // where.side * where.side and c < cols // where.side * where.side
            alone = where.side == 1 and int(where.pairs[where.real & ~asks].sum()) == 1
            assert bool((where.pairs & here[:, None])[asks].any()) == (
                filled and not alone
            )  # others have it among their keys


def test_windows_that_move_do_not_join_opposite_edges():
    space = WHERE["windows that move"][0]
    still, moved = attended(sf.supernet(space, 5), torch.randn(1, 3, 32, 32))
    for own, least in ((still, 16), (moved, 4)):  # the corners of a moved map are alone in their windows
        reached = own.places.distances[own.places.pairs]
        assert float(reached.max()) == pytest.approx(math.hypot(3, 3))
        assert int(own.places.pairs.sum(-1).min()) == least
        assert own.places.pairs.sum(-1).max() == 16


# --- distances ---


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 30))
def test_uniform_attention_is_as_far_as_the_mean_of_all_keys(rows, cols, k):
    where, n = grid_of(rows, cols), rows * cols
    uniform = torch.full((2, 1, 3, n, n), 1 / n)
    points = list(product(range(rows), range(cols)))
    want = [sum(math.dist(a, b) for b in points) / n for a in points]
    for found in (top_distance(uniform, where, k), mean_distance(uniform, where)):
        assert found.shape == (2, 3, n)
        np.testing.assert_allclose(found[1, 2], want, atol=1e-6)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 12))
def test_attention_to_oneself_is_at_no_distance(rows, cols, k):
    where, n = grid_of(rows, cols), rows * cols
    own = torch.eye(n).expand(1, 1, 2, n, n)
    assert float(top_distance(own, where, k).abs().max()) < 1e-6
    assert float(mean_distance(own, where).abs().max()) < 1e-6


@given(st.integers(2, 4), st.integers(2, 4), st.integers(1, 20), st.integers(0, 2**32))
def test_top_keys_one_by_one(rows, cols, k, seed):
    """As a loop over queries does it; and in whatever order the keys come."""
    rng, where, n = np.random.default_rng(seed), grid_of(rows, cols), rows * cols
    weights = torch.from_numpy(rng.dirichlet(np.ones(n), (1, 1, 2, n)))
    found = top_distance(weights, where, k)
    points = np.array(list(product(range(rows), range(cols))))
    for head, q in product(range(2), range(n)):
        best = np.argsort(-weights[0, 0, head, q].numpy())[:k]
        want = np.linalg.norm(points[best] - points[q], axis=1).mean()
        assert float(found[0, head, q]) == pytest.approx(want, abs=1e-6)
    order = torch.from_numpy(rng.permutation(n))
    turned = Places(where.grid, where.queries, where.keys[:, order], where.real, where.pairs[:, :, order])
    torch.testing.assert_close(
        top_distance(weights.round(decimals=1)[..., order], turned, k),
        top_distance(weights.round(decimals=1), where, k),
        equal_nan=True,
    )


def test_summaries_are_in_the_middle_of_what_they_summarise():
    block = {"type": "global", "heads": 1, "attn": 4, "mlp": 4}
    space = sf.Space("few", "twins", (sf.Stage(block, depth=1, choices={"width": 4}),), img_size=16, options={"sr": 2})
    (one,) = attended(sf.supernet(space, 5), torch.randn(2, 3, 16, 16), space.smallest())
    assert one.places.keys[0].tolist() == [[0.5, 0.5], [0.5, 2.5], [2.5, 0.5], [2.5, 2.5]]
    shown = one.map(1, 2)
    torch.testing.assert_close(shown.sum((2, 3)), torch.ones(2, 1))
    torch.testing.assert_close(shown[:, :, 0, 2:], one.weights[:, 0, :, 6, 1, None].expand(2, 1, 2) / 4)


@pytest.mark.parametrize("row", [0, 2])
def test_a_map_is_the_row_of_its_query(row):
    space = sf.Space(
        "plain", "vit", (sf.Stage({"heads": 2, "attn": 8, "mlp": 8}, depth=1),), {"patch_size": 8, "width": 8}, 32
    )
    one = next(attended(sf.supernet(space, 5), torch.randn(1, 3, 32, 32)))
    shown = one.map(row, 3)
    assert shown.shape == (1, 2, 4, 4)
    torch.testing.assert_close(
        shown.flatten(2)[0], one.weights[0, 0, :, 1 + row * 4 + 3, 1:]
    )  # the class token is first
    with pytest.raises(sf.SuperformerError, match="4 x 4"):
        one.map(4, 0)


def test_reach_of_a_network():
    """Rows of blocks, in pixels; batches are put together; the class token asks for nothing."""
    block = {"heads": 2, "attn": 8, "mlp": 8}
    options = {"class_attention": True, "layer_scale": 0.1}
    space = sf.Space(
        "late", "vit", (sf.Stage(block, depth=2), sf.Stage(block, depth=1)), {"patch_size": 8, "width": 8}, 32, options
    )
    net = sf.supernet(space, 5).train()
    x = torch.randn(6, 3, 32, 32)
    rows = attention_distances(net, [x])
    assert [row["block"] for row in rows] == ["1-1", "1-2"]  # the third is class attention
    assert net.training
    apart = attention_distances(net, x.split(2))
    for row, other in zip(rows, apart, strict=True):
        assert row["patch"] == 8
        assert row["heads"] == len(row["by_head"]["top5"]) == 2
        assert row["top5"] == pytest.approx(other["top5"])
        assert row["top5"] == pytest.approx(np.mean(row["by_head"]["top5"]))
        low, middle, high = row["quartiles"]["top10"]
        assert 0 < low <= middle <= high <= 8 * math.hypot(3, 3)
    one = next(attended(net, x))
    assert isinstance(one, Attended)
    assert rows[0]["top10"] == pytest.approx(8 * float(top_distance(one.weights, one.places, 10).mean()))
    assert (
        list(
            attended(
                sf.supernet(sf.space("vitas-resnet50"), 5),
                torch.randn(1, 3, 64, 64),
                sf.space("vitas-resnet50").smallest(),
            )
        )
        == []
    )


# --- maps of a picture ---


@settings(max_examples=25)
@given(spaces_with_archs(1, ATTENDING), st.floats(0, 0.99), st.floats(0, 0.99), st.booleans())
def test_maps_of_every_family(case, down, right, heads):
    """S3, figures 4 and 8: shares of tokens within the window, the strongest keys first, and a picture of them."""
    space, (arch,) = case
    net, x = double(space), pictures(1, space)
    every = [one for one in attended(net, x, arch) if one.places.real.any()]
    if not every:
        return
    rows = attention_maps(net, x, arch, (down, right), [one.name for one in every], heads)
    assert len(rows) == sum(one.weights.shape[2] if heads else 1 for one in every)
    named = {one.name: one for one in every}
    for row in rows:
        one, (a, b) = named[row["block"]], row["query"]
        assert (a, b) == (int(down * row["grid"][0]), int(right * row["grid"][1]))
        own = one.map(a, b)[0]
        want = own.mean(0) if row["head"] is None else own[row["head"]]
        assert np.asarray(row["map"]) == pytest.approx(want.numpy(), abs=1e-5)
        assert not np.asarray(row["map"])[np.asarray(row["seen"]) == 0].any()
        shares = [share for *_, share in row["top"]]
        assert shares == sorted(shares, reverse=True)
        assert 1 <= len(shares) <= 5
        top, left, side, share = row["top"][0]
        assert share == pytest.approx(np.asarray(row["map"]).max() * one.places.side**2, abs=1e-4)
        assert np.asarray(row["map"])[top : top + side, left : left + side].sum() == pytest.approx(share, abs=1e-4)
    drawn = drawing.draw({"picture": drawing.png(np.zeros((8, 8, 3))), "about": "nothing", "maps": rows})
    texts = [e.text for e in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("1") == len(rows)  # every panel numbers its keys


def test_maps_of_the_class_token():
    """ViTAS v1, figure 4."""
    space, size = WHERE["class token"]
    net, x = sf.supernet(space, 5), torch.randn(1, 3, *size)
    (row,) = attention_maps(net, x, query="class")
    one = next(attended(net, x))
    assert row["query"] is None
    assert np.asarray(row["map"]) == pytest.approx(one.weights[0, 0, :, 0, 1:].mean(0).view(4, 3).numpy(), abs=1e-5)
    torch.testing.assert_close(one.class_map()[0].flatten(1), one.weights[0, 0, :, 0, 1:])
    space, size = WHERE["registers"]
    assert next(attended(sf.supernet(space, 5), torch.randn(1, 3, *size))).class_map().shape[-2:] == (4, 3)
    swin, size = WHERE["one window"]
    alone, _ = WHERE["registers alone"]
    with pytest.raises(sf.SuperformerError, match="no block of this network has a class token"):
        attention_maps(sf.supernet(alone, 5), torch.randn(1, 3, 16, 16), query="class")
    with pytest.raises(sf.SuperformerError, match="no block of this network has a class token: give a place"):
        attention_maps(sf.supernet(swin, 5), torch.randn(1, 3, *size), query="class")
    with pytest.raises(sf.SuperformerError, match="did you mean '1-1'"):
        attention_maps(net, x, blocks=["1-11"])
