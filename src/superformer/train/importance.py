"""What of a trained network may go first, measured on pictures: heads, hidden units, channels of tokens, blocks.

*Units.* A gate of value 1 on a unit (all that reads a head or a hidden unit; all that writes a channel of the tokens)
changes the loss of a picture by the sum of ``weight * gradient`` over those weights, to first order. The importance of
a unit is the mean square of that over pictures. With labels drawn from the network's own predictions this is the
gate's Fisher information: half of it is, to second order, how far the predictions of the network move (in KL
divergence) if the unit goes. It needs no labels, and does not vanish on pictures that the network has learned.

*Blocks.* The block without which the predictions move least goes first, then the next one of what is left: measured by
leaving blocks out, since a whole block is no small change.

Orders are nested: one serves every size, and a supernet with ordinal sharing (`superformer.train.warm_start`) keeps of
every width and depth what matters most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superformer import files
from superformer.elastic.axis import Pass
from superformer.elastic.layers import Table
from superformer.errors import SuperformerError
from superformer.families.network import Network
from superformer.progress import Tell
from superformer.train.channel_sort import Place, groups, move_units, token_groups

CHUNK = 32
"""Pictures that go through a network together."""


@dataclass(frozen=True)
class Orders:
    """``units``: by the name of a module and its axis, its units, those that matter most first. ``importance``: that of
    each unit, as they lie in the network. ``blocks``: of each stage, its positions in this order; ``moved``: how far
    the predictions had moved (KL divergence) when a block had gone, the last to stay first."""

    units: Mapping[str, tuple[int, ...]]
    importance: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    blocks: tuple[tuple[int, ...], ...] = ()
    moved: tuple[tuple[float, ...], ...] = ()
    pictures: int = 0

    def apply(self, net: Network) -> None:
        """Put the units of a network into this order; it computes the same function."""
        known = {name: (count, places) for name, count, places in (*groups(net), *token_groups(net))}
        for name, order in self.units.items():
            if name not in known or sorted(order) != list(range(known[name][0])):
                raise SuperformerError(f"this order is of another network: {name} has {len(order)} units in it")
        for name, order in self.units.items():
            move_units(known[name][1], torch.tensor(order))

    def text(self) -> str:
        """For people: which blocks go first."""
        lines = [f"{len(self.units)} groups of units ordered by {self.pictures} pictures"]
        for i, order in enumerate(self.blocks):
            first = ", ".join(str(p + 1) for p in order[:-5:-1])
            lines.append(f"stage {i + 1}: blocks {first} of {len(order)} go first")
        return "\n".join(lines)

    def save(self, path: Path) -> None:
        files.write_object(path, {
            "units": {k: list(v) for k, v in self.units.items()}, "blocks": [list(b) for b in self.blocks],
            "importance": {k: [float(f"{x:.4g}") for x in v] for k, v in self.importance.items()},
            "moved": [[float(f"{x:.4g}") for x in m] for m in self.moved], "pictures": self.pictures,
        })  # fmt: skip

    @staticmethod
    def load(path: Path) -> Orders:
        tree = files.read_object(path, "measure the importance again")
        with files.understood(path, "measure the importance again"):
            units = {str(k): tuple(int(x) for x in v) for k, v in tree["units"].items()}
            importance = {str(k): tuple(float(x) for x in v) for k, v in tree["importance"].items()}
            blocks = tuple(tuple(int(p) for p in b) for b in tree["blocks"])
            moved = tuple(tuple(float(x) for x in m) for m in tree["moved"])
            return Orders(units, importance, blocks, moved, int(tree["pictures"]))


def measure(
    net: Network, batches: Iterable[Tensor], block_pictures: Tensor, seed: int = 0, now: Tell = lambda text: None
) -> Orders:
    """The orders of a stand-alone network: of units by ``batches`` of pictures, of blocks by some others."""
    effects, pictures = unit_effects(net, batches, seed, now)
    blocks, moved = block_order(net, block_pictures, now)
    units = {name: tuple(torch.argsort(e, descending=True, stable=True).tolist()) for name, e in effects.items()}
    return Orders(units, {k: tuple(v.tolist()) for k, v in effects.items()}, blocks, moved, pictures)


def _gates(net: Network) -> list[tuple[str, int, list[Place]]]:
    """The weights that a gate of each unit multiplies: a matrix reads on its second dimension, all else writes."""
    found = []
    for name, count, places in groups(net):
        found.append((name, count, [p for p in places if p.tensor.ndim > 1 and p.dim == 1]))
    norms = {id(p) for m in net.modules() if isinstance(m, nn.LayerNorm | nn.BatchNorm2d) for p in m.parameters()}
    # added to the tokens as they are: positions, the class token
    tables = {id(m.weight) for m in net.modules() if isinstance(m, Table)}
    for name, count, places in token_groups(net):
        matrices = [p for p in places if isinstance(p.tensor, nn.Parameter) and id(p.tensor) not in norms]
        found.append((name, count, [p for p in matrices if p.dim == 0 or id(p.tensor) in tables]))
    return found


def unit_effects(
    net: Network, batches: Iterable[Tensor], seed: int = 0, now: Tell = lambda text: None
) -> tuple[dict[str, Tensor], int]:
    """The mean square effect of each unit's gate over pictures, and how many pictures there were."""
    gates = _gates(net)
    total = {name: torch.zeros(count, dtype=torch.float64) for name, count, _ in gates}
    generator, pictures, training = torch.Generator().manual_seed(seed), 0, net.training
    net.eval()
    for batch in batches:
        for x in torch.split(batch, 1):  # squares are those of single pictures
            net.zero_grad()
            logits = net(x)
            label = torch.multinomial(F.softmax(logits.detach().float().cpu(), -1), 1, generator=generator)[:, 0]
            F.cross_entropy(logits, label.to(logits.device)).backward()  # type: ignore[no-untyped-call]
            for name, count, places in gates:
                total[name] += torch.stack([_products(p, count) for p in places]).sum(0).square()
            pictures += 1
            now(f"importance of heads, hidden units and channels: {pictures} pictures")
    net.zero_grad()
    net.train(training)
    return {name: value / max(pictures, 1) for name, value in total.items()}, pictures


