"""What all releases of weights share."""

from __future__ import annotations

import abc
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from superformer.elastic.positions import resized
from superformer.errors import SuperformerError
from superformer.families.network import Network
from superformer.sharing import Sharing
from superformer.space import Space
from superformer.space.arch import Arch

State = Mapping[str, Tensor]
Rules = Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]
"""Patterns in names and what takes their place, one after another."""


class Release(abc.ABC):
    """The weights and architectures that the authors of one paper released."""

    head: str
    sharing: Sharing | str = "ordinal"
    any_size = False
    """Whether the networks themselves bring pictures to their size."""

    def clean(self, state: State) -> dict[str, Tensor]:
        """The tensors that matter, under the authors' names; checks that this is such a state dictionary."""
        tensors = {k: v.detach() if isinstance(v, Tensor) else torch.as_tensor(np.asarray(v)) for k, v in state.items()}
        found = {k.removeprefix("module."): v for k, v in tensors.items()}
        if self.head not in found:
            given = f"it has no {self.head!r} (first names: {list(found)[:3]})"
            raise SuperformerError(f"not a state dictionary of this family: {given}")
        return found

    def settings(self, state: State) -> dict[str, Any]:
        return {}

    @abc.abstractmethod
    def arch(self, official: Any) -> Arch:
        """An architecture from its authors' form."""

    @abc.abstractmethod
    def is_supernet(self, arch: Arch, state: State) -> bool:
        """Whether these weights are a supernet's, not those of this stand-alone network."""

    @abc.abstractmethod
    def space(self, state: State) -> Space:
        """The space of a supernet with these weights."""

    @abc.abstractmethod
    def tensors(self, space: Space, state: State) -> dict[str, Tensor]:
        """Our names for the tensors of a supernet, or of a stand-alone network, whose space has one point."""


def rename(state: State, rules: Rules) -> dict[str, Tensor]:
    """The same tensors by names to which all rules were applied."""
    out = {}
    for name, tensor in state.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        out[name] = tensor
    return out


def numbers(state: State, pattern: str) -> list[int]:
    """The different numbers in names that begin so, in order."""
    return sorted({int(m[1]) for name in state if (m := re.match(pattern, name))})


def load(net: Network, state: dict[str, Tensor], family: str) -> Network:
    """Check names and shapes before anything is changed, then take the tensors over."""
    wanted = net.state_dict()
    for name in wanted:
        if name.endswith("num_batches_tracked"):  # a counter that no output depends on
            state.setdefault(name, torch.zeros((), dtype=torch.long))
    missing, unknown = sorted(set(wanted) - set(state)), sorted(set(state) - set(wanted))
    if missing or unknown:
        wrong = f"missing {missing[:3]}, not expected {unknown[:3]}"
        raise SuperformerError(f"these are not the weights of this {family} network: {wrong}")
    for name, tensor in wanted.items():
        if name.endswith("pos_embed.weight"):
            state[name] = _fitted(state[name], tensor.shape)
        if state[name].shape != tensor.shape:
            wrong = f"{name} is {tuple(state[name].shape)}, this {family} network needs {tuple(tensor.shape)}"
            raise SuperformerError(f"weights of the wrong shape: {wrong}")
    net.load_state_dict({k: v.clone() for k, v in state.items()}, assign=True)
    for p in net.parameters():
        p.requires_grad_(True)
    return net


def _fitted(table: Tensor, shape: torch.Size) -> Tensor:
    """A position table at another number of positions, if both are square grids, with or without a class token."""
    for prefix in (1, 0):
        old, new = math.isqrt(max(len(table) - prefix, 0)), math.isqrt(max(shape[0] - prefix, 0))
        if table.ndim == 2 and old * old + prefix == len(table) and new * new + prefix == shape[0]:
            return resized(table, (old, old), (new, new), prefix)
    return table
