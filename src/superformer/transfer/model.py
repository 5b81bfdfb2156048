"""A backbone and a head as one model, new or from the folder of a transfer."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import nn

from superformer import files
from superformer.runs.storage import read_tensors
from superformer.spaces import model as network
from superformer.transfer import plan
from superformer.transfer.answers import Soho
from superformer.transfer.backbone import Backbone
from superformer.transfer.folder import TransferRun
from superformer.transfer.heads import build, wants_blocks
from superformer.transfer.networks import backbone
from superformer.transfer.settings import Transfer
from superformer.transfer.source import Source
from superformer.transfer.task import TaskData

HOW = "delete it, and the words that began the transfer write it again from a checkpoint"


def make_backbone(settings: Transfer, source: Source, pretrained: bool = False) -> Backbone:
    """The backbone that settings describe, of a network of ours or of timm."""
    own, given = settings.backbone, copy.deepcopy(source.net)  # a model may be made again of the same source
    if given is None and source.arch is not None:
        given = network(source.arch, 0, settings.seed)
    return backbone(
        source.name if given is None else given, checkpoint=source.checkpoint, drop_path=own.drop_path,
        freeze=own.freeze, norms=own.norms, blocks=wants_blocks(settings.head_used), pretrained=pretrained,
        seed=settings.seed,
    )  # fmt: skip


def assemble(settings: Transfer, source: Source, data: TaskData, warm: bool = True) -> nn.Module:
    """The whole model; what is new in it is drawn from the seed. ``warm``: with published weights, if they are asked
    for."""
    base = make_backbone(settings, source, warm and settings.backbone.pretrained)
    if settings.task == "vqa":
        with torch.random.fork_rng([]):
            torch.manual_seed(settings.seed)
            return Soho(base, len(data.classes), len(data.about["vocabulary"]), settings.answers)
    made = build(settings.task, settings.head_used, base, len(data.classes), settings.head, settings.seed)
    return cast(nn.Module, made)


def load_model(run: TransferRun, data: TaskData) -> nn.Module:
    """The trained model of a transfer, in eval mode."""
    facts, settings = run.facts(), run.settings()
    found = assemble(settings, Source.known(facts["backbone"]), data, warm=False)
    tensors, _ = read_tensors(run.network_file, HOW, sealed=True)
    known = found.state_dict()  # folders of before have weights of levels that their heads do not read
    with files.understood(run.network_file, HOW):
        found.load_state_dict({name: t for name, t in tensors.items() if name in known})
    return found.eval()


def cost_of(model: nn.Module, settings: Transfer) -> dict[str, Any]:
    """Weights and MACs, together and of backbone and head apart, of a picture of ``size`` (height, width)."""
    found = plan.of_model(model, settings.task, settings.head_used, plan.size_of(settings))
    parts = {name: found[name]["params"] for name in ("backbone", "head")}
    macs = {f"{name}_macs": found[name]["macs"] for name in ("backbone", "head")}
    return {"params": found["params"], **parts, "macs": found["macs"], **macs, "size": found["size"]}
