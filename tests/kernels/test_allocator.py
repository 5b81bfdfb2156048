"""Freed memory is kept. In a process of its own: what is set for the allocator stays set."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource, sys, torch
import superformer as sf
from superformer.kernels import keep_freed

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        a, b = torch.zeros(2**24), torch.zeros(2**24)
        del a, b
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

given_back = faults()
sf.supernet(sf.space("vitas-block"), num_classes=2)
built = faults()
keep_freed()
faults()
print(given_back, built, faults(), keep_freed())
"""


def test_a_process_that_asks_for_it_keeps_the_memory_it_frees_and_building_a_network_does_not_ask() -> None:
    given_back, built, kept, can = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    ).stdout.split()
    assert can == "True"
    pages = 4 * 2 * 2**26 // 4096
    assert int(given_back) > pages / 2
    assert int(built) > pages / 2
    assert int(kept) < pages / 20


def test_the_allocator_can_be_left_as_it_is() -> None:
    said = subprocess.run(
        [sys.executable, "-c", "from superformer.kernels import keep_freed; print(keep_freed())"],
        capture_output=True, text=True, check=True, env={"SUPERFORMER_RETURN_MEMORY": "1"},
    )  # fmt: skip
    assert said.stdout.strip() == "False"
