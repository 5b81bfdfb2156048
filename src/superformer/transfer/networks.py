"""The networks that backbones are made of: ours, stored ones and timm's, with their weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from superformer.errors import SuperformerError, nearest, shown
from superformer.families.network import Network
from superformer.files import CONFIG
from superformer.interop.hub import fetching
from superformer.runs.storage import load_network, read_tensors
from superformer.spaces import model, models
from superformer.transfer.backbone import Backbone, Norms, timm_network

Source = str | Network | nn.Module


def backbone(
    source: Source, *, checkpoint: str | Path | None = None, drop_path: float = 0.0, freeze: int = 0,
    norms: Norms = "trained", blocks: bool = False, pretrained: bool = False, seed: int = 0,
) -> Backbone:  # fmt: skip
    """The backbone of a network (a copy of it), of the name of one of ours or of timm's, or of a folder with a stored
    one.

    ``checkpoint``: its weights, a safetensors file. ``freeze`` and ``norms``: see `Backbone.freeze`. ``blocks``: of a
    plain transformer, the maps of four blocks instead of a pyramid (for DPT)."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        net = _network(source, drop_path, pretrained and checkpoint is None)
        if checkpoint is not None:
            _load(net, Path(checkpoint))
        return Backbone(net, blocks=blocks).freeze(freeze, norms)


def _network(source: Source, drop_path: float, pretrained: bool) -> nn.Module:
    if isinstance(source, str) and (Path(source) / CONFIG).exists():
        source = load_network(source).net
    if isinstance(source, str) and source in models():
        source = model(source, 0)
    if isinstance(source, Network):
        if source.space.size > 1:
            what = f"a supernet of {source.space.size:.3g} architectures"
            raise SuperformerError(f"a backbone is one network, not {what}: give net.extract(arch)")
        return copy.deepcopy(source).set_drop_path(drop_path)
    if isinstance(source, str):
        if not timm.is_model(source):
            known = [*models(), *timm.list_models()]
            raise SuperformerError(f"no network of ours or of timm is called {source!r}: {nearest(source, known)}")
        words = {"drop_path_rate": drop_path} if drop_path else {}
        if not pretrained:
            return timm_network(source, pretrained=False, **words)
        with fetching(f"the weights of {source}", "give a file of them (--checkpoint FILE.safetensors)"):
            return timm_network(source, pretrained=True, **words)
    if not hasattr(source, "forward_intermediates"):
        raise SuperformerError(f"{shown(type(source).__name__)} has no forward_intermediates, and cannot be a backbone")
    return copy.deepcopy(source)


def _load(net: nn.Module, path: Path) -> None:
    """Weights from a file; a classifier, which is let go, need not fit."""
    if path.suffix != ".safetensors":
        raise SuperformerError(f"a checkpoint is a safetensors file, which can hold nothing but weights, not {path}")
    tensors, _ = read_tensors(path, "give another file of weights")
    classifier: Callable[[], Any] = getattr(net, "get_classifier", lambda: None)
    own = classifier()
    spare = {id(t) for t in own.state_dict(keep_vars=True).values()} if isinstance(own, nn.Module) else set[int]()
    state = {name: t for name, t in net.state_dict(keep_vars=True).items() if id(t) not in spare}
    wrong = [name for name, t in state.items() if name not in tensors or tensors[name].shape != t.shape]
    wrong = [name for name in wrong if not name.endswith("num_batches_tracked")]
    if wrong:
        here = f"{len(wrong)} of its {len(state)} weights are not in the file or have another shape there"
        raise SuperformerError(f"{path} holds other weights than this network's: {here}, such as {wrong[0]}")
    net.load_state_dict({name: tensors[name] for name in state if name in tensors}, strict=False)
