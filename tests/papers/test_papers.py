"""The guard against silent departures: what the papers print (the tables beside this file, each entry under its
section) against the shipped recipes and spaces. A changed default shows here, and so does a setting of a recipe that no
table has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

import superformer as sf
from superformer.recipes import merged, names, resolve

TABLES = {file.stem: yaml.safe_load(file.read_text()) for file in sorted(Path(__file__).parent.glob("*.yaml"))}
HERE = {"name", "about", "watch.every", "watch.checkpoint_seconds", "data.workers", "train.amp", "train.threads"}
"""Of the machine, not of a method."""
FORMS = ("recipes", "retrained", "larger")


def entries(kind: str) -> Iterator[tuple[str, str, str, Any]]:
    """Whose, the section, the key and the value that the paper prints; a later section overrides an earlier one."""
    for table in TABLES.values():
        for whose, sections in table.get(kind, {}).items():
            said = {key: (section, value) for section, pairs in sections.items() for key, value in pairs.items()}
            for key, (section, value) in said.items():
                yield whose, section, key, value


def settings(words: str, form: str) -> dict[str, Any]:
    """A recipe with its changes: of the supernet, of the network by itself, and of that one with larger pictures."""
    name, *changes = words.split(" ")
    tree = resolve(name, changes).model_dump(mode="json")
    if form != "recipes":
        tree = merged(tree, tree["retrain"][tree["retrain"]["weights"]])
    return merged(tree, tree["retrain"]["larger"]) if form == "larger" else tree


def at(tree: Any, path: str) -> list[Any]:
    """What lies at a path; ``*`` stands for every one of a list."""
    first, _, rest = path.partition(".")
    parts = tree if first == "*" else [tree[int(first)] if isinstance(tree, list) else tree[first]]
    return list(chain.from_iterable(at(part, rest) for part in parts)) if rest else list(parts)


def agrees(printed: Any, ours: Any) -> bool:
    """Whether a value is the printed one; lists of choices agree in any order."""
    if isinstance(printed, dict) and "tenths" in printed:
        printed = [round(printed["tenths"] / printed.get("parts", 1) * i / 10) for i in range(1, 11)]
    elif isinstance(printed, dict) and "up_to" in printed:
        printed = list(range(printed["up_to"] + 1))
    elif isinstance(printed, dict) and "one_of" in printed:
        return ours in printed["one_of"]
    elif isinstance(printed, dict) and "begins" in printed:
        return all(n.startswith(printed["begins"]) and not any(bad in n for bad in printed["not"]) for n in ours)
    elif isinstance(printed, dict) and isinstance(ours, dict) and {"ratio", "times"} & {*printed}:
        return all(ours.get(key) == value for key, value in printed.items())
    if isinstance(ours, list) and len(ours) == 1 and isinstance(printed, int):  # one choice is none
        return ours == [printed]
    if isinstance(printed, list) and isinstance(ours, list):
        return sorted(printed, key=str) == sorted(ours, key=str)
    return bool(printed == ours)


@pytest.mark.parametrize("form", FORMS)
def test_recipes_have_the_numbers_that_the_papers_print(form):
    wrong = [
        f"{words}: {key} is {ours}, not {value} ({section})"
        for words, section, key, value in entries(form)
        for ours in at(settings(words, form), key)
        if not agrees(value, ours)
    ]
    assert wrong == []


def test_spaces_have_the_choices_that_the_papers_print():
    wrong = [
        f"{name}: {key} is {ours}, not {value} ({section})"
        for name, section, key, value in entries("spaces")
        for ours in at(json.loads(sf.space(name).to_json()), key)
        if not agrees(value, ours)
    ]
    assert wrong == []


def flat(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict) and key not in ("space", "narrow"):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def own_settings(name: str) -> Iterator[tuple[str, str, str]]:
    """Every setting that the file of a recipe has: the form and the words it belongs to, and its key."""
    tree = yaml.safe_load((resources.files("superformer.recipes") / f"{name}.yaml").read_text())
    sizes, retraining = tree.pop("sizes", {}), tree.pop("retrain", {})
    for space, changes in sizes.items():
        own = changes.pop("retrain", {})
        yield from (("recipes", f"{name} space={space}", key) for key in flat(changes))
        yield from (("retrained", f"{name} space={space}", key) for key in flat(own.get("scratch", {})))
    yield from (("recipes", name, key) for key in flat(tree))
    weights = retraining.get("weights", "finetuned")
    for form, part in (("retrained", weights), ("larger", "larger")):
        yield from ((form, name, key) for key in flat(retraining.get(part, {})))


@pytest.mark.parametrize("name", [name for name in names() if not name.endswith("-laptop")])
def test_every_setting_of_a_papers_recipe_has_its_section_or_its_reason(name):
    known = {(form, words, key) for form in FORMS for words, _, key, _ in entries(form)}
    unknown = [own for own in own_settings(name) if own not in known and own[2] not in HERE]
    assert unknown == [], "say in tests/papers where these numbers come from"


def test_every_published_space_is_in_a_table():
    missing = {*sf.spaces()} - {name for name, *_ in entries("spaces")}
    assert missing == {name for name in missing if name.startswith(("autoformer-", "nasvit-released", "alphanet"))}


def test_the_guard_sees_a_changed_default():
    assert not agrees([7, 14], [7])
    assert not agrees({"tenths": 100}, [10, 20, 30])
    assert agrees({"tenths": 100, "parts": 2}, [5 * i for i in range(1, 11)])
    assert at({"a": [{"b": 1}, {"b": 2}]}, "a.*.b") == [1, 2]
