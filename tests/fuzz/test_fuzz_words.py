"""Words of the command line: refused with one line and status 2, or meant as they stand. Nothing hangs."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from helpers.fuzzing import tried

import superformer as sf
from superformer import recipes
from superformer.analysis.settings import chosen
from superformer.errors import StoppedError
from superformer.recipes.searching import METHODS, Options, method_settings, split_options
from superformer.settings import SettingsBase, read_amount, read_bytes, read_key_value, read_seconds
from superformer.train.loop import require_finite

VALUES = [
    "inf", "-inf", "nan", ".inf", ".nan", "1e400", "-1", "0", "1e30", "1e-400", "true", "off", "null", "", "[",
    "{", "[]",
    "{}", "[1]", "[2, 1]", "[inf, 1]", "[.nan, .nan, .nan]", "[0, 0]", "[0.9, 1]", "[null, null]", "[-5, 3]", "x",
    "é\0",
    "!!python/object:os.system x", "!!timestamp x", "2024-13-45", "2024-01-01", "&a [*a]", "{[1]: 2}", "9" * 5000,
    "[" * 1000, "[" * 1000 + "]" * 1000, "{a: 1, a: 2}", "4096", "65537", "0x10", "1:30", "a" * 5000,
    "{x: &x [1,1,1,1,1,1,1,1], y: &y [*x,*x,*x,*x,*x,*x,*x,*x], z: &z [*y,*y,*y,*y,*y,*y,*y,*y], "
    "u: &u [*z,*z,*z,*z,*z,*z], v: &v [*u,*u,*u,*u,*u,*u], w: [*v,*v,*v,*v,*v,*v,*v,*v]}",
]  # fmt: skip


def keys(model: type[SettingsBase], prefix: str = "") -> list[str]:
    out = []
    for name, field in model.model_fields.items():
        nested = isinstance(field.annotation, type) and issubclass(field.annotation, SettingsBase)
        out += keys(field.annotation, f"{prefix}{name}.") if nested else [prefix + name]
    return out


KEYS = keys(recipes.Recipe)


def recipe_case(seed: int) -> str:
    rng = random.Random(seed)
    words = [f"{rng.choice(KEYS)}={rng.choice(VALUES)}" for _ in range(rng.randint(1, 2))]
    recipe = recipes.resolve(rng.choice(recipes.names()), words)
    recipes.space_of(recipe)
    return "used"


def search_case(seed: int) -> str:
    rng = random.Random(seed)
    name = rng.choice([*METHODS, "x"])
    known = [*METHODS.get(name, Options).model_fields, *Options.model_fields, "x", ""]
    words = dict(read_key_value(f"{rng.choice(known)}={rng.choice(VALUES)}") for _ in range(2))
    method_settings(name, split_options(words)[1])
    chosen(rng.choice([(), ("attention",), ("x",)]), words)
    return "used"


def amount_case(seed: int) -> str:
    rng = random.Random(seed)
    text = rng.choice(["600", "1e400", "1e-400", "1", "inf", "nan", "-3", "", "9" * 400, "0", "1.5", "٣"])
    read = rng.choice([read_amount, read_bytes, read_seconds])
    assert 0 < read(text + rng.choice(["", "M", "ms", "MB", "GiB", "us", "x", " "]), "--x") <= 1e18
    return "used"


@pytest.mark.parametrize(("case", "cases"), [(recipe_case, 100), (search_case, 50), (amount_case, 100)])
def test_words_are_refused_or_meant(case, cases):
    _, bad = tried(case, cases)
    assert bad == []


@pytest.mark.parametrize(
    "word",
    [
        "optimizer.warmup_lr=inf", "optimizer.lr=1e400", "optimizer.lr=.inf", "data.mean=[inf, 0, 0]", "seed=-1",
        "data.std=[.nan, .nan, .nan]", "data.std=[0, 1, 1]", "data.mean=[]", "optimizer.betas=[0.9, 1.5]",
        "optimizer.betas=[-1, 0.9]", "data.scale=[1, 0.5]", "data.ratio=[0, 1]", "sampling.macs=[2, 1]",
        "sampling.params=[-1, 5]", "img_size=0", "img_size=5000", "img_size=true", "train.batch_size=yes",
        "evolve.gamma={depth: .inf}", "evolve.gamma={depth: 0}", "loss.alpha=[-.inf, 1]", "optimizer.momentum=1",
        "gradients.cap=-1", "train.epochs=1e30", "retrain.finetuned={optimizer: {lr: 1e400}}", "data.color_jitter=-1",
        "retrain.scratch={train: {epoch: 3}}", "about=2024-01-01",
    ],
)  # fmt: skip
def test_numbers_that_are_none_and_values_out_of_range_are_refused(word):
    with pytest.raises(recipes.RecipeError) as told:
        recipes.resolve("s3-laptop", [word])
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("seconds", ["inf", "nan", "-1", "0", "1e400", "x", "1e9"])
def test_bench_ends(command, seconds):
    status, _, said = command("bench", "s3_tiny", f"--seconds={seconds}")
    assert status == 2
    assert said.startswith("superformer: ")


def test_files_that_are_no_architecture(trained_once: Path, tmp_path: Path, command):
    made = {"binary": os.urandom(500), "empty": b"", "list": b"[" * 5000, "huge": b" " * 5_000_000, "nul": b"{\0}"}
    for name, content in made.items():
        (tmp_path / name).write_bytes(content)
    for name in (*made, ".", "nothing", "x" * 300):
        status, _, said = command("eval", "--run", str(trained_once), "--arch", str(tmp_path / name))
        assert status in (1, 2), name
        assert said.startswith("superformer: "), (name, said)
        assert said.count("\n") == 1, (name, said)


@pytest.mark.parametrize("spec", ["", "=", "train=", "train=,test=", "x" * 300, "\t", "train=/dev/null", "digits=1"])
def test_odd_words_for_data(spec, tmp_path, command):
    words = ("train", "--recipe", "vitas-twins-laptop", "--data", spec, "--run", str(tmp_path / "run"))
    status, _, said = command(*words)
    assert status in (1, 2)
    assert said.startswith("superformer: "), said


def test_a_network_with_weights_that_are_no_numbers_is_no_result():
    net = sf.supernet("vitas-block", 3)
    require_finite(net)
    next(net.parameters()).data[..., 0] = float("nan")
    with pytest.raises(StoppedError, match=r"not finite numbers .*smaller optimizer.lr"):
        require_finite(net)


def test_what_a_family_does_not_read_is_refused_and_what_it_reads_must_be_of_its_kind():
    space = sf.space("nasvit")
    for make, says in (
        (lambda: sf.model("nasvit_a1", resize="off"), "no setting 'resize'; it is an option of the space"),
        (lambda: sf.supernet("nasvit", patch_head=True), "no setting 'patch_head'"),
        (lambda: sf.supernet("vit-resnas-tiny", patch_head="yes"), "True or False"),
        (lambda: sf.supernet("vit-resnas-tiny", in_chans=0), "in_chans"),
        (lambda: sf.supernet("vit-resnas-tiny", num_classes=2.5), "num_classes"),
        (lambda: sf.model("vit_resnas_tiny", drop_path=float("nan")), "drop_path"),
        (lambda: sf.model("vit_resnas_tiny", img_size="224"), "img_size"),
        (lambda: sf.Space("a", "nasvit", space.stages, space.choices, 224, {"resize": "off"}), "must be true or false"),
        (lambda: sf.Space("a", "nasvit", space.stages, space.choices, 224, {"head_dim": -8}), "whole number"),
        (lambda: sf.Space("a", "nasvit", space.stages, space.choices, 224, {"rel_pos": 3}), "no option 'rel_pos'"),
    ):
        with pytest.raises(sf.SuperformerError, match=says):
            make()
