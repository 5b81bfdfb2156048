"""Warm starts: a supernet begins with the weights of a network, or of the supernet of another space.

Copied is what fits: stage by stage, block by block, of each tensor the part that both have. Where widths differ, that
is the part which the narrower width uses of the wider one, as the sharing rule says (ordinal: the first channels);
kernels and tables of distances share their middle; what is private to a choice (a patch size, a type, a depth) goes to
the same choice, and q, k and v of a head count or the table of a window that the source has not come from the nearest
that it has. Position tables of another grid are resized. A classifier is copied if the classes are as many. What
nothing fits keeps its initial values, such as the blocks that a deeper supernet has at the end of a stage. Channels of
the tokens and heads of another width are taken as they come: the first channels go to the first ones.

* `from_network`: a stand-alone network of the family, such as a pretrained one
  (`superformer.interop.timm_weights.from_timm`). Its heads and hidden units are first ordered by importance
  (`superformer.train.channel_sort`; measured on pictures: `superformer.train.importance`), so that what narrow
  sub-networks get is its best part. If its architecture is in
  the space, the supernet computes the network's function there, exactly.
* `from_supernet`: S3 evolves the space, and the next supernet inherits what fits of the one before it."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superformer.elastic.axis import Axis, Dim, Packed, Selection, View, size
from superformer.elastic.layers import Elastic, Linear, PerChoice, Table
from superformer.elastic.positions import resized
from superformer.elastic.relative import RelativePosition
from superformer.elastic.transformer import Attention
from superformer.errors import SuperformerError
from superformer.families.network import Network
from superformer.families.weights import Mapped, pieces
from superformer.kernels.slices import Index, Segments, gather, scatter
from superformer.recipes.settings import Start
from superformer.runs import Run
from superformer.runs.storage import load_network, load_supernet
from superformer.sharing import Sharing
from superformer.space.arch import Arch
from superformer.train.channel_sort import sort_channels
from superformer.train.importance import Orders
from superformer.train.pretrained import from_timm_settings


@dataclass(frozen=True)
class Report:
    """What a warm start copied.

    ``weights``: the supernet's; ``copied``: how many of them now have a value of the source. ``missing`` and
    ``partial``: its parameters of which nothing, or not everything, was copied. ``unused``: tensors of the source that
    fit nowhere. ``arch``: the architecture at which the supernet is the source, if it is in the space."""

    source: str
    target: str
    weights: int
    copied: int
    missing: tuple[str, ...]
    partial: tuple[str, ...]
    unused: tuple[str, ...]
    arch: Arch | None = None

    @property
    def share(self) -> float:
        return self.copied / max(self.weights, 1)

    def text(self) -> str:
        """The same for people, a few lines."""
        lines = [f"{self.target} starts from {self.source}: {self.share:.1%} of {self.weights:,} weights were copied"]
        if self.arch is not None:
            lines.append("that network is in the space, and the supernet computes its function there")
        listed = {"not copied": self.missing, "copied in part": self.partial, "not used of the source": self.unused}
        for what, names in listed.items():
            where = Counter(".".join(name.split(".")[:4]) for name in names)  # tensors of a block together
            first = [f"{name} ({count} tensors)" if count > 1 else name for name, count in list(where.items())[:6]]
            if names:
                more = f", and {len(where) - 6} more" if len(where) > 6 else ""
                lines.append(f"{what}: {', '.join(first)}{more}")
        return "\n".join(lines)


def from_settings(net: Network, settings: Start) -> Report | None:
    """Weights to begin with, from an earlier run, a stand-alone network or a timm network; None if there are none."""
    given = [name for name in ("run", "network", "timm") if getattr(settings, name) is not None]
    if len(given) > 1:
        raise SuperformerError(f"start.{given[0]} and start.{given[1]} are two beginnings: give one of them")
    orders = Orders.load(Path(settings.orders)) if settings.orders is not None else None
    if orders is not None and settings.network is None and settings.timm is None:
        raise SuperformerError("start.orders goes with a network that it is of: start.network or start.timm")
    if settings.run is not None:
        return from_supernet(net, load_supernet(Run.open(settings.run).supernet_file))
    if settings.network is not None:
        return from_network(net, load_network(settings.network).net, orders)
    if settings.timm is None:
        return None
    model = from_timm_settings(settings, net.space.widths("resolution")[-1])
    return from_network(net, model, orders)


def from_network(net: Network, model: Network, orders: Orders | None = None) -> Report:
    """Put a stand-alone network into a supernet of any space of its family. The classifier goes with it if it has as
    many classes. ``orders``: how its units are put first (`superformer.train.importance`); else by their weights."""
    if model.space.size > 1:
        what = f"{model.space.name} is a supernet, not a stand-alone network"
        raise SuperformerError(f"{what}: use from_supernet, or extract one of it")
    _check_family(net, model)
    ordered = copy.deepcopy(model)
    if orders is None:
        sort_channels(ordered)
    else:
        orders.apply(ordered)
    draft = _Draft(net, ordered)
    arch = model.space.smallest()
    if arch not in net.space:
        return draft.finish()
    draft.exactly(pieces(net, arch), ordered.state_dict(keep_vars=True))
    return draft.finish(arch if net.num_classes == model.num_classes and net.in_chans == model.in_chans else None)


def from_supernet(net: Network, other: Network) -> Report:
    """Put the supernet of another space of the same family into a supernet."""
    _check_family(net, other)
    return _Draft(net, other).finish()


def _check_family(net: Network, other: Network) -> None:
    if net.space.family != other.space.family:
        what = f"a supernet of the family {net.space.family} ({net.space.name})"
        source = f"a {other.space.family} network ({other.space.name})"
        raise SuperformerError(f"{what} cannot start from {source}; give it one of its own family")


@dataclass(frozen=True)
class _Part:
    """A tensor and the dimensions it lies on, or so many of its rows. ``prefix``: of a table of positions."""

    tensor: Tensor
    dims: tuple[Dim, ...]
    rows: tuple[int, int] | None = None
    prefix: int | None = None

    def of(self, values: Tensor) -> Tensor:
        """This part of a tensor in the whole one's shape."""
        return values if self.rows is None else values[slice(*self.rows)]