def _products(place: Place, count: int) -> Tensor:
    """The sum of weight * gradient over each unit."""
    if place.tensor.grad is None:
        return torch.zeros(count, dtype=torch.float64)
    product = (place.tensor.detach() * place.tensor.grad).transpose(0, place.dim)
    return product.reshape(place.parts, count, place.width, -1).sum((0, 2, 3)).cpu().double()


Blocks = list[list[int]]
"""Of each stage the positions that are left."""


@torch.inference_mode()
def block_order(
    net: Network, x: Tensor, now: Tell = lambda text: None
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[float, ...], ...]]:
    """Of each stage its blocks, the last to go first, and how far the predictions had moved when each went."""
    training, least = net.training, 0 if net.schema.opens else 1
    net.eval()
    at = net.plan(net.space.smallest(), (int(x.shape[-2]), int(x.shape[-1])))
    kept = [list(range(len(visits))) for visits in at.stages]
    gone: list[list[tuple[int, float]]] = [[] for _ in kept]
    whole, _ = _without_each(net, at, x, kept, [])
    rounds = sum(max(len(k) - least, 0) for k in kept)
    for n in range(rounds):
        now(f"importance of blocks: {n} of {rounds} have gone")
        tried = [(i, p) for i, own in enumerate(kept) if len(own) > least for p in own]
        _, found = _without_each(net, at, x, kept, tried)
        moved = [float((whole.exp() * (whole - other)).sum(-1).mean()) for other in found]
        first = min(range(len(tried)), key=moved.__getitem__)
        i, p = tried[first]
        kept[i].remove(p)
        gone[i].append((p, moved[first]))
    net.train(training)
    blocks = tuple((*own, *(p for p, _ in reversed(out))) for own, out in zip(kept, gone, strict=True))
    return blocks, tuple(tuple(moved for _, moved in reversed(out)) for out in gone)


def _without_each(
    net: Network, at: Pass, x: Tensor, kept: Blocks, tried: Sequence[tuple[int, int]]
) -> tuple[Tensor, list[Tensor]]:
    """The log-probabilities of the blocks that are left, and without each of some of them: what comes before such a
    block is computed once for all."""
    whole: list[Tensor] = []
    without: list[list[Tensor]] = [[] for _ in tried]
    for part in torch.split(x, CHUNK):
        now = _only(at, kept)
        y = net.embed(net.shared(part), now)
        for i, own in enumerate(kept):
            y = net.enter(i, y, now)
            for p in own:
                if (i, p) in tried:
                    shorter = [[q for q in k if (j, q) != (i, p)] for j, k in enumerate(kept)]
                    without[tried.index((i, p))].append(_rest(net, y, at, shorter, i, p))
                y = at.stages[i][p].block(y, at.stages[i][p], now)
        whole.append(_log_probabilities(net, y, now))
    return torch.cat(whole), [torch.cat(parts) for parts in without]


def _only(at: Pass, kept: Blocks) -> Pass:
    stages = tuple(tuple(visits[p] for p in own) for visits, own in zip(at.stages, kept, strict=True))
    return replace(at, stages=stages)


def _rest(net: Network, y: Tensor, at: Pass, kept: Blocks, stage: int, after: int) -> Tensor:
    """What follows a block of a stage."""
    now = _only(at, kept)
    for i in range(stage, len(kept)):
        y = net.enter(i, y, now) if i > stage else y
        for p in kept[i] if i > stage else [p for p in kept[i] if p > after]:
            y = at.stages[i][p].block(y, at.stages[i][p], now)
    return _log_probabilities(net, y, now)


def _log_probabilities(net: Network, y: Tensor, at: Pass) -> Tensor:
    return F.log_softmax(net.classify(net.finish(y, at), at).double(), -1)
