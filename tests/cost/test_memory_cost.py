"""Peak memory: followed tensor by tensor, held against torch's profiler; and predicted for populations, held against
what was followed."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.strategies import FAMILIES, SMALL, spaces_with_archs
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from superformer.cost import memory
from superformer.cost.memory import held_by_parts, peak_memory
from superformer.cost.memory_table import MemoryTable
from superformer.cost.runtimes import pictures
from superformer.errors import InfeasibleError
from superformer.families.network import Network
from superformer.recipes import names, resolve, space_of
from superformer.search import front as measured
from superformer.search import search
from superformer.space import Space
from superformer.space.arch import Arch
from superformer.spaces import model

LAPTOP = [name for name in names() if name.endswith("-laptop")]
MAKERS = ("aten::empty", "aten::new_empty", "aten::resize", "aten::zero", "aten::fill")
"""What kernels call to get memory."""


# --- one network ---


def test_what_is_alive_at_once() -> None:
    class Chain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            big = torch.cat([x] * 10)
            small = big[:1] + 1  # here: the pictures, ten times as much, and one
            del big
            return torch.cat([small] * 4) * 2

    picture = 4 * 3 * 32 * 32
    assert peak_memory(Chain(), 32) == 12 * picture
    assert peak_memory(Chain(), 32, batch=2) == 23 * picture


def test_views_weights_and_what_is_kept_do_not_count() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 1, 1))
            self.kept: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.kept = torch.ones(1000) if self.kept is None else self.kept
            y = x * self.weight[:3]
            return y.view(-1)[::2] * self.kept[0]

    assert peak_memory(Keeps(), 8) == 2.5 * 4 * 3 * 64


def profiled(net: Network, batch: int, file: Path) -> tuple[int, int]:
    """The most memory that torch's allocator gave out at once; and the same without what a kernel gave back before it
    ended."""
    x = pictures(net, None, batch, torch.device("cpu"))
    with torch.inference_mode():
        net.eval()(x)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            net(x)
    seen.export_chrome_trace(str(file))
    events = json.loads(file.read_text())["traceEvents"]
    kernels = [
        (e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "cpu_op" and not e["name"].startswith(MAKERS)
    ]
    changes = sorted((e["ts"], e["args"]["Bytes"], e["args"]["Addr"]) for e in events if e.get("name") == "[memory]")
    given: dict[int, int] = {}
    own: set[int] = set()
    for k, (time, size, address) in enumerate(changes):
        if size > 0:
            given[address] = k
        elif address in given:
            start = given.pop(address)
            around = [(begin, end) for begin, end in kernels if begin <= changes[start][0] <= end]
            if around and time <= min(around, key=lambda span: span[1] - span[0])[1]:
                own |= {start, k}
    everything, lasting = (
        [size for k, (_, size, _) in enumerate(changes) if k not in without] for without in (set(), own)
    )
    return tuple(x.nbytes + int(np.cumsum([0, *sizes]).max()) for sizes in (everything, lasting))  # type: ignore[return-value]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_as_torchs_profiler_sees(name: str, tmp_path: Path) -> None:
    @settings(max_examples=5)
    @given(spaces_with_archs(of=SMALL[name]), st.sampled_from((1, 2)))
    def check(drawn: tuple[Space, list[Arch]], batch: int) -> None:
        net = model(drawn[1][0], 5)
        everything, lasting = profiled(net, batch, tmp_path / "trace.json")
        assert peak_memory(net, batch=batch) == lasting <= everything

    check()


@given(spaces_with_archs())
@settings(max_examples=20)
def test_it_does_not_matter_that_products_are_not_computed(drawn: tuple[Space, list[Arch]]) -> None:
    arch = drawn[1][0]
    quick = held_by_parts(arch, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "HOLLOW", {})
        assert held_by_parts(arch, 5) == quick
        assert peak_memory(model(arch, 5)) == max(held.peak for held in quick.values())


def test_a_network_is_as_before() -> None:
    net = model(space_of(resolve("s3-laptop")).smallest(), 10)
    x, before = torch.rand(1, 3, 32, 32), set(vars(net))
    one = peak_memory(net)
    assert one == peak_memory(net)
    assert one < peak_memory(net, batch=4) <= 4 * one
    assert net.training
    assert set(vars(net)) == before
    assert not any(m._forward_pre_hooks for m in net.modules())
    assert net.eval()(x).shape == (1, 10)


# --- populations ---


def followed(space: Space, genes: np.ndarray) -> list[int]:
    return [max(held.peak for held in held_by_parts(arch, 5).values()) for arch in space.decode(genes)]


@pytest.mark.parametrize("name", FAMILIES)
def test_predictions_are_exact(name: str) -> None:
    @settings(max_examples=2)
    @given(SMALL[name])
    def check(space: Space) -> None:
        table = MemoryTable.build(space, 5)
        genes = space.sample_genes(12, 99)
        assert table.memory(genes).tolist() == followed(space, genes)

    check()


@pytest.mark.parametrize("name", LAPTOP)
def test_a_few_networks_tell_all(name: str) -> None:
    space = space_of(resolve(name))
    table = MemoryTable.build(space, 5)
    genes = space.sample_genes(1000, 99)
    found = table.memory(genes)
    assert table.followed < 100
    known = table.followed
    np.testing.assert_array_equal(table.memory(genes), found)
    assert table.followed == known
    some = np.concatenate([genes[:4], space.encode([space.smallest(), space.largest()])])
    assert table.memory(some).tolist() == followed(space, some)


def test_what_nobody_has_seen_is_followed() -> None:
    space = space_of(resolve("vitas-twins-laptop"))
    table = MemoryTable(space, 5)
    rows = space.sample_genes(60, 3)
    assert table.memory(rows[:0]).shape == (0,)
    assert table.memory(rows[:30]).tolist() == followed(space, rows[:30])
    before = table.followed
    assert before <= 30
    assert table.memory(rows[30:]).tolist() == followed(space, rows[30:])
    assert table.followed - before < 20


# --- searching within limits of memory and throughput ---


WORDS = {
    "first": 10,
    "rounds": 2,
    "table_seconds": 1,
    "parents": 4,
    "mutants": 4,
    "crossovers": 4,
    "throughput_batch": 8,
}


def test_a_search_within_memory_and_throughput(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "SECONDS", 0.02)
    space = Space.from_json((trained / "space.json").read_text())
    table = MemoryTable.build(space, 10)
    most = float(np.quantile(table.memory(space.sample_genes(200, 0)), 0.3))
    found = search(trained, {"memory": (0, most), "throughput": (1.0, math.inf)}, "evolution", WORDS)
    assert found["objectives"] == ["accuracy", "throughput", "memory"]
    assert found["limits"] == {"memory": [0, most], "throughput": [1.0, None]}
    assert found["front"]
    for row in found["front"]:
        arch = Arch.from_json(json.dumps(row["arch"]))
        assert row["memory"] == max(held.peak for held in held_by_parts(arch, 10).values()) <= most
        assert row["throughput"] > 1
    assert (trained / "latency-eager-1-8.json").exists()
    # none is better in every objective: what is faster or smaller is less accurate
    scores = [(row["accuracy"], -row.get("loss", 0.0), row["throughput"], -row["memory"]) for row in found["front"]]
    for one, other in pairwise(scores):
        assert not (other[:2] >= one[:2] and other[2] >= one[2] and other[3] >= one[3] and other != one)


def test_limits_that_nobody_can_meet(trained: Path) -> None:
    with pytest.raises(InfeasibleError, match=r"has 0 B to 100 B memory.*reached: .* kB to .* kB memory"):
        search(trained, {"memory": (0, 100)}, "evolution", WORDS)
    with pytest.raises(InfeasibleError, match=r"at least 1 G/s throughput.*reached: .*/s to .*/s throughput"):
        search(trained, {"throughput": (1e9, math.inf)}, "evolution", WORDS)
    with pytest.raises(
        InfeasibleError, match=r"0 ms to 1e-06 ms latency; reached: .* ms to .* ms latency, by the smallest"
    ):
        search(trained, {"macs": (0, 1e12), "latency": (0, 1e-9)}, "evolution", WORDS)
    with pytest.raises(InfeasibleError, match=r"has 0 to 3 macs; reachable"):
        search(trained, {"macs": (0, 3), "latency": (0, 1)}, "evolution", WORDS)
    assert not list(trained.glob("latency-*")), "nobody waits for a table"