class _Draft:
    """The new values of a network's tensors, kept apart until all are known: an error leaves the network as it was.

    Modules correspond by place (`modules`), their tensors by name, and parts of these by their axes (`overlap`)."""

    def __init__(self, net: Network, other: Network):
        self.net, self.other = net, other
        self.values = {id(t): t.detach().clone() for t in (*net.parameters(), *net.buffers())}
        self.known = {key: torch.zeros_like(value, dtype=torch.bool) for key, value in self.values.items()}
        self.read: set[int] = set()
        self.children(net, other, skip=("stages",))
        for i, stage in enumerate(net.space.stages[: len(other.stages)]):
            mine, theirs = net.stage(i), other.stage(i)
            if mine.enter is not None and theirs.enter is not None:
                self.modules(mine.enter, theirs.enter)
            count = min(len(theirs.blocks), stage.positions)
            # where a network of this depth has its blocks, if the space has this depth; else one after another
            here, there = (
                s.placement(count) if count in s.depths else range(count) for s in (stage, other.space.stages[i])
            )
            for p, k in zip(here, there, strict=True):
                self.modules(mine.block(p), theirs.block(k))

    def modules(self, mine: nn.Module, theirs: nn.Module) -> None:
        if isinstance(mine, PerChoice) and isinstance(theirs, PerChoice):
            for key, child in mine.items():
                if (source := _source_key(mine.choice, key, theirs)) is not None:
                    self.modules(child, theirs[source])
        elif isinstance(mine, PerChoice):  # a stand-alone network has one module in its place
            for child in mine.values():
                self.modules(child, theirs)
        elif isinstance(theirs, PerChoice):
            self.modules(mine, theirs[max(theirs, key=int)])
        elif isinstance(mine, RelativePosition) and isinstance(theirs, RelativePosition):
            self.relative(mine, theirs)
        elif isinstance(mine, Attention) and isinstance(theirs, Attention) and (mine.qkv is None or theirs.qkv is None):
            self.private(mine, theirs)
            self.children(mine, theirs, skip=("qkv", "qk", "v"))
        else:
            sources = dict(_parts(theirs))
            for name, part in _parts(mine):
                if name in sources:
                    self.copy(part, sources[name])
            self.children(mine, theirs)

    def children(self, mine: nn.Module, theirs: nn.Module, skip: tuple[str, ...] = ()) -> None:
        sources = dict(theirs.named_children())
        for name, child in mine.named_children():
            if name in sources and name not in skip:
                self.modules(child, sources[name])

    def private(self, mine: Attention, theirs: Attention) -> None:
        """q, k and v where a network has some of them for each head count: from the same count, or the nearest."""
        sources = _heads_parts(theirs)
        for role, slots in _heads_parts(mine).items():
            for heads, parts in slots:
                wanted = max(heads)
                _, found = min(sources[role], key=lambda slot: (wanted not in slot[0], abs(max(slot[0]) - wanted)))
                for part, source in zip(parts, found, strict=True):
                    self.copy(part, source)

    def copy(self, to: _Part, source: _Part) -> None:
        """The part of a tensor that both have."""
        prefix = source.prefix if source.prefix == to.prefix else None
        value, own = _stretched(source.of(source.tensor.detach()), source.dims, to.dims, prefix)
        both = [self.overlap(a, b) for a, b in zip(to.dims, own, strict=True)] if len(own) == len(to.dims) else [None]
        if None not in both:
            pairs = [pair for pair in both if pair is not None]
            self.put(to, tuple(a for a, _ in pairs), gather(value, tuple(b for _, b in pairs)))
            self.read.add(id(source.tensor))

    def overlap(self, mine: Dim, theirs: Dim) -> tuple[Segments | None, Segments | None] | None:
        """The runs of channels that correspond in two dimensions (None: all); none if they have no common meaning."""
        if isinstance(mine, int) or isinstance(theirs, int):
            return (None, None) if size(mine) == size(theirs) else None
        a, b = (dim.axis if isinstance(dim, Packed) else dim for dim in (mine, theirs))
        if size(mine) * b.size != size(theirs) * a.size or (a.name == "classes" and a.size != b.size):
            return None
        if a.kind == b.kind == "private":
            common = [w for w in a.widths if w in b.widths]
            runs = [tuple((axis.widths.index(w), axis.widths.index(w) + 1) for w in common) for axis in (a, b)]
            return (runs[0], runs[1]) if common else None
        width, middle = min(a.size, b.size), "centred" in (a.kind, b.kind)
        return _run(mine, a, width, middle, self.net.sharing), _run(theirs, b, width, middle, self.other.sharing)

    def relative(self, mine: RelativePosition, theirs: RelativePosition) -> None:
        """Tables of an entry for the class token and one for each distance up to a reach: those that both have."""
        reach, dim = min(mine.reach, theirs.reach), ((0, min(mine.head_dim, theirs.head_dim)),)
        here, there = (((0, 1), (1 + r - reach, 2 + r + reach)) for r in (mine.reach, theirs.reach))
        for name, table in mine.named_children():
            (_, to), (_, source) = next(_parts(table)), next(_parts(getattr(theirs, name)))
            self.put(to, (here, dim), gather(source.tensor.detach(), (there, dim)))
            self.read.add(id(source.tensor))

    def exactly(self, mapped: Mapped, state: Mapping[str, Tensor]) -> None:
        """A network where the supernet has its architecture; what has another shape there (a classifier) stays."""
        for name, found in mapped.items():
            source = state.get(name)
            shapes = [p.read().shape for p in found]
            whole = torch.Size((sum(s[0] for s in shapes), *shapes[0][1:]) if shapes[0] else ())
            if source is None or source.shape != whole:
                continue
            self.read.add(id(source))
            values = torch.split(source.detach(), [s[0] for s in shapes]) if source.ndim else (source.detach(),)
            for piece, value in zip(found, values, strict=True):
                self.put(_Part(piece.tensor, ()), piece.index, value)

    def put(self, to: _Part, index: Index, value: Tensor) -> None:
        target = to.of(self.values[id(to.tensor)])
        scatter(target, index, value.to(target.device, target.dtype))
        scatter(to.of(self.known[id(to.tensor)]), index, torch.ones_like(value, dtype=torch.bool))

    @torch.no_grad()
    def finish(self, arch: Arch | None = None) -> Report:
        for tensor in (*self.net.parameters(), *self.net.buffers()):
            tensor.copy_(self.values[id(tensor)])
        known = {name: self.known[id(p)] for name, p in self.net.named_parameters()}
        weights, copied = (
            sum(mask.numel() for mask in known.values()),
            sum(int(mask.sum()) for mask in known.values()),
        )
        missing = tuple(name for name, mask in known.items() if not mask.any())
        partial = tuple(name for name, mask in known.items() if mask.any() and not mask.all())
        unused = tuple(name for name, p in self.other.named_parameters() if id(p) not in self.read)
        return Report(self.other.space.name, self.net.space.name, weights, copied, missing, partial, unused, arch)


