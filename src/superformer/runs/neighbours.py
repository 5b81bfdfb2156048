"""Sums over processes of one machine, through memory that all of them see.

Between processors gloo sends what is added up through sockets: a millisecond or two a message on two cores, and a
second thread that copies. The hundreds of small sums that batch norms of all processes need in a step then take longer
than the step.
Here each process writes into memory of its own, which the others read; whoever waits asks a counter. Sums are taken in
the order of the processes, so that all have the same to the last bit (two have what gloo gives them).

Only where a store is seen by others in the order of the program (x86) and the system has anonymous files (Linux)."""

from __future__ import annotations

import mmap
import os
import platform
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from superformer.errors import SuperformerError

SLOTS, SMALL, LARGE = 8, 2**16, 2**22
"""Pieces of a lane that may be on their way, and bytes of one: of what is waited for at once, and of what travels."""
SPINS, YIELDS, LOOKS, PATIENCE = 200, 1000, 1.0, 12 * 3600.0
"""Questions to a counter before the processor is offered to others, and before one sleeps in between; seconds between
looks whether the others live, and until one that lives but does not answer is given up: the first process often works
alone for long (pictures are listed, a network is judged on the test pictures), which others wait for."""
NAP = 5e-5
ROW, WRITTEN, ADDED, KNOWN = 64, 0, 8, 10_000
"""Bytes of a counter (a line of the cache by itself); where in a process's row of 8 bytes each the number of pieces is
that it has written, and of those that it has added up; views of rooms that are kept."""


def possible() -> bool:
    """Whether all processes of this run are on this machine, and it can do this."""
    able = hasattr(os, "memfd_create") and platform.machine() in ("x86_64", "AMD64")
    return able and os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


class Piece(NamedTuple):
    """A part of a tensor whose sum is on its way."""

    number: int
    part: Tensor


class Lane:
    """Pieces that arrive in the order in which they leave. Each process has room for `SLOTS` of them, and two counters:
    how many it has written, and how many it has added up. A piece's room is used again when all have added it up."""

    def __init__(self, maps: Sequence[mmap.mmap], pids: Sequence[int], rank: int, begin: int, size: int):
        self.pids, self.rank, self.size = pids, rank, size
        self.counters = [memoryview(m)[begin : begin + 2 * ROW].cast("q") for m in maps]
        begin += 2 * ROW
        self.rooms = [[torch.frombuffer(m, dtype=torch.uint8, offset=begin + k * size, count=size)
                       for k in range(SLOTS)] for m in maps]  # fmt: skip
        self.away: deque[Piece] = deque()
        self.written = 0
        self.others = [k for k in range(len(maps)) if k != rank]
        self.known: dict[tuple[int, int, int, torch.dtype], Tensor] = {}

    @staticmethod
    def bytes(size: int) -> int:
        return 2 * ROW + SLOTS * size

    def send(self, flat: Tensor) -> int:
        """The number after that of the last piece of a flat tensor, which must not be changed until it has arrived."""
        most = self.size // flat.element_size()
        for part in torch.split(flat, most) if flat.numel() > most else (flat,):
            number = self.written
            self.arrive(number - SLOTS + 1)
            for k in self.others:
                self._wait(k, ADDED, number - SLOTS + 1)
            self._room(self.rank, number, part).copy_(part)
            self.counters[self.rank][WRITTEN] = self.written = number + 1
            self.away.append(Piece(number, part))
        return self.written

    def arrive(self, until: int) -> None:
        """All pieces before this number are sums now."""
        while self.away and self.away[0].number < until:
            number, part = self.away.popleft()
            for k in self.others:
                self._wait(k, WRITTEN, number + 1)
            first, second, *others = (self._room(k, number, part) for k in range(len(self.rooms)))
            torch.add(first, second, out=part)
            for other in others:
                part.add_(other)
            self.counters[self.rank][ADDED] = number + 1

    def _room(self, rank: int, number: int, part: Tensor) -> Tensor:
        key = rank, number % SLOTS, part.numel(), part.dtype
        if (found := self.known.get(key)) is None:  # the same lengths come in every step; a view takes as long as a sum
            if len(self.known) >= KNOWN:
                self.known.clear()
            found = self.rooms[rank][key[1]][: part.numel() * part.element_size()].view(part.dtype)
            self.known[key] = found
        return found

    def _wait(self, rank: int, counter: int, least: int) -> None:
        theirs = self.counters[rank]
        for _ in range(SPINS):
            if theirs[counter] >= least:
                return
        for _ in range(YIELDS):
            os.sched_yield()
            if theirs[counter] >= least:
                return
        begin = looked = time.monotonic()
        while theirs[counter] < least:
            time.sleep(NAP)
            if (now := time.monotonic()) - looked > LOOKS:
                looked = now
                if not alive(self.pids[rank]) or now - begin > PATIENCE:
                    raise SuperformerError(f"process {rank} of this run has ended or does not answer; start all again")


def alive(pid: int) -> bool:
    """Whether a process runs (one that has ended and that nobody has asked for does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Neighbours:
    """The memory of all processes of a run."""

    def __init__(self, maps: Sequence[mmap.mmap], pids: Sequence[int], rank: int):
        self.small = Lane(maps, pids, rank, 0, SMALL)
        self.large = Lane(maps, pids, rank, Lane.bytes(SMALL), LARGE)

    @classmethod
    def meet(cls, rank: int, size: int) -> Neighbours | None:
        """Of processes that gloo has brought together; none, if one of them cannot see the others' memory."""
        length = Lane.bytes(SMALL) + Lane.bytes(LARGE)
        own = os.memfd_create("superformer", os.MFD_CLOEXEC)
        os.ftruncate(own, length)
        told: list[tuple[int, int]] = [(0, 0)] * size
        dist.all_gather_object(told, (os.getpid(), own))
        maps: list[mmap.mmap] = []
        with suppress(OSError):
            for pid, number in told:
                with open(f"/proc/{pid}/fd/{number}", "r+b") as file:
                    maps.append(mmap.mmap(file.fileno(), length))
        opened = torch.tensor(len(maps))
        dist.all_reduce(opened, dist.ReduceOp.MIN)
        os.close(own)
        return cls(maps, [pid for pid, _ in told], rank) if int(opened) == size else None

    def __deepcopy__(self, memo: object) -> Neighbours:
        return self  # what copies of a network sum with

    def add_up(self, x: Tensor) -> None:
        """In place."""
        flat = x.contiguous().view(-1)
        self.small.arrive(self.small.send(flat))
        if flat.data_ptr() != x.data_ptr():
            x.copy_(flat.view(x.shape))

    def add_up_later(self, flat: Tensor) -> Sum:
        """A flat tensor that must not be changed until it was waited for."""
        return Sum(self.large, self.large.send(flat))


class Sum(NamedTuple):
    lane: Lane
    until: int

    def wait(self) -> None:
        self.lane.arrive(self.until)
