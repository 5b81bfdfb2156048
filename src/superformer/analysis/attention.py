"""What tokens attend to: attention maps, and how far the keys are that a query attends to most (S3, figure 4).

The weights are those that the network itself computes, taken where torch computes them (a mode of torch that looks at
the functions called within it): no block has a second implementation here, and nothing is slower where nobody looks.
With talking heads (NASViT) they are P, after the softmax and before the second map across the heads. Where queries and
keys lie, every block says itself (`superformer.elastic.positions`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from superformer.elastic.positions import Places
from superformer.errors import SuperformerError
from superformer.families.network import Network
from superformer.space.arch import Arch

TOP = (5, 10)
"""Keys of figure 4."""
QUARTILES = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
MANY = 2**22
"""Numbers whose quantiles are computed; of more, evenly chosen ones."""


class _AttentionWatch(TorchFunctionMode):
    """Keeps the attention weights of every attention that is computed within it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            self.seen.append(_weights(*args, **(kwargs or {})))
        elif func is Tensor.softmax:
            self.seen.append(out)
        return out


def _weights(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, *, scale: float) -> Tensor:
    logits = scale * q @ k.transpose(-1, -2)
    return (logits if bias is None else logits + bias).softmax(-1)


@dataclass(frozen=True)
class Attended:
    """The attention of a block: ``weights`` (pictures, windows, heads, queries, keys), and where queries and keys are.
    ``patch``: pixels in a row that a token stands for."""

    stage: int
    block: int
    weights: Tensor
    places: Places
    patch: int

    @property
    def name(self) -> str:
        """As in figure 4: 3-7 is the seventh block of the third stage."""
        return f"{self.stage + 1}-{self.block + 1}"

    def map(self, row: int, col: int) -> Tensor:
        """What the token at a place attends to: (pictures, heads, rows, columns); 0 outside its window. A key that
        stands for several tokens is spread over them; the share of the class token is left out."""
        own = self.places
        found = (own.queries == torch.tensor([row, col], dtype=own.queries.dtype)).all(-1) & own.real
        if not found.any():
            size = f"{own.grid[0]} x {own.grid[1]}"
            raise SuperformerError(f"block {self.name} has no token at row {row}, column {col}: its map has {size}")
        window, query = (int(n) for n in found.nonzero()[0])
        corner = (own.keys[window] - (own.side - 1) / 2).round().long()
        there = own.pairs[window, query]
        weights = self.weights[:, window, :, query, there] / own.side**2
        out = weights.new_zeros(*weights.shape[:2], *own.grid)
        for spread in itertools.product(range(own.side), repeat=2):
            at = corner[there] + torch.tensor(spread)
            out[:, :, at[:, 0], at[:, 1]] = weights
        return out


@torch.no_grad()
def attended(net: Network, x: Tensor, arch: Arch | None = None, side: str = "left") -> Iterator[Attended]:
    """The attention, on pictures, of every block that attends of a sub-network (or a stand-alone one), in order."""
    arch, was = net._arch(arch), net.training
    net.eval()
    try:
        at = net.plan(arch, (int(x.shape[-2]), int(x.shape[-1])), side)
        x = net.embed(net.shared(x), at)
        for i, visits in enumerate(at.stages):
            x = net.enter(i, x, at)
            for k, visit in enumerate(visits):
                with _AttentionWatch() as watch:
                    x = visit.block(x, visit, at)
                if watch.seen:
                    where = visit.block.places(net, i, visit, at)
                    found = torch.cat(watch.seen).cpu()  # windows are among the pictures, or among the heads
                    weights = found.view(len(x), len(where.queries), -1, *found.shape[2:])
                    yield Attended(i, k, weights, where, net.reduction(arch, i))
    finally:
        net.train(was)


def top_distance(weights: Tensor, where: Places, k: int) -> Tensor:
    """The mean distance of each query of the picture to the ``k`` keys it attends to most, in tokens: (pictures, heads,
    queries).

    Keys that get no attention at all, or may get none, are never among them, nor is the class token. Of keys with equal
    weights that do not all fit, each counts in part: no order of the keys changes the result."""
    weights = weights.double().where(where.pairs[:, None], torch.zeros((), dtype=torch.float64))
    count = (weights > 0).sum(-1, keepdim=True).clamp(max=k)
    ordered = weights.topk(min(k, weights.shape[-1]), -1).values
    least = ordered.gather(-1, (count - 1).clamp(min=0))
    above, equal = weights > least, (weights == least) & (weights > 0)
    share = (count - above.sum(-1, keepdim=True)) / equal.sum(-1, keepdim=True).clamp(min=1)
    return _distances_of_real((above + equal * share) / count, where)


def mean_distance(weights: Tensor, where: Places) -> Tensor:
    """The same for the mean distance over all keys, each as much as it is attended to (the class token left out)."""
    weights = weights.double().where(where.pairs[:, None], torch.zeros((), dtype=torch.float64))
    return _distances_of_real(weights / weights.sum(-1, keepdim=True), where)


def _distances_of_real(shares: Tensor, where: Places) -> Tensor:
    """Of the queries in the picture, by the shares of their keys: (pictures, windows, heads, queries, keys)."""
    return (shares * where.distances[:, None]).sum(-1).permute(0, 2, 1, 3)[:, :, where.real]


def attention_distances(
    net: Network, batches: Iterable[Tensor], arch: Arch | None = None, tops: Sequence[int] = TOP
) -> list[dict[str, Any]]:
    """How far each block looks (figure 4, f and g), in pixels: a row for each that has queries in the picture.

    ``top5`` and ``top10``: the mean over pictures, heads and queries of the mean distance of their top keys;
    ``quartiles`` of these over pictures, heads and queries (its box plots), ``by_head`` their mean for each head;
    ``mean``: over all keys, by attention."""
    found, facts = dict[str, dict[str, list[Tensor]]](), dict[str, dict[str, Any]]()
    for x in batches:
        for one in attended(net, x, arch):
            if not one.places.real.any():
                continue  # class attention: only the class token asks
            heads, grid = int(one.weights.shape[2]), list(one.places.grid)
            facts[one.name] = {"stage": one.stage, "heads": heads, "patch": one.patch, "grid": grid}
            own = found.setdefault(one.name, {})
            for k in tops:
                own.setdefault(f"top{k}", []).append(one.patch * top_distance(one.weights, one.places, k))
            own.setdefault("mean", []).append(one.patch * mean_distance(one.weights, one.places))
    rows = []
    for name, lists in found.items():
        values = {key: torch.cat(parts) for key, parts in lists.items()}
        some = {key: v.flatten()[:: -(-v.numel() // MANY)] for key, v in values.items()}
        means = {key: float(v.nanmean()) for key, v in values.items()}
        quartiles = {key: torch.nanquantile(v, QUARTILES).tolist() for key, v in some.items()}
        by_head = {key: v.nanmean((0, 2)).tolist() for key, v in values.items()}
        rows.append({"block": name, **means, **facts[name], "quartiles": quartiles, "by_head": by_head})
    return rows