def _source_key(choice: str, key: str, theirs: PerChoice) -> str | None:
    """Modules are private to a value of a choice; only tables of windows and of positions can also be made of those of
    the nearest window or input size."""
    if key in theirs or choice not in ("window", "resolution"):
        return key if key in theirs else None
    return min(theirs, key=lambda other: abs(int(other) - int(key)))


def _parts(module: nn.Module) -> Iterator[tuple[str, _Part]]:
    """The tensors that a module itself has."""
    prefix = module.prefix if isinstance(module, Table) else None
    for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        dims = module.dims[name] if isinstance(module, Elastic) else tuple(tensor.shape)
        yield name, _Part(tensor, dims, prefix=prefix)


Slot = tuple[tuple[int, ...], list[_Part]]
"""The head counts that a matrix serves, its weight and its bias."""


def _heads_parts(attn: Attention) -> dict[str, list[Slot]]:
    """The matrices of q, of k and of v."""
    out: dict[str, list[Slot]] = {"q": [], "k": [], "v": []}

    def add(roles: str, layer: nn.Module, heads: tuple[int, ...]) -> None:
        assert isinstance(layer, Linear)
        for n, role in enumerate(roles):
            rows = (n * attn.inner.size, (n + 1) * attn.inner.size)
            parts = [_Part(part.tensor, (attn.inner, *part.dims[1:]), rows) for _, part in _parts(layer)]
            out[role].append((heads, parts))

    if attn.qkv is not None:
        add("qkv", attn.qkv, attn.heads)
    for roles, layers in (("qk", attn.qk), ("v", attn.v)):
        for key, layer in layers.items() if layers is not None else ():
            add(roles, layer, attn.heads if key == "all" else (int(key),))
    return out


