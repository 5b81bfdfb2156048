"""The processes of a run: one, or several started by torchrun.

All draw the same sub-networks from the same seed, each sees its share of every batch, and gradients are averaged by
hand: sub-networks leave most weights unused, which DistributedDataParallel handles badly. They travel (`Travelling`)
while something else is computed: the largest network's while the others run, those of blocks while the backward pass is
at the blocks before them. All processes run the same networks, and so send the same messages in the same order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from superformer.elastic.conv import JOINED, Joined
from superformer.errors import SuperformerError
from superformer.runs import neighbours
from superformer.runs.neighbours import Neighbours
from superformer.settings import DEVICE

T = TypeVar("T")
BUCKET = 2**20
"""Elements that travel together."""
BACKENDS = {"cuda": "nccl", "xpu": "xccl"}
"""What carries tensors between devices of a kind; between all others gloo does."""
_joins, _works = count(), count()
"""Of meetings of processes, and of work that they share: all begin the same ones in the same order."""
_met: list[Neighbours | None] = []
"""Of the meeting that lasts."""


def device_here() -> torch.device:
    """The device of this process: the kind that is asked for (`DEVICE`), or the accelerator that torch finds, else the
    processor; of several the one that torchrun's local rank says."""
    name, local = os.environ.get(DEVICE) or "auto", int(os.environ.get("LOCAL_RANK", 0))
    found = torch.accelerator.current_accelerator(check_available=True) if torch.accelerator.is_available() else None
    kind = found.type if found is not None else "cpu"
    if name not in ("auto", "cpu", kind):
        what = f"torch {torch.__version__} sees {'the processor alone' if found is None else kind}"
        raise SuperformerError(f"there is no device {name!r} here ({what}): --device auto takes what there is")
    if name == "cpu" or found is None:
        return torch.device("cpu")
    if kind in BACKENDS and local >= (there := torch.accelerator.device_count()):
        what = f"this machine has {there} of {kind}, and process {local + 1} of it would be without"
        raise SuperformerError(f"{what}: start {there} on it (--nproc-per-node {there}), or give --device cpu")
    return torch.device(kind, local) if kind in BACKENDS else torch.device(kind)


