"""Recipes: complete, exact, and open to change."""

from __future__ import annotations

import pytest
import yaml

import superformer as sf
from superformer.data.augment import TimmTransform
from superformer.recipes import RecipeError, differences, dump, from_tree, names, parse_yaml, resolve, space_of

PAPERS = ["alphanet", "nasvit", "s3", "vit-resnas", "vitas-deit", "vitas-twins", "vitas-v1"]


def test_every_paper_has_both_scales():
    assert names() == sorted(PAPERS + [f"{name}-laptop" for name in PAPERS])


@pytest.mark.parametrize("name", names())
def test_a_recipe_is_well_formed_and_survives_its_file(name):
    recipe = resolve(name)
    assert recipe.name == name
    assert from_tree(parse_yaml(dump(recipe), name), name) == recipe
    space = space_of(recipe)
    assert space.size > 1000
    assert sf.cost(space, [space.smallest()], num_classes=10).macs[0] > 0


def test_what_the_papers_say():
    """Tables 4 (ViTAS v1) and 5 (v2); S3, section 4.1; ViT-ResNAS, section 3.1; NASViT, table 5 and section 2."""
    for name, epochs, networks in (("s3", 300, 2), ("vit-resnas", 120, 16), ("nasvit", 360, 2)):
        recipe = resolve(name)
        assert (recipe.train.epochs, recipe.train.batch_size, recipe.sampling.networks) == (epochs, 1024, networks)
    assert resolve("vitas-v1").mix.cutmix == 1.0
    assert resolve("vitas-v1").data.erase == 0.25
    assert resolve("vitas-deit").sharing == resolve("vitas-twins").sharing == "cyclic"
    assert resolve("nasvit").optimizer.weight_decay == 0
    assert resolve("vit-resnas").data.search == 25
    assert resolve("s3").train.drop_path == 0.2


def test_alphanet():
    """NASViT, table 5 and section 4.3: AlphaNet's regularisation, no teacher; "+ Ours" by the words it names."""
    recipe = resolve("alphanet")
    regular = (recipe.optimizer.weight_decay, recipe.train.drop_path, recipe.train.dropout)
    assert (recipe.optimizer.name, recipe.train.epochs, *regular) == ("sgd", 360, 1e-5, 0.2, 0.2)
    assert (recipe.loss.distill, recipe.loss.teachers, recipe.data.calibration) == ("alpha", (), 64)
    assert "AutoAugment" in str(TimmTransform(recipe.data, 32)._transform)
    words = [word.rstrip(";") for word in recipe.about.split('"+ Ours": ')[1].split() if "=" in word]
    ours = resolve("alphanet", words)
    assert (ours.optimizer.weight_decay, ours.train.drop_path, ours.train.dropout) == (0, 0, 0)
    assert (ours.gradients.rule, ours.data.randaugment) == ("project", resolve("nasvit").data.randaugment)
    assert {space_of(resolve(f"alphanet{scale}")).options["stages"].strip("c") for scale in ("", "-laptop")} == {""}


def test_options_of_a_published_space_are_one_word():
    """NASViT's scales (table 7) on the paper's own space, and on one that is written in the recipe."""
    for name in ("nasvit", "nasvit-laptop"):
        changed, plain = (space_of(resolve(name, words)) for words in (["space.options.scale=none"], []))
        assert dict(changed.options) == {**plain.options, "scale": "none"}
        assert (changed.name, changed.stages) == (plain.name, plain.stages)
    with pytest.raises(sf.SuperformerError, match="no option 'scales': did you mean 'scale'"):
        space_of(resolve("nasvit", ["space.options.scales=none"]))
    with pytest.raises(sf.SuperformerError, match="did you mean 'nasvit'"):
        resolve("nasvit", ["space=nasvitt", "space.options.scale=none"])


def test_any_part_is_one_word():
    recipe = resolve(
        "s3-laptop",
        ["sharing=cyclic", "gradients.rule=project", "sampling={rule: multi, networks: 4}", "data.mean=[0,0,0]"],
    )
    assert (recipe.sharing, recipe.gradients.rule, recipe.sampling.rule, recipe.data.mean) == (
        "cyclic",
        "project",
        "multi",
        (0, 0, 0),
    )
    assert differences(resolve("s3-laptop").model_dump(mode="json"), recipe.model_dump(mode="json")) == [
        'sharing: "ordinal" before, "cyclic" now',
        "data.mean: [0.5, 0.5, 0.5] before, [0.0, 0.0, 0.0] now",
        'sampling.rule: "sandwich" before, "multi" now',
        "sampling.networks: 2 before, 4 now",
        'gradients.rule: "sum" before, "project" now',
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("sampling.rul=multi", "did you mean 'sampling.rule'"),
        ("optimiser.lr=1", "did you mean 'optimizer'"),
        ("sharing=cyclc", "'ordinal', 'bilateral' or 'cyclic', not 'cyclc'"),
        ("train.epochs=0", "greater than 0"),
        ("train.epochs", "key=value"),
        ("train.epochs=[", "cannot be read"),
        ("space=vitas-v9", "did you mean 'vitas-v1'"),
        ("narrow={depth: 99}", "depth=99 is not in the space"),
    ],
)
def test_mistakes(change, said):
    with pytest.raises(sf.SuperformerError, match=said):
        space_of(resolve("s3-laptop", [change]))


def test_files_that_are_no_recipes(tmp_path):
    path = tmp_path / "a.yaml"
    for text, said in (
        ("- 1", "tree of settings"),
        ("a: [", "well-formed"),
        ("name: a", "Field required"),
        ("{name: a, foo: 1}", "foo"),
    ):
        path.write_text(text)
        with pytest.raises(RecipeError, match=said):
            resolve(path)
    with pytest.raises(RecipeError, match="did you mean 's3-laptop'"):
        resolve("s3-laptopp")
    path.write_text(yaml.safe_dump({**resolve("s3-laptop").model_dump(mode="json"), "seed": 7}))
    assert resolve(path).seed == 7
