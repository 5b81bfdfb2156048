"""Channel sorting ("rewiring"): heads and hidden units in the order of their importance, without changing the function.

With ordinal sharing a small sub-network has the first channels of every axis. Sorting makes these the important ones:
at a warm start (`superformer.train.warm_start`), or every epoch in the first part of a training (ViT-ResNAS's released
code; not in its paper). The importance of a unit is the L1 norm of all weights that belong to it: of a hidden unit its
row of fc1, its bias and its column of fc2; of a head its rows of q, k and v, their biases and its columns of the
projection. The channels of the tokens are never re-ordered: residuals and norms tie them through the whole network.

One function serves all families: a module with axes that begin and end within it says which (``sortable(heads)``, with
the numbers of heads that its block may have, gives `superformer.elastic.axis.Units`), and the layers say which of their
tensors lie on these axes (`Elastic.dims`). Depthwise kernels, batch norms with their statistics, squeeze-excite, tables
of relative positions and talking heads (both dimensions) move with the channels they belong to. NASViT's last
convolution stays: its channels are the features.

Two departures from the released code: the optimiser's moments can follow (`Order.follow`), and so can averaged weights
(`Order.apply`); where one matrix serves several head counts that divide it evenly (ViTAS), only parts that are whole
heads for each of them move, so that every network of the full attention width computes what it did, q and k private to
a head count included (counts without a common divisor: nothing moves). Where such head counts also share Swin's tables,
this holds for the largest of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from superformer.elastic.axis import Axis, Packed, Units
from superformer.elastic.layers import Elastic
from superformer.errors import SuperformerError
from superformer.families.network import Network


@dataclass(frozen=True)
class Place:
    """A dimension of a tensor on which units lie: ``parts`` times all of them, each of ``width`` channels."""

    tensor: Tensor
    dim: int
    parts: int
    width: int

    def norms(self, count: int) -> Tensor:
        """The L1 norm of each unit."""
        rows = self.tensor.detach().double().abs().transpose(0, self.dim)
        return rows.reshape(self.parts, count, self.width, -1).sum((0, 2, 3))

    def index(self, order: Tensor) -> Tensor:
        """Which channel comes where, if the units come in this order."""
        units = order[:, None] * self.width + torch.arange(self.width, device=order.device)
        shifts = torch.arange(self.parts, device=order.device) * len(order) * self.width
        return (shifts[:, None] + units.flatten()).flatten()


def groups(net: Network) -> Iterator[tuple[str, int, list[Place]]]:
    """Heads and hidden units: the name of their module and axis, how many there are, and where they lie."""
    for i, stage in enumerate(net.space.stages):
        own = net.stage(i)
        cells: list[tuple[str, nn.Module, tuple[int, ...]]] = [] if own.enter is None else [("enter", own.enter, ())]
        cells += [(f"blocks.{p}", own.block(p), net.space.widths("heads", i, p)) for p in range(stage.positions)]
        for cell, top, heads in cells:
            for name, module in top.named_modules(prefix=f"stages.{i}.{cell}"):
                sortable = getattr(module, "sortable", None)
                for units in sortable(heads) if sortable is not None else ():
                    yield f"{name}.{units.axes[0].name}", units.count, list(places(module, units))


def token_groups(net: Network) -> Iterator[tuple[str, int, list[Place]]]:
    """The channels of the tokens, which residuals and norms tie through a whole stage or network."""
    for axis in net.token_channels():
        yield axis.name, axis.size, list(places(net, Units((axis,), axis.size)))


def places(module: nn.Module, units: Units) -> Iterator[Place]:
    for layer in module.modules():
        for name, dims in layer.dims.items() if isinstance(layer, Elastic) else ():
            for k, dim in enumerate(dims):
                axis, parts = (dim.axis, dim.parts) if isinstance(dim, Packed) else (dim, 1)
                if any(axis is own for own in units.axes):
                    assert isinstance(axis, Axis)
                    yield Place(getattr(layer, name), k, parts, axis.size // units.count)


def _importance(count: int, places: Sequence[Place]) -> Tensor:
    """The L1 norms of units, over all weights they lie on (not the statistics of norms)."""
    return torch.stack([p.norms(count) for p in places if isinstance(p.tensor, nn.Parameter)]).sum(0)


def importances(net: Network) -> dict[str, Tensor]:
    """The L1 norms of heads and hidden units, by the name of their module and axis."""
    return {name: _importance(count, places) for name, count, places in groups(net)}


@dataclass(frozen=True)
class Order:
    """A re-ordering that was applied to a network: by a tensor's name, and for each dimension that moved, which old
    channel comes where. What else has the form of its weights can follow."""

    moves: Mapping[str, Mapping[int, Tensor]]

    @torch.no_grad()
    def apply(self, tensors: Mapping[str, Tensor]) -> None:
        """Re-order, in place, tensors under the names of the network's, such as the ``state_dict()`` of a copy."""
        done = set()  # types of Twins may share one tensor
        for name, tensor in tensors.items():
            which = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape)
            if name in self.moves and which not in done:
                done.add(which)
                _move(tensor, self.moves[name])

    @torch.no_grad()
    def follow(self, optimizer: torch.optim.Optimizer, net: nn.Module) -> None:
        """Re-order, in place, what an optimiser of the network's parameters keeps in their shape: its moments. State in
        another shape (the factored moments of Adafactor) stays as it is."""
        for name, p in net.named_parameters():
            for value in optimizer.state.get(p, {}).values() if name in self.moves else ():
                if isinstance(value, Tensor) and value.shape == p.shape:
                    _move(value, self.moves[name])


def _move(tensor: Tensor, moves: Mapping[int, Tensor]) -> None:
    for dim, index in moves.items():
        tensor.copy_(tensor.index_select(dim, index.to(tensor.device)))


@torch.no_grad()
def move_units(where: Sequence[Place], order: Tensor) -> list[tuple[Place, Tensor]]:
    """Put units into another order wherever they lie; which old channel came where."""
    found = [(place, place.index(order)) for place in where]
    for place, index in found:
        _move(place.tensor, {place.dim: index})
    return found


@torch.no_grad()
def sort_channels(net: Network) -> Order:
    """Put the important heads and hidden units of a network, or of a supernet with ordinal sharing, first.

    The largest network computes the same function; smaller sub-networks now have more important channels. Call it
    between two steps: gradients are not moved."""
    if net.space.size > 1 and net.sharing.rule != "ordinal":
        why = "channels are sorted with ordinal sharing, whose small networks have the first ones"
        raise SuperformerError(f"{why}; this supernet's is {net.sharing.rule}")
    moved: dict[int, dict[int, Tensor]] = {}
    for _, count, places in groups(net):
        order = torch.argsort(_importance(count, places), descending=True, stable=True)
        if torch.equal(order, torch.arange(count, device=order.device)):
            continue
        for place, index in move_units(places, order):
            moved.setdefault(id(place.tensor), {})[place.dim] = index
    every = [*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False)]
    return Order({name: moved[id(tensor)] for name, tensor in every if id(tensor) in moved})
