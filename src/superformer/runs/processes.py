"""The processes of a run: one, or several started by torchrun.

All draw the same sub-networks from the same seed, each sees its share of every batch, and gradients are averaged by
hand: sub-networks leave most weights unused, which DistributedDataParallel handles badly."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from superformer.elastic.conv import SYNCED

T = TypeVar("T")
BUCKET = 8 * 2**20
"""Elements that travel together."""
_joins, _works = count(), count()
"""Of meetings of processes, and of work that they share: all begin the same ones in the same order."""


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this process writes the files and talks to the user."""
        return self.rank == 0

    @staticmethod
    def join() -> World:
        """The world that torchrun has set up, or a world of one."""
        rank, size, local = (int(os.environ.get(k, d)) for k, d in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))
        device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
        if torch.cuda.is_available():
            torch.cuda.set_device(device)
        if size > 1 and not dist.is_initialized():
            store, _, _ = next(rendezvous("env://"))
            # torchrun keeps its store when it starts the processes again (--max-restarts): by the old keys in it the
            # new ones would call those that are gone, and wait
            attempt = f"superformer/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{next(_joins)}"
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=PrefixStore(attempt, store), rank=rank, world_size=size)
        return World(rank, size, device)

    @staticmethod
    def joined() -> bool:
        """Whether whoever called has joined already, and will leave: a group cannot be formed twice."""
        return dist.is_available() and dist.is_initialized()

    def leave(self) -> None:
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """torch's own generators, of the processor and of the device, with this seed; afterwards as they were."""
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield

    def read(self, numbers: Tensor) -> Any:
        """Numbers of the device as Python's: whoever calls waits until it has computed them."""
        return numbers.tolist()

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
            tensor /= self.size
        return tensor

    def shared(self, pieces: Sequence[T]) -> Iterator[T]:
        """The pieces of work that fall to this process: each goes to the one that is free first. All have the same."""
        if self.size == 1:
            yield from pieces
            return
        name, store = f"superformer/{next(_works)}", dist.distributed_c10d._get_default_store()
        while (k := store.add(name, 1) - 1) < len(pieces):
            yield pieces[k]

    def spread(self, tensors: Sequence[Tensor]) -> None:
        """Give all processes the first one's values."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def first_says(self, value: float) -> float:
        """The first one's number, in all processes."""
        told = torch.tensor([value], dtype=torch.float64, device=self.device)
        self.spread([told])
        return float(told)

    def mean_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Average gradients, many small ones in one message. All ran the same sub-networks, and have the same."""
        if self.size == 1:
            return
        buckets: list[list[Tensor]] = [[]]
        for grad in [p.grad for p in parameters if p.grad is not None]:
            if sum(g.numel() for g in buckets[-1]) >= BUCKET:
                buckets.append([])
            buckets[-1].append(grad)
        for grads in filter(None, buckets):
            flat = self.mean(torch.cat([g.flatten() for g in grads]))
            for grad, part in zip(grads, torch.split(flat, [g.numel() for g in grads]), strict=True):
                grad.copy_(part.view(grad.shape))


def synchronise(net: nn.Module, on: bool = True) -> None:
    """Let all batch norms of a network take the pictures of all processes; or, for what one process does by itself,
    not."""
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            setattr(module, SYNCED, on)
