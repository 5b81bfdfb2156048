"""The network that a fit begins with: a timm network by its name, with its published weights or a file of them, or the
folder of a network of ours."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from superformer import data
from superformer.cost import cost
from superformer.errors import SuperformerError
from superformer.families.network import Network
from superformer.files import CONFIG
from superformer.interop.timm_weights import from_timm
from superformer.progress import Tell
from superformer.recipes.settings import Data, Start
from superformer.runs.storage import load_network
from superformer.space import point
from superformer.space.arch import Arch
from superformer.space.schema import family
from superformer.space.space import Space
from superformer.spaces.around import around
from superformer.train.pretrained import from_timm_settings

LOOKED_AT, LEAST = 33, 64
"""Pictures that tell how large they are; the least pixels of a side, where the network's own are not fewer: smaller
pictures would be one patch, or a few."""
LOWERED, DEPTHWISE = 5e7, ("nasvit",)
"""MACs from which on products in bfloat16 are worth their conversions, on a processor; families whose many depthwise
convolutions are slower in it."""


@dataclass(frozen=True)
class Source:
    """``start``: the settings that a recipe begins with it by; ``prepared``: how its pictures are prepared."""

    net: Network
    start: Start
    prepared: dict[str, Any]

    @staticmethod
    def of(model: str, checkpoint: str | None = None, pretrained: bool = True) -> Source:
        """Find a network; one that cannot be taken is refused with the reason."""
        path = Path(model)
        folder = path / "model" if (path / "model" / CONFIG).exists() else path
        if (folder / CONFIG).exists():
            if checkpoint is not None:
                raise SuperformerError(
                    f"{model} has its own weights: --checkpoint goes with the name of a timm network"
                )
            found = load_network(folder)
            prepared = {"mean": list(found.mean), "std": list(found.std)}
            return Source(found.net, Start(network=str(folder)), prepared)
        if path.exists():
            raise SuperformerError(f"{model} is there, and is no folder of a network ({CONFIG} and its weights)")
        start = Start(timm=model, checkpoint=checkpoint, pretrained=pretrained)
        net = from_timm_settings(start)
        config = _config(model)
        prepared = {k: list(config[k]) for k in ("mean", "std") if k in config}
        return Source(net, start, prepared | {k: config[k] for k in ("interpolation",) if k in config})

    def size_for(self, spec: str, tell: Tell) -> int:
        """The size of pictures: the network's own, or about that of the pictures where most of them are smaller."""
        own, net = self.net.space.img_size, self.net
        pictures = data.load(spec, Data(search=0, augment="none", **self.prepared), own).train
        some = {round(k * (len(pictures) - 1) / (LOOKED_AT - 1)) for k in range(LOOKED_AT)}
        side = statistics.median_low([min(pictures.picture(k).shape[:2]) for k in sorted(some)])
        step = net.reduction(net.space.smallest(), len(net.space.stages) - 1)
        size = int(min(own, max(side // step * step, -(-LEAST // step) * step)))
        tell(f"pictures of {size} pixels; --img-size says otherwise")
        return size

    def trained_on(self, spec: str, size: int, search: float) -> int:
        """How many pictures a supernet is trained on; ``search``: the share that is kept for searching."""
        return len(data.load(spec, Data(search=search, augment="none", **self.prepared), size).train)

    def settings(self, arch: Arch) -> dict[str, Any]:
        """What of a recipe depends on the network."""
        large = float(cost(point(arch), [arch]).macs[0]) >= LOWERED and arch.family not in DEPTHWISE
        return {"data": self.prepared} | ({} if large else {"train": {"amp": "off"}})

    def arch(self, size: int) -> Arch:
        """Its architecture for pictures of this size."""
        arch = self.net.space.smallest()
        return arch if size == arch.resolution else family(arch.family).rescaled(arch, size)


def _config(model: str) -> dict[str, Any]:
    """What timm knows of a network: of a name its registry, of a folder or a hub's place the file there."""
    if set(":/") & set(model):
        with torch.device("meta"):
            config: Any = timm.create_model(model).pretrained_cfg
            return dict(config)
    known = timm.get_pretrained_cfg(model, allow_unregistered=True)
    return known.to_dict() if known is not None else {}  # type: ignore[no-untyped-call]


def space_around(
    model: str | nn.Module | Arch,
    speed_up: float = 2.0,
    img_size: int | None = None,
    order: Sequence[Sequence[int]] = (),
    sizes: Sequence[int] | None = None,
) -> Space:
    """The space around a network (`superformer.spaces.around`): an architecture or a network of ours, a network of
    timm's, the name of one, or a folder. ``img_size``: of the pictures, if not the network's own."""
    if isinstance(model, Arch):
        arch = model
    elif isinstance(model, Network):
        arch = model.space.smallest()
    elif isinstance(model, nn.Module):
        arch = from_timm(model).space.smallest()
    else:
        arch = Source.of(model, pretrained=False).net.space.smallest()
    arch = arch if img_size in (None, arch.resolution) else family(arch.family).rescaled(arch, int(img_size or 0))
    return around(arch, speed_up, order, sizes)