def _run(dim: Dim, axis: Axis, width: int, middle: bool, sharing: Sharing) -> Segments | None:
    """What a width uses of a dimension."""
    start = (axis.size - width) // 2
    runs = ((start, start + width),) if middle else sharing.segments(axis, width)
    return View({axis: Selection(runs, width)}, sharing.joint).segments(dim)


def _stretched(
    table: Tensor, own: tuple[Dim, ...], dims: tuple[Dim, ...], prefix: int | None
) -> tuple[Tensor, tuple[Dim, ...]]:
    """A table of positions (positions, channels) or of distances (rows, columns, heads) in the wanted size, and its
    dimensions."""
    if not own or not dims:
        return table, own
    *sizes, last = own
    *wanted, _ = dims
    numbers = [n for n in (*sizes, *wanted) if isinstance(n, int)]
    if sizes == wanted or len(numbers) != len(sizes) + len(wanted) or isinstance(last, int):
        return table, own
    if len(numbers) == 4:
        picture = table.double().permute(2, 0, 1)[None]
        value = F.interpolate(picture, size=numbers[2:], mode="bicubic", align_corners=False)[0].permute(1, 2, 0)
        return value.to(table.dtype), (*wanted, last)
    if prefix is not None:
        old, new = (math.isqrt(n - prefix) for n in numbers)
        value = resized(table.double(), (old, old), (new, new), prefix, antialias=True)  # as timm does
        return value.to(table.dtype), (*wanted, last)
    return table, own
