"""What the page is made of: values, series, architectures, in few characters."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import superformer as sf
from superformer.report import _json as page_json
from superformer.report import markup as charts
from superformer.report.inputs import MOST, Points, compact
from superformer.search.history import Record


@given(
    st.recursive(
        st.text() | st.integers(-9, 9) | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_no_value_ends_the_data(values: Any) -> None:
    text = page_json({"values": values})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"values": values}


@given(st.lists(st.floats(0, 100), max_size=400))
def test_a_distribution_rises_to_all(errors: list[float]) -> None:
    x, share = charts.distribution(errors, most=100)
    assert len(x) == len(share) <= 101
    assert x == sorted(x)
    assert share == sorted(share)
    if errors:
        assert (x[0], x[-1], share[0], share[-1]) == (min(errors), max(errors), 0, 100)


def test_long_series_are_thinned() -> None:
    line = charts.series("loss", list(range(10_000)), [float("nan"), *np.linspace(5, 1, 9_999)])
    assert len(line["x"]) == len(line["y"]) == charts.MOST
    assert line["y"][0] == pytest.approx(5, abs=0.01)
    assert line["y"] == sorted(line["y"], reverse=True)


def test_architectures_in_few_characters() -> None:
    archs = [
        a.to_json() for name in ("vit-resnas-tiny", "vitas-twins-small") for a in sf.space(name).sample(50, seed=0)
    ]
    packed = json.loads(json.dumps(compact(archs, [99])))
    assert len(page_json(compact(archs * 20, []))) < 0.3 * 20 * sum(map(len, archs))
    for text, (head, *stages) in zip(archs, packed["codes"], strict=True):
        plain = json.loads(text)
        blocks = [[packed["blocks"][b] for b in own] for _, *own in stages]
        assert blocks == [stage["blocks"] for stage in plain["stages"]]
        assert [packed["values"][own[0]] for own in stages] == [stage.get("choices", {}) for stage in plain["stages"]]
        assert packed["heads"][head]["family"] == plain["family"]
    few = compact(archs, [99], room=3000)["codes"]
    assert few[99] is not None
    assert None in few


def test_a_long_history_still_fits() -> None:
    archs = sf.space("s3-initial").sample(200, seed=0)
    records = [Record(f"swin-{k:016x}", archs[k % 200].to_json(), {}, search=1, round=k // 500) for k in range(9_000)]
    rng = np.random.default_rng(0)
    costs = {name: rng.uniform(1e8, 1e10, len(records)) for name in ("macs", "params", "latency")}
    points = Points(records, rng.random(len(records)), costs, np.ones(len(records), bool), [8_999, 7], {7: 0.1}, 8_999)
    columns = points.columns()
    assert len(columns["key"]) == MOST
    assert [columns["key"][k] for k in columns["front"]] == [records[8_999].key, records[7].key]
    assert columns["best"] == columns["front"][0]
    assert columns["measured"] == {columns["front"][1]: 0.1}
    assert len(page_json(columns)) < 3.5e6