class OnItsWay(Protocol):
    """A sum that others work on, too."""

    def wait(self) -> object: ...


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    neighbours: Neighbours | None = field(default=None, compare=False)

    @property
    def first(self) -> bool:
        """Whether this process writes the files and talks to the user."""
        return self.rank == 0

    @staticmethod
    def join() -> World:
        """The world that torchrun has set up, or a world of one."""
        rank, size, device = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)), device_here()
        if device.index is not None:
            torch.accelerator.set_device_index(device.index)
        if size > 1 and not dist.is_initialized():
            store, _, _ = next(rendezvous("env://"))
            # torchrun keeps its store when it starts the processes again (--max-restarts): by the old keys in it the
            # new ones would call those that are gone, and wait
            attempt = f"superformer/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{next(_joins)}"
            backend, patience = BACKENDS.get(device.type, "gloo"), timedelta(seconds=neighbours.PATIENCE)
            met = PrefixStore(attempt, store)
            dist.init_process_group(backend, store=met, rank=rank, world_size=size, timeout=patience)
            if backend == "gloo" and neighbours.possible():
                _met.append(neighbours.Neighbours.meet(rank, size))
        return World(rank, size, device, _met[-1] if _met else None)

    @staticmethod
    def joined() -> bool:
        """Whether whoever called has joined already, and will leave: a group cannot be formed twice."""
        return dist.is_available() and dist.is_initialized()

    def leave(self) -> None:
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()
            _met.clear()

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """torch's own generators, of the processor and of the device, with this seed; afterwards as they were."""
        kind = self.device.type
        several = [self.device] if kind in BACKENDS else []  # kinds of which there may be more than one
        words = {"device_type": kind} if several else {}
        single = torch.mps.get_rng_state() if kind == "mps" else None
        with torch.random.fork_rng(several, **words):
            torch.manual_seed(seed)
            yield
        if single is not None:
            torch.mps.set_rng_state(single)

    def read(self, numbers: Tensor) -> Any:
        """Numbers of the device as Python's: whoever calls waits until it has computed them."""
        return numbers.tolist()

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()

    @contextmanager
    def first_begins(self) -> Iterator[None]:
        """For work whose result is kept on the disk: the others begin when the first one is done, and find it there."""
        if not self.first:
            self.wait()
        try:
            yield
        finally:
            if self.first:
                self.wait()

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean over all processes, in place."""
        if self.size > 1:
            self.add_up(tensor)
            tensor /= self.size
        return tensor

    def add_up(self, tensor: Tensor) -> None:
        """The sum over all processes, in place."""
        if self.neighbours is not None and tensor.device.type == "cpu":
            self.neighbours.add_up(tensor)
        else:
            dist.all_reduce(tensor)

    def add_up_later(self, flat: Tensor) -> OnItsWay:
        """The same; whoever calls goes on, and waits for what comes back before the tensor is used or changed."""
        if self.neighbours is not None and flat.device.type == "cpu":
            return self.neighbours.add_up_later(flat)
        return dist.all_reduce(flat, async_op=True)

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
        """The first one's number, in all processes, which wait for it: on an accelerator for all that was started."""
        if self.size == 1:
            return float(value)
        told = torch.tensor([value], dtype=torch.float64, device=self.carrier)
        self.spread([told])
        return float(told)

    @property
    def carrier(self) -> torch.device:
        """Where numbers lie that processes exchange: gloo's are the processor's, and not every device has float64."""
        return self.device if self.device.type in BACKENDS else torch.device("cpu")

    def mean_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Average gradients, in place. All ran the same sub-networks, and have the same."""
        travelling = Travelling(self)
        travelling.send(p.grad for p in parameters)
        travelling.arrive()

    def divided(self, pieces: Sequence[T], work: Callable[[Sequence[T]], Sequence[float]]) -> list[float]:
        """A number for each piece: each process works on every so manyth, and all get all."""
        found = torch.zeros(len(pieces), dtype=torch.float64, device=self.carrier)
        if mine := pieces[self.rank :: self.size]:
            found[self.rank :: self.size] = torch.tensor(work(mine), dtype=torch.float64, device=self.carrier)
        if self.size > 1:
            self.add_up(found)
        return [float(value) for value in found.tolist()]


class Travelling:
    """Gradients on their way to their mean over all processes, many small ones in one message; whoever sends them must
    not change them until they `arrive`. ``dtype``: what they travel as, if not as what they are."""

    def __init__(self, world: World, dtype: torch.dtype | None = None):
        self.world, self.dtype = world, dtype
        self.known: set[int] = set()
        self.waiting: list[Tensor] = []
        self.away: list[tuple[OnItsWay, Tensor, list[Tensor]]] = []

    @torch.no_grad()
    def send(self, grads: Iterable[Tensor | None]) -> None:
        """Those that were not sent yet, as soon as they fill a message. None: of what was not used."""
        if self.world.size == 1:
            return
        for grad in grads:
            if grad is not None and id(grad) not in self.known:
                self.known.add(id(grad))
                self.waiting.append(grad)
                if sum(g.numel() for g in self.waiting) >= BUCKET:
                    self._send()

    def _send(self) -> None:
        flat = torch.cat([g.flatten() for g in self.waiting]).to(self.dtype or self.waiting[0].dtype)
        self.away.append((self.world.add_up_later(flat), flat, self.waiting))
        self.waiting = []

    @torch.no_grad()
    def arrive(self) -> None:
        """Until all that was sent is there, in its place."""
        if self.waiting:
            self._send()
        for work, flat, grads in self.away:
            work.wait()
            parts = torch.split(flat, [g.numel() for g in grads])
            for grad, part in zip(grads, parts, strict=True):
                torch.div(part.view(grad.shape), self.world.size, out=grad)
        self.away = []

    @contextmanager
    def early(self, modules: Sequence[nn.Module]) -> Iterator[None]:
        """For the last forward pass of a step: gradients of modules that it calls are sent during the backward pass, as
        soon as that has passed the module's input. (Whatever was computed after the input then has its gradient:
        autograd works from the newest to the oldest.)"""
        if self.world.size == 1:
            yield
            return
        calls = dict.fromkeys(modules, 0)

        def passed(module: nn.Module, grad: Tensor) -> None:
            calls[module] -= 1
            if not calls[module]:
                self.send(p.grad for p in module.parameters())

        def called(module: nn.Module, given: tuple[Any, ...]) -> None:
            if given[0].requires_grad:
                calls[module] += 1
                given[0].register_hook(partial(passed, module))

        handles = [module.register_forward_pre_hook(called) for module in modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def synchronise(net: nn.Module, world: World | None) -> None:
    """Let all batch norms of a network take the pictures of all processes; or, for what one process does by itself
    (None), not."""
    joined = Joined(world.add_up, world.size) if world is not None else None
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            setattr(module, JOINED, joined)
