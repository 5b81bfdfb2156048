"""Many sub-networks of a supernet on the same pictures, as a tree: networks that begin alike share the work up to where
they differ.

A node is a part of a network (what leads into a stage, or a block); its key says all that its output depends on beyond
its parent's. A path from the root to a leaf is a network. The tree is walked depth first, so one activation for each
part of the current path is in memory.

Batch norm fits in: the statistics of a norm depend on nothing that comes after it, so they are estimated node by node,
from batches of training pictures that walk along the first time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from superformer.elastic.axis import Pass, Visit
from superformer.elastic.conv import BatchNorm, averaged
from superformer.families.network import Network
from superformer.space.arch import Arch

Forward = Callable[[Tensor], Tensor]
Statistics = list[tuple[Tensor, Tensor]]


@dataclass
class Node:
    """A part that runs once for all networks below it."""

    run: Forward
    norms: list[BatchNorm] = field(default_factory=list)
    children: dict[object, Node] = field(default_factory=dict)
    leaf: int | None = None
    statistics: Statistics | None = None

    def child(self, key: object, run: Forward, modules: Sequence[nn.Module]) -> Node:
        if key not in self.children:
            norms = [m for module in modules for m in module.modules() if isinstance(m, BatchNorm)]
            self.children[key] = Node(run, norms)
        return self.children[key]

    def __len__(self) -> int:
        """The parts below this one."""
        return sum(1 + len(child) for child in self.children.values())

    def prune(self, keep: Set[int]) -> bool:
        """Cut off the networks that are not to be kept; whether any is left below."""
        self.children = {key: child for key, child in self.children.items() if child.prune(keep)}
        return bool(self.children) or self.leaf in keep

    def forward(self, x: Tensor, calibration: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The output for pictures, and for the training pictures that estimate its norms (none: they were estimated
        before)."""
        after = self._estimate(calibration) if calibration else []
        for norm, (mean, var) in zip(self.norms, self.statistics or (), strict=bool(self.statistics)):
            for running, estimated in zip(_running(norm), (mean, var), strict=True):
                running.copy_(estimated)
        return self.run(x), after

    def _estimate(self, calibration: Sequence[Tensor]) -> list[Tensor]:
        for norm in self.norms:
            norm.reset_running_stats()
            norm.train()
        after = [self.run(x) for x in averaged(self.norms, calibration)]
        for norm in self.norms:
            norm.eval()
        self.statistics = [(mean.clone(), var.clone()) for mean, var in map(_running, self.norms)]
        return after


def _running(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean, norm.running_var


def prefix_order(archs: Sequence[Arch]) -> list[int]:
    """The places of architectures in an order in which those that begin alike follow one another."""

    def prefix(arch: Arch) -> tuple[object, ...]:
        stages = tuple((repr(s.choices), s.at or (), tuple(map(repr, s.blocks))) for s in arch.stages)
        return arch.resolution, repr(arch.choices), stages

    return sorted(range(len(archs)), key=lambda k: prefix(archs[k]))


def grow(net: Network, archs: Sequence[Arch], size: tuple[int, int], side: str = "left") -> Node:
    """The tree of architectures of a supernet, for pictures of one size; ``leaf`` is an architecture's place in the
    list."""
    root = Node(net.shared)
    for k, arch in enumerate(archs):
        node = root
        for key, run, modules in _parts(net, net.plan(arch, size, side), k):
            node = node.child(key, run, modules)
        node.leaf = k
    return root


def _parts(net: Network, at: Pass, leaf: int) -> Iterator[tuple[object, Forward, list[nn.Module]]]:
    """The parts of a network, each with all that its output depends on beyond the part before, and the modules whose
    norms it uses. The end is each network's own."""
    arch, outside = at.arch, [child for child in net.children() if child is not net.stages]
    for i, (own, places) in enumerate(zip(arch.stages, net.positions(arch), strict=True)):
        key: object = (own.choices, len(own.blocks) if net.depth_matters else bool(own.blocks))
        if i == 0:
            key = (arch.resolution, arch.choices, key)
        modules = (outside if i == 0 else []) + [m for m in (net.stage(i).enter,) if m is not None]
        yield key, functools.partial(_enter, net, i, at), modules
        for step, place in zip(at.stages[i], places, strict=True):
            yield (place, step.values), functools.partial(_block, step, at), [step.block]
    yield ("end", leaf), lambda x: net.classify(net.finish(x, at), at), outside


def _enter(net: Network, stage: int, at: Pass, x: Tensor) -> Tensor:
    return net.enter(stage, net.embed(x, at) if stage == 0 else x, at)


def _block(visit: Visit, at: Pass, x: Tensor) -> Tensor:
    out: Tensor = visit.block(x, visit, at)
    return out


@torch.no_grad()
def walk(root: Node, x: Tensor, calibration: Sequence[Tensor] = ()) -> Iterator[tuple[int, Tensor]]:
    """The logits of every network, as (place in the list, logits).

    ``calibration``: batches of training pictures, for the first pictures that walk through a tree with batch norms."""
    x, also = root.forward(x, calibration)
    stack = [(child, x, also) for child in reversed(root.children.values())]
    while stack:
        node, x, also = stack.pop()
        x, also = node.forward(x, also)
        if node.leaf is not None:
            yield node.leaf, x
        stack += [(child, x, also) for child in reversed(node.children.values())]
