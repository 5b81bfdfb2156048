"""What tokens attend to: attention maps (S3, figures 4 and 8; ViTAS v1, figure 4), and how far the keys are that a
query attends to most (S3, figure 4).

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
from superformer.errors import SuperformerError, nearest
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
    ``patch``: pixels in a row that a token stands for. ``prefix``: tokens before those of the picture (the class
    token, registers), the first of them a ``class_token``."""

    stage: int
    block: int
    weights: Tensor
    places: Places
    patch: int
    prefix: int = 0
    class_token: bool = False

    @property
    def name(self) -> str:
        """As in figure 4: 3-7 is the seventh block of the third stage."""
        return f"{self.stage + 1}-{self.block + 1}"

    def map(self, row: int, col: int) -> Tensor:
        """What the token at a place attends to: (pictures, heads, rows, columns); 0 outside its window. A key that
        stands for several tokens is spread over them; the share of the class token is left out."""
        weights, corners = self.keys(row, col)
        return self.spread(weights, corners)

    def class_map(self) -> Tensor:
        """The same of the class token."""
        return self.spread(*self.class_keys())

    def keys(self, row: int, col: int) -> tuple[Tensor, Tensor]:
        """What the token at a place attends to, key by key: weights (pictures, heads, keys), and the first row and
        column of what each key stands for (keys, 2)."""
        own = self.places
        found = (own.queries == torch.tensor([row, col], dtype=own.queries.dtype)).all(-1) & own.real
        if not found.any():
            size = f"{own.grid[0]} x {own.grid[1]}"
            raise SuperformerError(f"block {self.name} has no token at row {row}, column {col}: its map has {size}")
        window, query = (int(n) for n in found.nonzero()[0])
        there = own.pairs[window, query]
        return self.weights[:, window, :, query, there], self._corners(window)[there]

    def class_keys(self) -> tuple[Tensor, Tensor]:
        """The same of the class token: its query comes first, and its keys are all tokens of the picture."""
        if not self.class_token:
            raise SuperformerError(f"block {self.name} has no class token: give query=0.25,0.25, a place")
        return self.weights[:, 0, :, 0, self.prefix :], self._corners(0)[self.prefix :]

    def _corners(self, window: int) -> Tensor:
        return (self.places.keys[window] - (self.places.side - 1) / 2).round().long()

    def spread(self, weights: Tensor, corners: Tensor) -> Tensor:
        """Weights of keys (pictures, heads, keys) as a map of all tokens; a key's is shared by those it stands for."""
        own = self.places
        out = weights.new_zeros(*weights.shape[:2], *own.grid)
        for step in itertools.product(range(own.side), repeat=2):
            at = corners + torch.tensor(step)
            out[:, :, at[:, 0], at[:, 1]] = weights / own.side**2
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
                    first = net.prefix_tokens(i), net.has_class_token(i)
                    yield Attended(i, k, weights, where, net.reduction(arch, i), *first)
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


# --- maps of one picture ---

STRONGEST, SHOWN = 5, 4
"""Keys that are numbered; blocks that are chosen where none are named."""


def attention_maps(
    net: Network,
    x: Tensor,
    arch: Arch | None = None,
    query: str | tuple[float, float] = (0.25, 0.25),
    blocks: Sequence[str] = (),
    heads: bool = False,
) -> list[dict[str, Any]]:
    """What a token of a picture (1, 3, height, width) attends to, block by block (S3, figure 4, b to e), in the mean of
    the heads or for each of them (figure 8).

    ``query``: its place, as shares of the height and the width, or ``"class"`` (ViTAS v1, figure 4). A row has the
    ``map`` (the share of each token; 0 where none is ``seen``) and the ``top`` five keys: first row and column, tokens
    in a row that it stands for, share."""
    of_class = isinstance(query, str)
    # where the class token alone asks, no place does
    every = [one for one in attended(net, x, arch) if (one.class_token if of_class else one.places.real.any())]
    if not every:
        whose = "a class token: give a place, query=0.25,0.25" if of_class else "tokens of the picture that attend"
        raise SuperformerError(f"no block of this network has {whose}")
    named = {one.name: one for one in every}
    for name in blocks:
        if name not in named:
            raise SuperformerError(f"no block {name!r} attends: {nearest(name, named)}")
    spaced = torch.linspace(0, len(every) - 1, min(SHOWN, len(every))).round().int().tolist()
    rows = []
    for one in [named[name] for name in blocks] or [every[k] for k in spaced]:
        grid, at = one.places.grid, None
        if isinstance(query, str):
            weights, corners = one.class_keys()
        else:
            at = [int(float(share) * n) for share, n in zip(query, grid, strict=True)]
            weights, corners = one.keys(*at)
        own = weights[0].double()  # (heads, keys)
        about = {"block": one.name, "query": at, "grid": list(grid), "patch": one.patch, "heads": len(own)}
        seen = one.spread(torch.ones_like(own)[None, :1], corners)[0, 0] > 0
        for head in range(len(own)) if heads else [None]:
            shares = own.mean(0) if head is None else own[head]
            best = shares.argsort(descending=True, stable=True)[:STRONGEST].tolist()
            top = [[*corners[k].tolist(), one.places.side, round(float(shares[k]), 6)] for k in best if shares[k] > 0]
            whole = one.spread(shares[None, None], corners)[0, 0]
            found = {"map": [[round(v, 6) for v in row] for row in whole.tolist()], "seen": seen.int().tolist()}
            rows.append({**about, "head": head, "top": top, **found})
    return rows
