"""Several architectures in one pass at full width, an equal part of the batch each (ViT-ResNAS, section 2.3, figure 6).

Tensors keep the full width; a mask of shape (batch, 1, channels) is one where an example's sub-network has a channel.
What layers compute otherwise than they are written, they compute here: a matrix's output is masked, layer norm takes
the mean and the variance of the kept channels only, heads that are not there are zeroed, and where a sub-network skips
a block its part of the batch passes by. A reader of the ordinary pass need not open this file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from superformer.elastic.axis import EMPTY, Axis, Packed, Pass, Selection, View, Visit
from superformer.elastic.layers import Conv2d, LayerNorm, Linear
from superformer.elastic.transformer import Attention
from superformer.space.arch import Arch, Values

if TYPE_CHECKING:
    from superformer.families.network import Network


@dataclass(frozen=True)
class Mask(Selection):
    """What the parts of a batch use of an axis: ``mask`` (batch, 1, channels)."""

    mask: Tensor

    @cached_property
    def count(self) -> Tensor:
        """How many channels each example has, (batch, 1, 1)."""
        return self.mask.sum(-1, keepdim=True)


def by_example(rows: NDArray[Any], part_size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Rows (parts, columns) as (batch, 1, columns), in one copy to the device and one there."""
    given = torch.from_numpy(rows).to(device, dtype)
    return given[:, None].expand(-1, part_size, -1).reshape(len(rows) * part_size, 1, rows.shape[1])


def masks_of(parts: Sequence[View], part_size: int, like: Tensor) -> dict[Axis, Mask]:
    """The mask of each axis that some sub-network names; one that does not name an axis has none of its channels."""
    axes = list({axis: None for view in parts for axis in view.selections})
    ends = np.cumsum([0, *(axis.size for axis in axes)])
    rows = np.zeros((len(parts), int(ends[-1])), dtype=np.float32)
    for row, view in zip(rows, parts, strict=True):
        for start, axis in zip(ends, axes, strict=False):
            for a, b in view.selections[axis].segments if axis in view.selections else ():
                row[start + a : start + b] = 1
    found = by_example(rows, part_size, like.device, like.dtype)
    return {
        axis: Mask(((0, axis.size),), axis.size, found[..., start : start + axis.size])
        for axis, start in zip(axes, ends.tolist(), strict=False)
    }


@dataclass(frozen=True)
class Part:
    """One sub-network's part of the batch: its rows, its own (sliced) view, and its values in a block (None: it skips
    it)."""

    rows: slice
    view: View
    values: Values | None = None


@dataclass(frozen=True)
class MaskedVisit(Visit):
    """A block, what each part of the batch does there, and (batch, 1, 1) which examples run it (None: all)."""

    parts: tuple[Part, ...]
    runs: Tensor | None


class MaskedView(View):
    """What all parts of the batch use, as masks."""

    def __init__(self, masks: dict[Axis, Mask], parts: tuple[Part, ...], joint: frozenset[str], side: str):
        super().__init__(masks, joint, side)
        self.masks, self.parts = masks, parts

    def keep(self, x: Tensor, axis: Axis, times: int = 1) -> Tensor:
        """Zero the channels that are not there."""
        if axis not in self.masks:
            return x
        mask = self.masks[axis].mask
        return x * (mask if times == 1 else mask.repeat(1, 1, times))

    def run(self, layer: nn.Module, x: Tensor, *more: Any, **words: Any) -> Tensor:
        if isinstance(layer, Attention):
            return self._attention(layer, x, *more)
        if isinstance(layer, LayerNorm):
            return self._layer_norm(layer, x)
        out = super().run(layer, x, *more, **words)
        if isinstance(layer, Linear | Conv2d):
            rows = layer.dims["weight"][0]
            assert isinstance(rows, Axis | Packed)
            return self.keep(out, rows.axis, rows.parts) if isinstance(rows, Packed) else self.keep(out, rows)
        return out

    def _layer_norm(self, layer: LayerNorm, x: Tensor) -> Tensor:
        """Masked layer norm (figure 6 d). The variance is that of the deviations, as in the ordinary layer norm, not
        the difference E[x^2] - E[x]^2 of the released code."""
        here = self.masks[layer.axis]
        off = (x - x.sum(-1, keepdim=True) / here.count) * here.mask
        spread = torch.rsqrt(off.square().sum(-1, keepdim=True) / here.count + layer.eps)
        return torch.addcmul(layer.bias * here.mask, off * spread, layer.weight)

    def _attention(self, layer: Attention, x: Tensor, visit: MaskedVisit, at: Pass) -> Tensor:
        """All heads together where those of all parts lie at the same places, else part by part."""
        inner = layer.inner
        if inner.unit > 1 and layer.qkv is not None and layer.scale == "head" and not self.joint:
            heads = inner.size // inner.unit
            y = self.keep(layer.mixed(x, EMPTY, heads, layer.factor(0, inner.size, heads), at), inner)
        else:
            outs = []
            for part in visit.parts:
                rows = x[part.rows]
                if part.values is None:
                    outs.append(rows.new_zeros(len(rows), 1 if layer.class_only else rows.shape[1], inner.size))
                    continue
                own, heads = part.view[inner], part.values.int("heads")
                scale = layer.factor(part.view[layer.embed].width, own.width, heads)
                view = View({inner: own}, part.view.joint, part.view.side)
                outs.append(placed(layer.mixed(rows, view, heads, scale, at), own, inner.size))
            y = torch.cat(outs)
        return layer.proj(y, self)

    def widened(self, x: Tensor, inp: Axis, out: Axis) -> Tensor:
        """After the last channel of each sub-network's own."""
        if all(part.view[axis].segments[0][0] == 0 for part in self.parts for axis in (inp, out)):
            return F.pad(x, (0, out.size - x.shape[-1]))
        outs = []
        for part in self.parts:
            own, new = part.view[inp], part.view[out]
            kept = torch.cat([x[part.rows, :, a:b] for a, b in own.segments], -1)
            outs.append(placed(F.pad(kept, (0, new.width - own.width)), new, out.size))
        return torch.cat(outs)


