from __future__ import annotations

import json

import pytest

import superformer as sf


def test_published_models_have_distinct_keys_and_survive_json():
    from superformer.spaces import arch

    archs = [arch(name) for name in sf.models()]
    assert len({a.key for a in archs}) == len(archs)
    for a in archs:
        assert sf.Arch.from_json(a.to_json()) == a


def test_placement_takes_no_part_in_equality_but_is_kept():
    space = sf.space("vit-resnas-tiny")
    free = next(a for a in space.sample(50) if any(s.at for s in a.stages))
    plain = free.canonical()
    assert free == plain
    assert free.key == plain.key
    assert hash(free) == hash(plain)
    assert free.to_json() != plain.to_json()
    assert sf.Arch.from_json(free.to_json()).stages[0].at == free.stages[0].at
    assert len({free, plain}) == 1


def test_numbers_have_one_form():
    a = sf.space("autoformer-tiny").smallest()
    data = json.loads(a.to_json())
    data["stages"][0]["blocks"][0]["mlp"] = float(data["stages"][0]["blocks"][0]["mlp"])
    assert sf.Arch.from_json(json.dumps(data)).key == a.key


def wrong(change) -> str:
    data = json.loads(sf.space("vitas-block").smallest().to_json())
    return json.dumps(change(data) or data)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "must be JSON"),
        ("[1]", "must be a JSON object"),
        (wrong(lambda d: d.pop("stages") and None), "lacks 'stages'"),
        (wrong(lambda d: d.update(familly="vit")), "did you mean 'family'"),
        (wrong(lambda d: d.update(family="vitt")), "did you mean 'vit'"),
        (wrong(lambda d: d["choices"].pop("width") and None), "lack width"),
        (wrong(lambda d: d["stages"][0]["blocks"][0].update(head=3)), "did you mean 'heads'"),
        (wrong(lambda d: d["stages"][0]["blocks"][0].update(heads=5)), "does not divide into 5 heads"),
        (wrong(lambda d: d.update(options={"pool": "max"})), "pool must be cls or mean"),
        (wrong(lambda d: d.update(options={"pool": "cls"})), "left out"),
        (wrong(lambda d: d.update(stages=[])), "at least one"),
        (wrong(lambda d: d.update(stages=[{"blocks": 3}])), "list of objects"),
        (wrong(lambda d: d["stages"][0]["blocks"][0].update(mlp=[1])), "not a number or a word"),
    ],
)
def test_malformed_architectures_say_what_is_wrong(text, says):
    with pytest.raises(sf.SuperformerError, match=says):
        sf.Arch.from_json(text)
