"""timm: the published architectures are models of timm as soon as this module is imported. Exported folders are loaded
with ``timm.create_model("local-dir:FOLDER")``: as a network of timm's own class where that can be the network
(`superformer.interop.timm_weights.to_timm`), else as the model ``superformer``, a network of any architecture."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import timm.models
import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models._builder import build_model_with_cfg
from torch import Tensor

from superformer import files, spaces
from superformer.errors import SuperformerError
from superformer.families.network import Network
from superformer.files import CONFIG
from superformer.interop.export import Floats, preparation
from superformer.interop.timm_weights import tensor_names, timm_words, to_timm
from superformer.runs.storage import WEIGHTS, StoredNetwork, save_network, write_tensors
from superformer.space import point
from superformer.space.arch import Arch
from superformer.space.schema import family

ENTRY = "superformer"


def superformer(
    pretrained: bool = False, pretrained_cfg: Mapping[str, Any] | None = None,
    pretrained_cfg_overlay: Mapping[str, Any] | None = None, arch: Mapping[str, Any] | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """The network of an architecture, given as JSON has it, which the configuration of an exported folder tells."""
    if arch is None:
        way = "timm.create_model('local-dir:FOLDER')"
        raise SuperformerError(f"superformer is a model of timm that is loaded from a folder: {way}")
    own = Arch.from_json(json.dumps(arch))
    return create(ENTRY, own, pretrained, pretrained_cfg, pretrained_cfg_overlay=pretrained_cfg_overlay, **kwargs)


def register_model(name: str, arch: Arch) -> None:
    """Make an architecture a model of timm: ``timm.create_model(name)``."""
    if not name.isidentifier():
        raise SuperformerError(f"{name!r} cannot be a timm model's name: use letters, digits and underscores")

    def entry(
        pretrained: bool = False, pretrained_cfg: Any = None, pretrained_cfg_overlay: Any = None, **kwargs: Any
    ) -> Any:
        if pretrained:
            told = f"no trained weights of {name} are published for this library"
            raise SuperformerError(f"{told}; build it with pretrained=False")
        return create(name, arch, **kwargs)

    entry.__name__ = entry.__qualname__ = name
    entry.__module__ = __name__
    entry.__doc__ = f"The architecture {name}."
    setattr(sys.modules[__name__], name, entry)
    timm.models.register_model(entry)


def create(
    name: str, arch: Arch, pretrained: bool = False, pretrained_cfg: Mapping[str, Any] | None = None, **kwargs: Any
) -> Any:
    """A network as timm makes its own."""

    def build(num_classes: int = 1000, drop_path_rate: float = 0.0, **settings: Any) -> Network:
        return spaces.model(arch, num_classes, drop_path=drop_path_rate or 0.0, **settings)

    default: dict[str, Any] = {"num_classes": 1000, "input_size": (3, arch.resolution, arch.resolution)}
    default |= {"interpolation": "bicubic", "crop_pct": 0.9, "mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD}
    config = dict(pretrained_cfg or default | {"classifier": "head"})
    features = {"out_indices": _levels(arch), "feature_cls": "getter"} if kwargs.get("features_only") else None
    return build_model_with_cfg(build, name, pretrained, pretrained_cfg=config, feature_cfg=features, **kwargs)


def _levels(arch: Arch) -> tuple[int, ...]:
    """The features that ``features_only`` gives: those of all stages, or of the last three blocks."""
    with torch.device("meta"):
        net = family(arch.family)(point(arch), 0)
    levels = len(net.feature_info)
    return tuple(range(levels) if net.feature_level == "stage" else range(max(levels - 3, 0), levels))


def write(stored: StoredNetwork, folder: Path) -> str:
    """The files of `superformer.runs.storage`, with timm's words added to the configuration: both read the folder.
    Tells which class timm makes of it."""
    save_network(stored.net, folder, stored.classes, stored.mean, stored.std)
    config = files.read_object(folder / CONFIG, "export it again")
    arch = stored.net.space.smallest()
    words: dict[str, Any] = {"architecture": ENTRY, "model_args": {"arch": json.loads(arch.to_json())}}
    layers = {"classifier": "head"}
    try:
        entry, args = timm_words(arch)
    except SuperformerError as error:
        note = f"{error}; so it is a network of superformer, which must be installed where timm loads it"
    else:
        model: Any = to_timm(stored.net)
        words = {"architecture": entry, "model_args": args, "names": tensor_names(model)}
        config["weights"] = write_tensors(folder / WEIGHTS, model.state_dict())
        layers = {key: model.default_cfg[key] for key in ("classifier", "first_conv")}
        note = f"it is a network of timm's own class {type(model).__name__}: timm loads it without superformer"
    config |= {key: stored.config[key] for key in ("crop", "interpolation") if key in stored.config}
    pictures = preparation(stored)
    net, size = stored.net, [pictures.channels, pictures.size, pictures.size]
    pretrained: dict[str, Any] = {
        "input_size": size,
        "interpolation": pictures.interpolation,
        "crop_pct": pictures.crop,
    }
    pretrained |= {"crop_mode": "center", "mean": list(stored.mean), "std": list(stored.std)}
    names = list(stored.classes) or None
    pretrained |= {"num_classes": net.num_classes, "label_names": names, **layers}
    config |= {"num_classes": net.num_classes, "num_features": net.num_features, "pretrained_cfg": pretrained, **words}
    files.write_object(folder / CONFIG, config)
    return note


def logits_of(folder: Path, batches: list[Tensor]) -> list[Floats]:
    """What the network computes that timm makes of the folder."""
    net = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    with torch.no_grad():
        return [net(x).numpy() for x in batches]


if not timm.models.is_model(ENTRY):
    timm.models.register_model(superformer)
for published in spaces.models():
    if not timm.models.is_model(published):
        register_model(published, spaces.arch(published))
