"""The family of docs/adding-a-family.md works as it stands there."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import superformer as sf
from superformer.elastic.layers import Cell, Elastic, Optional
from superformer.families.network import Network
from superformer.space.schema import FAMILIES, Schema

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-family.md"


@pytest.fixture(scope="module")
def page():
    """The code of the page, run in a module of its own; the family is forgotten afterwards."""
    module = types.ModuleType("adding_a_family")
    for code in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        exec(compile(code, PAGE.name, "exec"), module.__dict__)
    yield module
    del FAMILIES["mix"]


@pytest.mark.parametrize("rule", ["ordinal", "bilateral", "cyclic"])
def test_extracted_networks_equal_the_supernet_and_cost_what_torch_counts(page, rule):
    net = sf.supernet(page.space, 10, rule).double().eval()
    archs = page.space.sample(4, seed=1)
    x = torch.randn(4, 3, 32, 64, dtype=torch.float64)
    mixed, cost = net(x, archs), sf.cost(page.space, archs, num_classes=10, img_size=(32, 64))
    for k, arch in enumerate(archs):
        model = net.extract(arch)
        with FlopCounterMode(display=False) as counter:
            logits = model(x[k : k + 1])
        torch.testing.assert_close(logits, mixed[k : k + 1])
        assert 2 * cost.macs[k] == counter.get_total_flops()
        assert cost.params[k] == sum(p.numel() for p in model.parameters())


def test_limits_json_and_features_follow(page):
    assert sf.cost(page.space, page.archs, num_classes=10).params.max() <= 20_000
    assert sf.Arch.from_json(page.archs[0].to_json()) == page.archs[0]
    assert sf.Space.from_json(page.space.to_json()) == page.space
    maps = page.model.forward_intermediates(torch.zeros(1, 3, 32, 32), intermediates_only=True)
    assert {tuple(m.shape[2:]) for m in maps} == {(8, 8)}
    with pytest.raises(sf.SuperformerError, match="does not divide"):
        page.model(torch.zeros(1, 3, 30, 32))


def test_a_class_that_forgets_a_method_cannot_be_built(page):
    forgetful = type(
        "Forgetful", (Network,), {"schema": page.Mix.schema, "build": page.Mix.build, "grid": page.Mix.grid}
    )
    with pytest.raises(
        TypeError, match=r"abstract methods .*bind.*embed.*enter_cost.*exit_cost.*feature_width.*finish.*new_head.*pool"
    ):
        forgetful(page.space)
    for kind, method in ((Cell, "cost.*forward"), (Elastic, "reset"), (Optional, "unused")):
        with pytest.raises(TypeError, match=f"abstract.*{method}"):
            kind()


def test_a_name_is_given_once(page):
    assert sf.register_family(page.Mix) is page.Mix
    for name in ("mix", "vit"):
        other = type("Other", (page.Mix,), {"schema": Schema(name, frozenset(), frozenset(), frozenset())})
        with pytest.raises(sf.SpaceError, match=f"a family '{name}' already"):
            sf.register_family(other)
