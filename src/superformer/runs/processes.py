"""The processes of a run: one, or several started by torchrun. All draw the same sub-networks from the same seed, each sees its share of
every batch, and gradients are averaged by hand: sub-networks leave most weights unused, which DistributedDataParallel handles badly.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

BUCKET = 8 * 2**20
"""Elements that travel together."""
T = TypeVar("T")
_works = count()
"""Of work that processes share: they begin the same works in the same order."""


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
        rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        device = torch.device("cpu")
        if torch.cuda.is_available():
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
            torch.cuda.set_device(device)
        if size > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return World(rank, size, device)

    def leave(self) -> None:
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

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

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        if self.size == 1:
            return flag
        told = torch.tensor(float(flag), device=self.device)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return bool(told)

    def shared(self, pieces: Sequence[T]) -> Iterator[T]:
        """The pieces of a piece of work that fall to this process: each goes to the one that is free first. All have the same pieces."""
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

    def mean_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Average gradients, many small ones in one message. All processes ran the same sub-networks, so the same gradients exist."""
        if self.size == 1:
            return
        waiting: list[Tensor] = []
        for grad in [p.grad for p in parameters if p.grad is not None]:
            waiting.append(grad)
            if sum(g.numel() for g in waiting) >= BUCKET:
                self._mean_together(waiting)
                waiting = []
        self._mean_together(waiting)

    def _mean_together(self, grads: list[Tensor]) -> None:
        if not grads:
            return
        flat = self.mean(torch.cat([g.flatten() for g in grads]))
        for grad, part in zip(grads, torch.split(flat, [g.numel() for g in grads]), strict=True):
            grad.copy_(part.view(grad.shape))
