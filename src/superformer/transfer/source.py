"""What a transfer begins with: a network of a run, a published one, the folder of one, or a network of timm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import timm

from superformer.errors import SuperformerError, nearest
from superformer.families.network import Network
from superformer.files import CONFIG
from superformer.runs import Run
from superformer.runs.storage import StoredNetwork, load_network
from superformer.space.arch import Arch
from superformer.spaces import arch as published_arch
from superformer.spaces import models
from superformer.train.retrain import network_to_export


@dataclass(frozen=True)
class Source:
    """``name``: for people, and of a timm network also timm's. ``arch``: of a network of ours. ``net``: with its
    weights, if it has any; ``checkpoint``: a file of weights; ``pretrained``: it has timm's published ones, if it has
    no others. ``prepared``: how its pictures are normalised."""

    name: str
    arch: Arch | None = None
    net: Network | None = None
    checkpoint: str | None = None
    folder: str | None = None
    prepared: Mapping[str, Any] = field(default_factory=dict)
    pretrained: bool = False

    @staticmethod
    def of(
        run: str | Path | None = None, arch: str | None = None, backbone: str | None = None,
        checkpoint: str | None = None,
    ) -> Source:  # fmt: skip
        """Find a network; one that is not there is refused."""
        if (run is None) == (backbone is None):
            raise SuperformerError("name one network: --run DIR (of superformer), or --backbone NAME (ours, or timm's)")
        if run is not None:
            if checkpoint is not None:
                raise SuperformerError("--checkpoint goes with --backbone; a run has weights of its own")
            return _of_run(run, arch)
        assert backbone is not None
        if arch is not None:
            raise SuperformerError("--arch names a network of a --run, not of a --backbone")
        path = Path(backbone)
        folder = path / "model" if (path / "model" / CONFIG).exists() else path
        if (folder / CONFIG).exists():
            if checkpoint is not None:
                raise SuperformerError(f"{backbone} has weights of its own: leave --checkpoint {checkpoint} out")
            return _stored(load_network(folder), backbone, str(folder))
        if path.exists() and path.is_dir():
            raise SuperformerError(f"{backbone} is there, and is no folder of a network ({CONFIG} and its weights)")
        if checkpoint is not None and not Path(checkpoint).is_file():
            raise SuperformerError(f"there is no file {checkpoint}: --checkpoint takes weights as safetensors")
        if checkpoint is not None and not checkpoint.endswith(".safetensors"):
            raise SuperformerError(f"--checkpoint takes safetensors, which hold nothing but weights, not {checkpoint}")
        if backbone in models():
            return Source(backbone, published_arch(backbone), checkpoint=checkpoint)
        if not timm.is_model(backbone):
            known = [*models(), *timm.list_models(f"*{backbone.partition('_')[0]}*")[:20]]
            what = f"neither superformer nor timm has a network {backbone!r}, and there is no such folder"
            raise SuperformerError(f"{what}: {nearest(backbone, known)}")
        return Source(backbone, checkpoint=checkpoint, prepared=_timm_prepared(backbone))

    @property
    def facts(self) -> dict[str, Any]:
        """What says, without the weights, which network it is."""
        own = {"arch": json.loads(self.arch.to_json())} if self.arch is not None else {}
        return {"name": self.name, **own, "weights": self.weights}

    @property
    def weights(self) -> str:
        """Where they come from, in words."""
        if self.net is not None:
            return f"those of {self.name}"
        if self.checkpoint is not None:
            return self.checkpoint
        return "timm's published weights" if self.pretrained else "random"

    def asked(self, pretrained: bool) -> Source:
        """The network with timm's published weights, if settings ask for them; what cannot have them is refused."""
        if pretrained and self.arch is not None:
            own = "has no published weights" if self.net is None else "has weights of its own"
            raise SuperformerError(f"backbone.pretrained=true is for networks of timm; {self.name} {own}: leave it out")
        return replace(self, pretrained=pretrained)

    @property
    def bare(self) -> Source:
        """The network without its weights."""
        return Source(self.name, self.arch)

    @staticmethod
    def known(facts: Mapping[str, Any]) -> Source:
        """The network that `facts` tell of, with whatever weights."""
        arch = Arch.from_json(json.dumps(facts["arch"])) if "arch" in facts else None
        return Source(str(facts["name"]), arch)


def _of_run(folder: str | Path, which: str | None) -> Source:
    """The retrained network of a run; or another, or the best that was found, with inherited weights."""
    run = Run.open(folder)
    if which is None and not run.retrained:
        which = "best" if run.front_file.exists() else "largest"
    stored = network_to_export(folder, which)
    return _stored(stored, f"{folder}, {which or 'retrained'}", str(folder))


def _stored(found: StoredNetwork, name: str, folder: str) -> Source:
    prepared = {"mean": list(found.mean), "std": list(found.std)}
    return Source(name, found.net.space.smallest(), found.net, None, folder, prepared)


def _timm_prepared(name: str) -> dict[str, Any]:
    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    known = config.to_dict() if config is not None else {}  # type: ignore[no-untyped-call]
    return {k: list(known[k]) for k in ("mean", "std") if k in known}
