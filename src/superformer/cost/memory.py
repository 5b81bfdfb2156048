"""The memory of a stand-alone network's activations: exact, by following every tensor of a forward pass from its making
to its end.

Counted are the pictures and all that is computed from them, not the weights, nor what a network keeps between passes
(masks, tables of distances), nor what a kernel uses for itself while it runs. Only shapes matter, so products of
matrices are not computed: their results are memory that holds anything. `superformer.cost.memory_table` has the same
for whole populations."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from superformer.cost.runtimes import Size, evaluating, home, pictures
from superformer.families.network import Network
from superformer.space import point
from superformer.space.arch import Arch
from superformer.space.schema import family

END = "end"
Moments = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Held:
    """What is in memory during a part of a pass: ``sizes`` in bytes of the tensors that matter, in the order in which
    they were made, and the ``moments`` at which most of them are there together, as places in ``sizes``. No moment is
    contained in another."""

    moments: Moments
    sizes: tuple[int, ...]

    @property
    def peak(self) -> int:
        return max(sum(self.sizes[k] for k in moment) for moment in self.moments)


def peak_memory(model: nn.Module, img_size: Size | None = None, batch: int = 1) -> int:
    """Bytes of all tensors that are alive at once, at most, in a forward pass for inference."""
    return max(held.peak for held in _follow(model, img_size, batch).values())


def hollow(arch: Arch, num_classes: int = 1000) -> Network:
    """The stand-alone network of an architecture, all of its weights the same few zeros."""
    with torch.device("meta"):
        net = family(arch.family)(point(arch), num_classes).eval()
    zeros = torch.zeros(max((p.numel() for p in net.parameters()), default=0))
    for module in net.modules():
        for name, p in module._parameters.items():
            if p is not None:
                module._parameters[name] = nn.Parameter(zeros[: p.numel()].view(p.shape), requires_grad=False)
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else torch.zeros(buffer.shape, dtype=buffer.dtype)
    return net


def held_by_parts(arch: Arch, num_classes: int = 1000, img_size: Size | None = None) -> dict[str, Held]:
    """What each part of an architecture's network holds for one picture: ``into stage 0`` (with the stem), ``stage 0
    block 0`` (counting the blocks that run), and so on to the ``end``. The largest of their peaks is the network's."""
    return _follow(hollow(arch, num_classes), img_size, 1)


def _follow(model: nn.Module, img_size: Size | None, batch: int) -> dict[str, Held]:
    x = pictures(model, img_size, batch, home(model))
    with evaluating(model), torch.no_grad():
        for _ in range(2):  # what a network keeps for all passes is made in the first
            with _Living(x) as living, _marked(model, living.enter):
                out = model(x)
            if living.alive.keys() <= _storages((x, out)):
                break
    return living.held()


@contextmanager
def _marked(model: nn.Module, enter: Callable[[str], None]) -> Iterator[None]:
    """Tell where a pass is: the same parts in all families."""
    enter("into stage 0")
    if not isinstance(model, Network):
        yield
        return
    to_stage, finish = model.enter, model.finish

    def entering(stage: int, x: Tensor, at: Any) -> Tensor:
        enter(f"into stage {stage}")
        return to_stage(stage, x, at)

    def finishing(x: Tensor, at: Any) -> Tensor:
        enter(END)
        return finish(x, at)

    with ExitStack() as stack:
        for i in range(len(model.stages)):
            for k, block in enumerate(model.stage(i).blocks):
                hook = block.register_forward_pre_hook(lambda *_, name=f"stage {i} block {k}": enter(name))
                stack.callback(hook.remove)
        model.__dict__.update(enter=entering, finish=finishing)
        stack.callback(lambda: [model.__dict__.pop(name) for name in ("enter", "finish")])
        yield


class _Living(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows tensors from when an operation makes them until nobody holds them."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []
        self.alive: dict[int, int] = {}
        """The place in ``sizes`` of each storage that is there."""
        self.parts: dict[str, list[set[int]]] = {}
        self.part, self.grown = "", False
        self.first = x

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler, which takes longer than all the following

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._note(self.first, set())
        return self

    def enter(self, part: str) -> None:
        self._moment()
        self.part, self.grown = part, True

    def _moment(self) -> None:
        """Keep what is there now, if there will be less."""
        if self.grown:
            self.parts.setdefault(self.part, []).append(set(self.alive.values()))
        self.grown = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = _storages((args, tuple((kwargs or {}).values())))
        if func is aten.roll.default and len(args[1]) > 1:  # torch moves along one dimension after the other
            x, shifts, dims = args
            args = (self.__torch_dispatch__(func, types, (x, shifts[:1], dims[:1])), shifts[1:], dims[1:])
        out = HOLLOW[func](*args) if func in HOLLOW else func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            self._note(tensor, given)
        return out

    def _note(self, tensor: Tensor, given: set[int]) -> None:
        """``given``: what an operation returns of that is a view of it."""
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        if address in self.alive or address in given or not size:
            return
        self.alive[address] = len(self.sizes)
        self.sizes.append(size)
        self.grown = True
        weakref.finalize(storage, self._gone, address)

    def _gone(self, address: int) -> None:
        self._moment()
        del self.alive[address]

    def held(self) -> dict[str, Held]:
        self._moment()
        found = {}
        for part, moments in self.parts.items():
            most = [m for m in moments if not any(m < other for other in moments)]
            places = {event: n for n, event in enumerate(sorted(set().union(*most)))}
            shape = tuple(sorted({tuple(sorted(places[e] for e in m)) for m in most}))
            found[part] = Held(shape, tuple(self.sizes[e] for e in places))
        return found


def _tensors(tree: Any) -> Iterator[Tensor]:
    """Of what operations take and return: tensors, sequences of them, and other things."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for part in tree:
            yield from _tensors(part)


def _storages(tree: Any) -> set[int]:
    return {t.untyped_storage()._cdata for t in _tensors(tree)}


def _product(one: Tensor, other: Tensor) -> Tensor:
    return one.new_empty(*one.shape[:-1], other.shape[-1])


def _attention(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    batch, heads, tokens, _ = q.shape
    return torch.empty_like(q), q.new_empty(batch, tokens, heads).transpose(1, 2)


aten = torch.ops.aten
HOLLOW: dict[Any, Callable[..., Any]] = {
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.addmm.default: lambda bias, one, other: _product(one, other),
    aten.baddbmm.default: lambda bias, one, other, **factors: _product(one, other),
    aten.gelu.default: torch.empty_like,
    aten.silu.default: torch.empty_like,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
}
"""Operations whose results are as large as they would be, but never computed."""
