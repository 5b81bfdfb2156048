"""The mapping of weights between a supernet and the stand-alone network of one of its architectures, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from superformer.elastic.axis import View
from superformer.elastic.layers import Elastic, Optional, PerChoice
from superformer.elastic.transformer import Attention
from superformer.errors import SuperformerError
from superformer.kernels.slices import Index, gather, scatter
from superformer.space import point
from superformer.space.arch import Arch, Values

if TYPE_CHECKING:
    from superformer.families.network import Network

N = TypeVar("N", bound="Network")


@dataclass(frozen=True)
class Piece:
    """A part of one of the supernet's tensors."""

    tensor: Tensor
    index: Index

    def read(self) -> Tensor:
        return gather(self.tensor.detach(), self.index)


Mapped = dict[str, list[Piece]]
"""For each tensor of a stand-alone network the pieces of the supernet that make it, one after another along its first
dimension."""


def pieces(net: Network, arch: Arch, side: str = "left") -> Mapped:
    """Where each tensor of an architecture's stand-alone network lies in a supernet."""
    view, positions = net.view(arch, side), net.positions(arch)
    top, out = Values({**arch.choices, "resolution": arch.resolution}), Mapped()
    for name, child in net.named_children():
        if child is not net.stages:
            out |= _module(child, f"{name}.", view, top)
    for i, own in enumerate(arch.stages):
        stage = net.stage(i)
        scope = Values({**top, **own.choices})
        if stage.enter is not None:
            out |= _module(stage.enter, f"stages.{i}.enter.", view, scope)
        for k, (values, p) in enumerate(zip(own.blocks, positions[i], strict=True)):
            out |= _module(stage.block(p), f"stages.{i}.blocks.{k}.", view, Values({**scope, **values}))
    return out


def _module(module: nn.Module, prefix: str, view: View, values: Values) -> Mapped:
    if isinstance(module, Attention):
        return _attention(module, prefix, view, values)
    out: Mapped = {}
    if isinstance(module, PerChoice):
        key = module.key(values)
        return _module(module[key], prefix if module.bare else f"{prefix}{key}.", view, values)
    for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        index = module.index(name, view) if isinstance(module, Elastic) else (None,) * tensor.ndim
        out[prefix + name] = [Piece(tensor, index)]
    unused = module.unused(view) if isinstance(module, Optional) else ()
    for name, child in module.named_children():
        if name not in unused:
            out |= _module(child, f"{prefix}{name}.", view, values)
    return out


def _attention(attn: Attention, prefix: str, view: View, values: Values) -> Mapped:
    """q, k and v, private or shared in the supernet, are one packed matrix in the stand-alone network."""
    layers = [layer for layer, _ in attn.parts(values.int("heads"))]
    out: Mapped = {
        f"{prefix}qkv.{name}": [Piece(getattr(layer, name), layer.index(name, view)) for layer in layers]
        for name in ("weight", "bias")
    }
    for name, child in attn.named_children():
        if name not in ("qkv", "qk", "v"):
            out |= _module(child, f"{prefix}{name}.", view, values)
    return out


def extract(net: N, arch: Arch, side: str = "left", **settings: Any) -> N:
    """A network of the space of one point, with a copy of the selected weights."""
    net.sharing.check_side(side)
    mapped = pieces(net, arch, side)
    with torch.device("meta"):
        out = type(net)(point(arch.canonical()), net.num_classes, in_chans=net.in_chans, **settings)
    out.load_state_dict({name: _read(mapped[name]) for name in out.state_dict()}, assign=True)
    for p in out.parameters():
        p.requires_grad_(True)
    return out.train(net.training)


def _read(parts: list[Piece]) -> Tensor:
    if len(parts) > 1:
        return torch.cat([p.read() for p in parts])
    return parts[0].read().clone(memory_format=torch.contiguous_format)


def absorb(net: Network, arch: Arch, state: Mapping[str, Tensor], side: str = "left") -> None:
    """Write the weights of an architecture's stand-alone network into a supernet (the opposite of `extract`)."""
    mapped = pieces(net, arch, side)
    unknown = sorted(set(state) - set(mapped))
    missing = sorted(set(mapped) - set(state) - {k for k in mapped if k.startswith(net.training_only)})
    if unknown or missing:
        what = f"unknown {unknown[:3]}, missing {missing[:3]}"
        raise SuperformerError(f"these weights are not those of {arch.key}: {what}")
    for name, tensor in state.items():
        sizes = [p.read().shape for p in mapped[name]]
        expected = (sum(s[0] for s in sizes), *sizes[0][1:]) if tensor.ndim else ()
        if tuple(tensor.shape) != tuple(expected):
            raise SuperformerError(f"{name} has the shape {tuple(tensor.shape)}; {arch.key} needs {tuple(expected)}")
    with torch.no_grad():
        for name, tensor in state.items():
            if not tensor.ndim:
                mapped[name][0].tensor.copy_(tensor)
                continue
            at = 0
            for piece in mapped[name]:
                rows = piece.read().shape[0]
                scatter(piece.tensor, piece.index, tensor[at : at + rows])
                at += rows


def reset(module: nn.Module, generator: torch.Generator) -> None:
    """Fill the tensors that a module has itself with initial values."""
    if isinstance(module, Elastic):
        module.reset(generator)
    elif isinstance(module, nn.BatchNorm2d):
        module.reset_parameters()
    elif isinstance(module, nn.Conv2d):
        nn.init.kaiming_uniform_(module.weight, a=5**0.5, generator=generator)
