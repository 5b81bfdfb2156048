"""Every declaration: its arms are recipes that resolve, differ in what they say, and are as long."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from superformer.claims.arms import Arm
from superformer.claims.declaration import LIMITED, Claim, declared, left_out, named
from superformer.claims.drawing import drawing
from superformer.claims.page import write_page
from superformer.cost import cost
from superformer.errors import SuperformerError
from superformer.recipes import Recipe, read_changes, resolve, space_of
from superformer.recipes.searching import method_with_changes, split_options
from superformer.settings import read_key_value


def recipe_of(claim: Claim, arm: str) -> Recipe:
    name, words = claim.recipe_of(arm)
    return resolve(name, words)


@pytest.mark.parametrize("name", list(declared()))
def test_every_claim_can_be_run(name: str) -> None:
    """Its arms are recipes with spaces, all different in what they ask for, and cost the same pictures."""
    claim = declared()[name]
    recipes = [recipe_of(claim, arm) for arm in claim.arms]
    for recipe in recipes:
        space_of(recipe)
    told = [(r.model_dump_json(), str(claim.asked(arm))) for r, arm in zip(recipes, claim.arms, strict=True)]
    if claim.measure != "searched":
        assert len(set(told)) == len(told)
    assert len({(r.train.epochs, r.train.batch_size) for r in recipes}) == 1
    assert claim.title[0].isupper()
    assert not claim.title.endswith(".")
    assert all(Arm(claim, arm, 0, "digits", Path()).trainings() for arm in claim.arms)


@pytest.mark.parametrize("name", [n for n, c in declared().items() if c.measure in LIMITED])
def test_every_search_can_be_asked_for(name: str) -> None:
    """The words of its searches, and those of the training of what is found, are settings that there are."""
    claim = declared()[name]
    for arm, words in claim.arms.items():
        recipe = recipe_of(claim, arm)
        changes = dict(map(read_key_value, [*claim.search, *(words if claim.measure == "searched" else ())]))
        options, rest = split_options(changes)
        method_with_changes(recipe.search, rest.pop("method", None), rest)
        assert options.sought({claim.limit: None})
        read_changes(recipe, ["weights=scratch", *claim.retrain], "here")


def test_as_many_evaluations() -> None:
    """400 each, in the comparison of methods."""
    claim = declared()["search-methods"]
    recipe = resolve(claim.recipe)
    for arm, words in claim.arms.items():
        changes = dict(map(read_key_value, words))
        own = method_with_changes(recipe.search, changes.pop("method"), changes).model_dump()
        evaluations = {
            "evolution": lambda m: m["first"] + (m["rounds"] - 1) * (m["mutants"] + m["crossovers"]),
            "nsga2": lambda m: m["population"] * m["generations"],
            "predictor": lambda m: m["first"] + m["front"],
            "random": lambda m: m["evaluations"],
        }
        assert evaluations[own["method"]](own) == 400, arm


def test_what_is_shared_is_what_the_arms_say() -> None:
    """ViTAS v1, table 2: groups 2 and 3 differ in the class token alone; groups 4 to 7 in q, k and v."""

    def shared(name: str, arm: str) -> tuple[str, str]:
        weights = space_of(recipe_of(declared()[name], arm)).weights
        return weights["cls_token"], weights["shared"]

    assert shared("private-token", "private") == ("private", "none")
    assert shared("private-token", "shared") == ("shared", "none")
    assert shared("private-token-found", "private") == ("private", "qkv")
    assert shared("private-token-found", "shared") == ("shared", "qkv")
    groups = {"v shared": "v", "all shared": "qkv", "nothing shared": "none", "q and k shared": "qk"}
    assert {arm: shared("private-qk", arm) for arm in groups} == {a: ("private", s) for a, s in groups.items()}


def test_one_thing_changes() -> None:
    """Supernets that several claims share are of the same recipe."""

    def same(*arms: tuple[str, str]) -> bool:
        return len({recipe_of(declared()[name], arm).model_dump_json() for name, arm in arms}) == 1

    assert same(("projection", "no projection"), ("switchable-scaling", "switchable"), ("alpha-divergence", "alpha"))
    assert same(("conflict-by-augmentation", "weak"), ("weak-smallest", "weak"), ("weak-largest", "weak"))
    assert same(("conflict-by-augmentation", "strong"), ("supernet-gap", "alone"), ("supernet-gap", "supernet"))
    assert same(
        ("cyclic-ranks", "cyclic"), ("cyclic-found", "cyclic"), ("cyclic-ranges", "cyclic"), ("chosen", "random")
    )
    assert same(
        ("space-evolution", "first space"), ("space-evolution-best", "evolved twice"), ("space-by-lot", "by slopes")
    )
    assert same(("weak-augmentation", "strong"), ("weak-found", "strong"))


def test_channels_are_sorted_when_they_were_trained() -> None:
    """More than once after step 0, at the starts of epochs."""
    claim = declared()["channel-sorting"]
    share = recipe_of(claim, "sorted").train.channel_sort
    assert claim.epochs is not None
    assert sum(epoch < share * claim.epochs for epoch in range(1, int(claim.epochs))) >= 2


def test_pictures_are_mixed_on_the_papers_grid() -> None:
    import superformer as sf

    recipe = recipe_of(declared()["token-labelling"], "switched")
    net = sf.supernet(space_of(recipe), num_classes=10)
    assert net.patch_grid(recipe.img_size) == 4


def test_a_limit_leaves_something_to_find() -> None:
    """From a quarter to two thirds of random networks lie within the limit of a search."""
    for name, claim in declared().items():
        if claim.measure in LIMITED and name != "identity-probability":
            space = space_of(recipe_of(claim, claim.order[0]))
            low, high = cost(space, [space.smallest(), space.largest()], 10).macs
            macs = cost(space, space.sample_genes(500, 0), 10).macs
            assert 0.2 < (macs <= low + claim.place * (high - low)).mean() < 0.7, name


def test_what_is_refused() -> None:
    with pytest.raises(SuperformerError, match=r"no claim 'cyclic-los'.*cyclic-loss"):
        named(["cyclic-los"])
    tree = declared()["warm-up"].model_dump()
    with pytest.raises(SuperformerError, match="order must name two or more of the arms"):
        Claim.read(tree | {"order": ["warm-up", "nothing"]}, "here")
    with pytest.raises(SuperformerError, match="pairs must be of the arms"):
        Claim.read(tree | {"pairs": [["warm-up", "nothing"]]}, "here")


def test_what_is_left_out_is_told_with_its_reason(tmp_path: Path) -> None:
    page = write_page([], tmp_path).read_text()
    assert left_out()
    for own in left_out():
        assert own.title in page
        assert own.why in page


def test_a_drawing_without_runs() -> None:
    claim = {"claim": "x", **declared()["warm-up"].model_dump()}
    ElementTree.fromstring(drawing(claim, [], []))