def placed(x: Tensor, selection: Selection, size: int) -> Tensor:
    """The selected channels of ``x`` back where they lie in a tensor of full width; zero elsewhere."""
    out, at = x.new_zeros(*x.shape[:-1], size), 0
    for start, stop in selection.segments:
        out[..., start:stop] = x[..., at : at + stop - start]
        at += stop - start
    return out


def plan(net: Network, archs: Sequence[Arch], part_size: int, x: Tensor, side: str) -> Pass:
    """One pass of several architectures."""
    own = [net.plan(arch, (int(x.shape[-2]), int(x.shape[-1])), side) for arch in archs]
    parts = tuple(Part(slice(k * part_size, (k + 1) * part_size), p.view) for k, p in enumerate(own))
    places = [net.positions(arch) for arch in archs]
    blocks: list[list[tuple[int, tuple[Part, ...]]]] = []  # by stage: a position, and what each part does there
    for i in range(len(net.stages)):
        pairs = zip(places, archs, strict=True)
        at = [dict(zip(where[i], arch.stages[i].blocks, strict=True)) for where, arch in pairs]
        todo = {p: [values.get(p) for values in at] for p in sorted(set().union(*at))}
        blocks.append([
            (p, tuple(Part(part.rows, part.view, v) for part, v in zip(parts, values, strict=True)))
            for p, values in todo.items()
        ])  # fmt: skip
    here = np.array([[part.values is not None for part in own] for stage in blocks for _, own in stage], dtype=bool)
    runs = by_example(here.T, part_size, x.device, torch.bool) if here.size else None
    stages, column = [], 0
    for i, stage in enumerate(blocks):
        visits = []
        for p, mine in stage:
            some = None if runs is None or here[column].all() else runs[..., column : column + 1]
            values = next(part.values for part in mine if part.values is not None)
            visits.append(MaskedVisit(net.stage(i).block(p), values, mine, some))
            column += 1
        stages.append(tuple(visits))
    view = MaskedView(masks_of([p.view for p in own], part_size, x), parts, net.sharing.joint, side)
    return Pass(archs[0], view, tuple(stages), own[0].grid, own[0].native, own[0].canvas)


def plans(net: Network, archs: Sequence[Arch], part_size: int, x: Tensor, side: str) -> list[tuple[int, Pass]]:
    """Runs of neighbours that can share one pass, each with how many rows of the batch it has."""
    out: list[tuple[int, Pass]] = []
    start = 0
    for stop in range(1, len(archs) + 1):
        if stop == len(archs) or net.masked_group(archs[stop]) != net.masked_group(archs[start]):
            rows = slice(start * part_size, stop * part_size)
            out.append((rows.stop - rows.start, plan(net, archs[start:stop], part_size, x[rows], side)))
            start = stop
    return out


def run(net: Network, x: Tensor, at: Pass) -> Tensor:
    """The stages and the final norm."""
    assert isinstance(at.view, MaskedView)
    x = at.view.keep(x, net.tokens_axis(0))
    for i, visits in enumerate(at.stages):
        x = net.enter(i, x, at)
        x = at.view.keep(x, net.tokens_axis(i)) if i else x
        for visit in visits:
            y = visit.block(x, visit, at)
            assert isinstance(visit, MaskedVisit)
            x = y if visit.runs is None else torch.where(visit.runs, y, x)
    return net.finish(x, at)
