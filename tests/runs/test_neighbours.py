"""Sums over processes through memory that all of them see: threads play the processes."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from superformer.errors import SuperformerError
from superformer.runs import neighbours
from superformer.runs.neighbours import LARGE, SLOTS, SMALL, Lane, Neighbours, alive

LENGTH = Lane.bytes(SMALL) + Lane.bytes(LARGE)


def together(size: int, work: Callable[[Neighbours, int], list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    maps = [mmap.mmap(-1, LENGTH) for _ in range(size)]
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(lambda k: work(Neighbours(maps, [os.getpid()] * size, k), k), range(size)))


def numbers(rank: int, n: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(100 * n + rank)).to(dtype)


kinds = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
messages = st.lists(st.tuples(st.integers(1, 40_000), kinds, st.booleans()), min_size=1, max_size=3 * SLOTS)


@given(st.integers(2, 4), messages)
@settings(max_examples=15)
def test_all_have_the_same_sums(size: int, sent: list[tuple[int, torch.dtype, bool]]) -> None:
    """Of messages that are waited for at once, or at the end (more than there is room for), of all lengths."""

    def work(own: Neighbours, rank: int) -> list[torch.Tensor]:
        out, away = [], []
        for n, (count, dtype, later) in enumerate(sent):
            out.append(numbers(rank, n, count, dtype))
            if later:
                away.append(own.add_up_later(out[-1]))
            else:
                own.add_up(out[-1])
        for one in away:
            one.wait()
        return out

    found = together(size, work)
    for n, (count, dtype, _) in enumerate(sent):
        total = numbers(0, n, count, dtype)
        for rank in range(1, size):
            total += numbers(rank, n, count, dtype)
        assert all(torch.equal(own[n], total) for own in found)


def test_what_is_no_row_of_numbers() -> None:
    """A view of every second column, and what is longer than a piece."""

    def work(own: Neighbours, rank: int) -> list[torch.Tensor]:
        wide, long = torch.full((3, 4), rank + 1.0), torch.full((LARGE // 2,), float(rank))
        own.add_up(wide[:, ::2])
        own.add_up_later(long).wait()
        return [wide, long]

    for rank, (wide, long) in enumerate(together(2, work)):
        assert wide.tolist() == [[3.0, rank + 1.0] * 2] * 3
        assert long.unique().tolist() == [1.0]


def test_a_process_that_has_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "LOOKS", 0.01)
    ended = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert ended.stdout is not None
    ended.stdout.read()
    maps = [mmap.mmap(-1, LENGTH) for _ in range(2)]
    own = Neighbours(maps, [os.getpid(), ended.pid], 0)
    for _ in range(2):  # while nobody has asked how it ended, and afterwards
        with pytest.raises(SuperformerError, match="process 1 of this run has ended"):
            own.add_up(torch.ones(3))
        ended.wait()
    assert alive(os.getpid())
    assert not alive(ended.pid)


def test_only_on_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    for here, possible in (("4", True), ("2", False)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
        assert neighbours.possible() == (possible and sys.platform == "linux" and os.uname().machine == "x86_64")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert not neighbours.possible()
