"""Weights and architectures in the form in which the papers' authors released them.

Architectures: the entries ``arch`` of their configurations. Weights: the state dictionaries of their stand-alone
networks or supernets, with their names. Where released code departs from its paper (the scale of ViTAS's attention, how
AutoFormer cuts biases), networks made here compute as the released code does: their weights were trained that way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from superformer.errors import ArchError, SuperformerError, nearest
from superformer.families.network import Network
from superformer.interop.official.nasvit import NasVit
from superformer.interop.official.release import Release, State, load
from superformer.interop.official.s3 import S3, AutoFormer
from superformer.interop.official.vit_resnas import VitResNas
from superformer.interop.official.vitas import Vitas
from superformer.space import point
from superformer.space.arch import Arch
from superformer.space.schema import family as network_family

__all__ = ["arch", "model", "supernet"]

RELEASES: dict[str, Release] = {"autoformer": AutoFormer(), "nasvit": NasVit(), "s3": S3()}
RELEASES |= {"vit_resnas": VitResNas(), "vitas": Vitas()}


def arch(family: str, official: Any) -> Arch:
    """An architecture from its authors' form."""
    try:
        return _release(family).arch(official)
    except (KeyError, IndexError, TypeError) as error:
        problem = f"{type(error).__name__} {error}"
        raise ArchError(f"this is not an architecture in the form of {family}: {problem}") from error


def model(family: str, official: Any, state_dict: State, img_size: int = 224) -> Network:
    """The stand-alone network of an architecture with its authors' weights, in eval mode. ``state_dict``: that of a
    stand-alone network or of their supernet. Position tables are resized if ``img_size`` is not theirs."""
    release, chosen = _release(family), arch(family, official)
    state, cut = release.clean(state_dict), None
    settings = release.settings(state)
    if release.is_supernet(chosen, state):
        cut = supernet(family, state_dict).extract(chosen, **settings)
        if release.any_size or img_size == chosen.resolution:
            return cut.eval()
        chosen = cut.space.smallest()
    own = replace(chosen, resolution=img_size)
    with torch.device("meta"):
        net = network_family(own.family)(point(own), len(state[release.head]), **settings)
    tensors = release.tensors(point(chosen), state) if cut is None else dict(cut.state_dict())
    return load(net, tensors, family).eval()


def supernet(family: str, state_dict: State) -> Network:
    """The authors' supernet: ``net(x, arch)``, ``net(x, [archs])``, in eval mode."""
    release = _release(family)
    state = release.clean(state_dict)
    space = release.space(state)
    with torch.device("meta"):
        net = network_family(space.family)(space, len(state[release.head]), release.sharing, **release.settings(state))
    return load(net, release.tensors(space, state), family).eval()


def _release(name: str) -> Release:
    if name not in RELEASES:
        raise SuperformerError(f"no official weights of {name!r} are known: {nearest(name, RELEASES)}")
    return RELEASES[name]
