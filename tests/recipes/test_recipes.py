"""Recipes: complete, exact, and open to change."""

from __future__ import annotations

import pytest
import timm
import yaml

import superformer as sf
from superformer import files
from superformer.data.augment import TimmTransform
from superformer.recipes import (
    Recipe,
    RecipeError,
    differences,
    dump,
    from_tree,
    names,
    parse_yaml,
    read_changes,
    resolve,
    retrain_recipe,
    space_of,
)

PAPERS = ["alphanet", "nasvit", "s3", "vit-resnas", "vitas-deit", "vitas-resnet50", "vitas-twins", "vitas-v1"]


def test_every_paper_has_both_scales():
    assert names() == sorted(["demo-laptop", *PAPERS, *(f"{name}-laptop" for name in PAPERS)])


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
        ("sharing=cyclc", "'ordinal', 'bilateral', 'cyclic' or 'cyclic-groups', not 'cyclc'"),
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


def retrained(name: str, macs: float, *words: str, larger: bool = False) -> Recipe:
    """The recipe for a network of so many MACs, as `superformer retrain` uses it."""
    recipe = resolve(name, words)
    asked = read_changes(recipe, (), "test")
    return retrain_recipe(recipe, space_of(recipe).smallest(), asked, (), macs, "test", larger)


@pytest.mark.parametrize(
    ("name", "space", "supernet", "macs", "alone"),
    [
        ("vitas-twins", "vitas-twins-tiny", 0.0, 1.4e9, 0.1),  # v2, appendix A.1
        ("vitas-twins", "vitas-twins-small", 0.0, 3e9, 0.2),
        ("vitas-twins", "vitas-twins-base", 0.0, 9e9, 0.3),
        ("vitas-twins", "vitas-twins-large", 0.0, 16e9, 0.5),
        ("vitas-deit", "vitas-deit-small", 0.0, 4.9e9, 0.1),
        ("vit-resnas", "vit-resnas-tiny", 0.2, 1.8e9, 0.2),  # section 3.1; MACs of table 3
        ("vit-resnas", "vit-resnas-small", 0.3, 2.8e9, 0.3),
        ("vit-resnas", "vit-resnas-small", 0.3, 4.5e9, 0.4),
    ],
)
def test_a_space_brings_its_own_drop_path(name, space, supernet, macs, alone):
    recipe = resolve(name, [f"space={space}"])
    assert recipe.train.drop_path == supernet
    assert retrained(name, macs, f"space={space}").train.drop_path == alone
    assert recipe.sizes == {}  # a run's recipe holds the result
    assert from_tree(parse_yaml(dump(recipe), name), name) == recipe
    assert resolve(name, [f"space={space}", "train.drop_path=0.7"]).train.drop_path == 0.7


def test_small_networks_of_vitas_v1_are_retrained_without_cutmix():
    """Section 4.3: below 1.3 G; otherwise as DeiT, with repeats. The supernet has it (table 4)."""
    assert [retrained("vitas-v1", macs).mix.cutmix for macs in (1.29e9, 1.3e9)] == [0.0, 1.0]
    assert {retrained("vitas-v1", macs).mix.mixup for macs in (1.29e9, 1.3e9)} == {0.8}
    assert resolve("vitas-v1").mix.cutmix == 1.0


def test_tuning_for_larger_pictures_is_the_papers():
    """S3, section 4.3; ViT-ResNAS, section 3.1: on top of the training before."""
    s3, resnas = retrained("s3", 5e9, larger=True), retrained("vit-resnas", 2e9, larger=True)
    for recipe, epochs, batch, lr, drop in ((s3, 10, 1024, 1e-5, 0.2), (resnas, 30, 512, 5e-6, 0.75)):
        own = recipe.optimizer
        assert (recipe.train.epochs, recipe.train.batch_size, recipe.train.drop_path) == (epochs, batch, drop)
        assert (own.lr, own.weight_decay, own.schedule, own.name) == (lr, 1e-8, "constant", "adamw")
    assert retrained("vit-resnas", 2e9).optimizer.schedule == "cosine"


@pytest.mark.parametrize("name", names())
def test_networks_are_retrained_on_all_training_pictures(name):
    assert retrained(name, 1e9).data.search == 0
    assert resolve(name).data.search > 0


@pytest.mark.parametrize("name", ["vitas-deit", "vitas-twins", "vitas-deit-laptop", "vitas-twins-laptop"])
def test_weak_regularisation_of_vitas_v2(name):
    """Section 5 and table 4, group 9: neither weight decay nor smoothing in the supernet; both alone (A.1)."""
    recipe, alone = resolve(name), retrained(name, 1e9, "retrain.weights=scratch")
    assert (recipe.optimizer.weight_decay, recipe.mix.smoothing) == (0, 0)
    assert (alone.optimizer.weight_decay, alone.mix.smoothing) == (0.05, 0.1)


def test_nasvit_has_the_papers_teacher():
    """Section 4.1: an EfficientNet-B5, trained on ImageNet alone: the plain name is noisy student's today."""
    (teacher,) = resolve("nasvit").loss.teachers
    cfg = timm.get_pretrained_cfg(teacher)
    assert (cfg.architecture, cfg.tag, cfg.num_classes) == ("tf_efficientnet_b5", "aa_in1k", 1000)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"s3-intial": {}}, "sizes: unknown space 's3-intial': did you mean 's3-initial'"),
        ({"s3-initial": {"train": {"epoch": 3}}}, "train.epoch"),
        ({"s3-initial": 3}, "must be a tree"),
    ],
)
def test_mistakes_in_sizes(sizes, said):
    """Whichever space is chosen."""
    with pytest.raises(RecipeError, match=said):
        from_tree({**resolve("s3-laptop").model_dump(mode="json"), "sizes": sizes}, "mine")


def test_a_recipe_of_an_earlier_version_means_what_it_meant(tmp_path):
    tree = resolve("s3-laptop").model_dump(mode="json")
    del tree["optimizer"]["own_no_decay"], tree["loss"]["teacher_size"]
    tree["loss"]["teacher_weight"] = 1.0
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree))
    assert resolve(path).optimizer.own_no_decay  # no run: a recipe of today
    for facts, new in (({}, False), ({"format": 2}, True)):
        files.write_object(tmp_path / "run.json", facts)
        read = resolve(path)
        assert (read.optimizer.own_no_decay, read.loss.teacher_size == "own") == (new, new)
        assert read.loss.teacher_weight in (None, 1.0)
