"""Which channels a width uses: fair for every list of widths, and the same ones tomorrow."""

from __future__ import annotations

import itertools
import json
import math
import runpy
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import superformer as sf
from superformer.elastic.axis import Axis
from superformer.recipes import dump, names, resolve, space_of
from superformer.runs import Run
from superformer.runs.storage import load_supernet, save_supernet, write_tensors
from superformer.sharing import Sharing, bilateral, cyclic, influence_gap, ordinal, solution, solve_cyclic
from superformer.sharing.mappings import shipped, starts
from superformer.sharing.solve import bound, place

DOCS = Path(__file__).parents[1] / "docs"
TABLE_16 = {
    "Ordinal": (30.3, 48.1, 70.6, 99.1, 130.0, 167.4),
    "Bilateral": (10.0, 19.0, 30.6, 46.1, 66.1, 88.7),
    "Cyclic": (0.6, 0.3, 0.7, 0.5, 0.8, 0.5),
}
"""ViTAS v2, for 5 to 10 groups."""


def test_table_16_what_agrees_and_what_does_not():
    """Its cyclic row is the proven optimum divided by the number of groups; its other rows are neither that nor eq. 13
    as printed. The documentation says so, with our numbers."""
    groups, page = range(5, 11), (DOCS / "methods" / "vitas-v2.md").read_text()
    assert tuple(round(influence_gap(cyclic(n)) / n, 1) for n in groups) == TABLE_16["Cyclic"]
    assert all(solution(n)["proven"] for n in groups)
    for rule, row in ((ordinal, TABLE_16["Ordinal"]), (bilateral, TABLE_16["Bilateral"])):
        ours = [influence_gap(rule(n)) for n in groups]
        assert all(0.70 < mine / printed < 0.90 for mine, printed in zip(ours, row, strict=True))
        assert ", ".join(f"{gap:.1f}" for gap in ours) in page
        assert ", ".join(map(str, row)) in page
    assert influence_gap([{0}, {0, 1}]) == influence_gap(ordinal(2)) == influence_gap({1: [0], 2: [0, 1]})


def times(widths: tuple[int, ...], first: list[int]) -> list[int]:
    """How often each channel is used (eq. 5), from the runs' ends."""
    size, change = widths[-1], [0] * (widths[-1] + 1)
    for width, start in zip(widths, first, strict=True):
        for begin, end in ((start, min(start + width, size)), (0, start + width - size)):
            if end > begin:
                change[begin] += 1
                change[end] -= 1
    return list(itertools.accumulate(change))[:-1]


def is_fair(widths: tuple[int, ...], first: list[int]) -> bool:
    used = times(widths, first)
    return max(used) - min(used) <= 1  # eq. 12


@pytest.mark.parametrize("groups", range(2, 17))
def test_cyclic_mapping_is_fair_and_continuous(groups):
    mapping = cyclic(groups)
    assert list(mapping) == list(range(1, groups + 1))
    used = [sum(i in channels for channels in mapping.values()) for i in range(groups)]  # eq. 5
    assert max(used) - min(used) <= 1  # eq. 12
    for width, channels in mapping.items():
        assert len(channels) == width  # eq. 6
        gaps = [c for c in channels if (c + 1) % groups not in channels]
        assert len(gaps) == (0 if width == groups else 1), "one run, wrapped around"
    assert groups < 5 or influence_gap(mapping) < influence_gap(bilateral(groups)) < influence_gap(ordinal(groups))


def test_every_list_of_every_space_and_recipe_is_fair_and_solved_ahead():
    own, seen = runpy.run_path(str(DOCS / "cyclic.py")), set()
    for space in [*map(sf.space, sf.spaces()), *(space_of(resolve(name)) for name in names())]:
        for axis in own["shared_axes"](space):
            if (axis.widths, axis.unit) in seen:
                continue
            seen.add((axis.widths, axis.unit))
            step = math.gcd(*axis.widths)
            assert tuple(w // step for w in axis.widths) in shipped(), f"{axis}: run python docs/cyclic.py"
            first = [Sharing("cyclic").segments(axis, w)[0][0] for w in axis.widths]
            assert is_fair(axis.widths, first)
            assert all(start % axis.unit == 0 for start in first)
    assert len(seen) > 40


def test_what_is_shipped_is_true():
    for widths, entry in shipped().items():
        assert is_fair(widths, entry["starts"])
        size = widths[-1]
        if size <= 64:
            mapping = {w: [(s + k) % size for k in range(w)] for w, s in zip(widths, entry["starts"], strict=True)}
            assert entry["gap"] == pytest.approx(influence_gap(mapping))
        assert 0 <= entry["bound"] <= entry["gap"]
        assert entry["proven"] == (entry["bound"] == entry["gap"])


@given(st.sets(st.integers(1, 12), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_any_list_is_fair(widths):
    listed = tuple(sorted(widths))
    found = solution(listed)
    assert is_fair(listed, found["starts"])
    assert is_fair(listed, [*place(listed)[0]]), "also where a list is not shipped"
    assert found["gap"] == pytest.approx(influence_gap(cyclic(listed)))
    assert found["bound"] <= found["gap"]
    assert bound(listed) <= found["gap"] + 1e-9


@given(st.sets(st.integers(1, 7), min_size=2, max_size=4))
@settings(max_examples=25, deadline=None)
def test_the_gap_is_that_of_brute_force(widths):
    listed = tuple(sorted(widths))
    size, best = listed[-1], None
    for first in itertools.product(range(size), repeat=len(listed) - 1):
        used = [[(s + k) % size for k in range(w)] for w, s in zip(listed, (*first, 0), strict=True)]
        if not is_fair(listed, [*first, 0]):
            continue
        total = [sum(Fraction(1, len(run)) for run in used if i in run) for i in range(size)]
        gap = sum((a - b) ** 2 for a in total for b in total)
        best = gap if best is None else min(best, gap)
    found = solution(listed)
    assert found["proven"]
    assert influence_gap(cyclic(listed)) == pytest.approx(float(best))
    assert found["gap"] == pytest.approx(float(best))


LARGE = [(1, 4, 7, 8, 9, 12, 13, 17, 20, 22, 23, 25, 28, 29, 31, 33, 37, 40, 41, 44, 45, 50), tuple(range(10, 36))]


@pytest.mark.parametrize("widths", LARGE, ids=len)
def test_large_lists_that_are_not_shipped(widths):
    assert widths not in shipped()
    found = solution(widths)
    assert is_fair(widths, found["starts"])
    assert influence_gap({w: range(w) for w in widths}) > 10 * found["gap"]
    assert 0 <= found["bound"] <= found["gap"]
    assert widths[0] > 1 or found["bound"] > 0.9 * found["gap"]


def test_channels_of_a_list_never_change():
    """Supernets are stored by the name of the rule alone. (No solver's luck, no random numbers of numpy's choice.)"""
    assert starts((5, 9, 14, 20, 31, 33, 40, 47, 50)) == [26, 31, 12, 40, 31, 47, 10, 0, 0]
    assert starts([48, 64, 80, 96]) == [16 * s for s in starts([3, 4, 5, 6])]


@pytest.mark.parametrize("widths", [(1, 2, 3, 4, 5), (3, 4, 5, 6, 7, 8), (2, 3, 5, 9, 10), (4, 6, 9)])
def test_the_solver_proves_what_is_found(widths):
    found = solve_cyclic(widths, workers=1)
    assert found["proven"]
    assert found["gap"] == pytest.approx(influence_gap(cyclic(widths)))


@pytest.mark.parametrize(
    ("widths", "first"),
    [
        ((48, 64, 80, 96), [32, 32, 0, 0]),
        ((16, 24, 32, 40, 48), [40, 16, 16, 0, 0]),
        ((38, 77, 115, 154, 192, 230, 269, 307, 346, 384), [230, 154, 269, 0, 346, 269, 115, 0, 0, 0]),
        (tuple(range(1, 17)), [3, 1, 14, 10, 4, 4, 9, 9, 4, 15, 9, 13, 1, 13, 0, 0]),
    ],
)
def test_the_mapping_of_before_is_still_there(widths, first):
    axis = Axis("a", widths)
    assert [Sharing("cyclic-groups").segments(axis, w)[0][0] for w in widths] == first


def test_what_an_earlier_version_trained_keeps_its_channels(tmp_path):
    recipe = resolve("vitas-twins-laptop")
    net = sf.supernet(space_of(recipe), 10, "cyclic")
    save_supernet(net, tmp_path / "new.safetensors", "0123456789")
    assert load_supernet(tmp_path / "new.safetensors").sharing.rule == "cyclic"
    old = {"space": net.space.to_json(), "sharing": "cyclic", "classes": json.dumps(list("0123456789")), "facts": "{}"}
    write_tensors(tmp_path / "old.safetensors", net.state_dict(), old)
    assert load_supernet(tmp_path / "old.safetensors").sharing.rule == "cyclic-groups"

    facts = {"data": "digits", "fingerprint": "f", "classes": list("0123456789"), "img_size": 32}
    run = Run(tmp_path / "new")
    run.begin(recipe, net.space, facts)
    assert run.recipe().sharing == "cyclic"
    before = tmp_path / "old"
    before.mkdir()
    (before / "run.json").write_text(json.dumps(facts))
    (before / "space.json").write_text(net.space.to_json())
    (before / "recipe.yaml").write_text(dump(recipe))
    assert Run.open(before).recipe().sharing == "cyclic-groups"


axes = st.builds(
    lambda widths, unit: Axis("a", tuple(sorted({w * unit for w in widths})), unit),
    st.lists(st.integers(1, 16), min_size=1, max_size=5),
    st.sampled_from((1, 8, 48)),
)


@given(axes, st.sampled_from(("ordinal", "bilateral", "cyclic", "cyclic-groups")), st.data())
@settings(deadline=None)
def test_selections_have_their_width_and_move_whole_units(axis, rule, data):
    width = data.draw(st.sampled_from(axis.widths))
    sharing = Sharing(rule)
    side = data.draw(st.sampled_from(sharing.sides))
    channels = [c for a, b in sharing.segments(axis, width, side) for c in range(a, b)]
    assert len(channels) == len(set(channels)) == width
    assert set(channels) <= set(range(axis.size))
    for start in range(0, width, axis.unit):  # each unit is there whole and in order
        unit = channels[start : start + axis.unit]
        assert unit == list(range(unit[0], unit[0] + axis.unit))
        assert unit[0] % axis.unit == 0
    if rule == "ordinal" or width == axis.size:
        assert channels == list(range(width))


def test_ten_groups_start_where_the_mapping_says():
    axis = Axis("attn", tuple(48 * i for i in range(1, 11)))
    for j, groups in cyclic(10).items():
        channels = {c for a, b in Sharing("cyclic").segments(axis, 48 * j) for c in range(a, b)}
        assert channels == {48 * g + c for g in groups for c in range(48)}


def test_mistakes():
    with pytest.raises(sf.SuperformerError, match="did you mean 'cyclic'"):
        sf.supernet("vitas-block", sharing="cyclical")
    with pytest.raises(sf.SuperformerError, match="only bilateral"):
        Sharing("cyclic").check_side("right")
    for wrong in (0, [], [0, 2], [1.5, 2], ["a"]):
        with pytest.raises(sf.SuperformerError, match="whole numbers of channel groups, at least one"):
            cyclic(wrong)
