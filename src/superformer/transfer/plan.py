"""What a backbone with a head costs, before anything is trained: weights and multiply-accumulates of both apart.

Nothing is computed: the networks are on torch's meta device, and its counter reads the shapes of every matrix product
and convolution (normalisations, activations and resizing are not counted). Of an R-CNN, whose work depends on what is
found, 1000 boxes go to each box head and 100 to each mask head, as MMDetection counts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from superformer import data as pictures
from superformer.errors import SuperformerError, nearest
from superformer.families.network import Network
from superformer.recipes.settings import Data
from superformer.space import point
from superformer.space.schema import family
from superformer.spaces import arch as published
from superformer.spaces import models
from superformer.transfer import heads, source
from superformer.transfer.answers import AnswerSettings, Soho
from superformer.transfer.backbone import Backbone
from superformer.transfer.classification import timm_arch
from superformer.transfer.examples import ExampleSettings, load
from superformer.transfer.heads.detection import Detector
from superformer.transfer.heads.segmentation import Segmenter
from superformer.transfer.heads.settings import HeadSettings
from superformer.transfer.networks import Source, backbone
from superformer.transfer.settings import Transfer, asked_for, from_tree, recipe_tree
from superformer.transfer.task import HEADS

CLASSES = {"classify": 1000, "detect": 80, "instance": 80, "segment": 150, "vqa": 3129}
"""ImageNet's, COCO's, ADE20K's; the usual answers of VQA 2.0."""
SIZES = {"detect": (800, 1280), "instance": (800, 1280), "segment": (512, 512), "vqa": (384, 384)}
"""Height and width of the papers' pictures; S3 counts segmentation at 512 x 2048."""
BOXES, MASKS = 1000, 100
ANSWERS, VOCABULARY, WORDS = AnswerSettings(hidden=768, layers=12, heads=12), 30_522, 20
"""S3's transformer is of the size of BERT-base; BERT's words; those of a question."""
Passes = Sequence[Callable[[Any], Any]]
"""What a head does with the maps of a backbone."""


def plan(
    source: Source, task: str, head: str | None = None, classes: int | None = None,
    size: tuple[int, int] | None = None, settings: HeadSettings | None = None, answers: AnswerSettings = ANSWERS,
    vocabulary: int = VOCABULARY,
) -> dict[str, Any]:  # fmt: skip
    """Weights and MACs of a backbone with a head, together and apart, for pictures of ``size`` (height, width)."""
    if task not in CLASSES:
        raise SuperformerError(f"there is no plan of the task {task!r}: {nearest(task, list(CLASSES))}")
    head, classes = head or HEADS[task][0], CLASSES[task] if classes is None else classes
    with torch.device("meta"):
        net = skeleton(source)
        if task == "classify":
            return _classifier(net, head, classes, size)
        body = backbone(net, blocks=heads.wants_blocks(head))
        model: Any
        if task == "vqa":
            model = Soho(body, classes, vocabulary, answers)
        else:
            model = heads.build(task, head, body, classes, settings)
        model.eval()
    return of_model(model, task, head, size or SIZES[task], classes)


def plan_as_asked(
    network: source.Source, task: str | None, head: str | None = None, recipe: str | Path | None = None,
    changes: Iterable[str] = (), spec: str | None = None, classes: int | None = None,
    size: tuple[int, int] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The plan that the words of a transfer mean. Without a recipe the head is the papers' (TASK-laptop has a lighter
    one), at the papers' size unless ``data.size`` is another. ``spec``: data that tell the classes."""
    if spec is not None and classes is not None:
        raise SuperformerError("--data and --classes both say how many classes there are: leave one of them out")
    meant, own, tree = asked_for(task, head, recipe)
    given = network.net if network.net is not None else network.name
    if meant == "classify":
        side = recipe_tree(recipe, changes).get("img_size")
        if network.arch is None:
            timm_arch(network)  # a network without a family here is refused
        known = len(pictures.load(spec, Data(), side or 224).classes) if spec is not None else classes
        return plan(given, meant, own, known, size or ((side, side) if side else None))
    usual = {"name": "plan", "task": meant, "answers": ANSWERS.model_dump()}
    settings = from_tree({**(tree if recipe is not None else usual), "head_name": own}, changes)
    words = VOCABULARY
    if spec is not None:
        found = load(meant, spec, settings.data)
        classes, words = len(found.classes), len(found.about.get("vocabulary", ())) or VOCABULARY
    return plan(given, meant, own, classes, size or size_of(settings), settings.head, settings.answers, words)


def size_of(settings: Transfer) -> tuple[int, int]:
    """Height and width that the costs of a transfer are told for: the papers', or squares of another ``data.size``."""
    size, usual = settings.data.of(settings.task).size, ExampleSettings().of(settings.task).size
    return SIZES[settings.task] if size is None or size == usual else (size, size)


def of_model(model: nn.Module, task: str, head: str, size: tuple[int, int], classes: int = 0) -> dict[str, Any]:
    """The same of a model that is there."""
    with torch.device("meta"):
        bare: Any = copy.deepcopy(model).to("meta").eval()
        return _together(task, head, classes, size, bare.backbone, _params(bare), _passes(bare))


def _together(
    task: str, head: str, classes: int, size: tuple[int, int], body: Backbone, params: int, passes: Passes
) -> dict[str, Any]:
    # as models pad their pictures; question answering does not
    padded = size if task == "vqa" else [-(-side // body.divisible) * body.divisible for side in size]
    x = torch.empty(1, 3, *padded, device="meta")
    maps, macs = counted(lambda: body(x))
    own = sum(counted(partial(each, maps))[1] for each in passes)
    weights = _params(body)
    return {
        "task": task, "head_name": head, "classes": classes, "size": list(size), "params": params, "macs": macs + own,
        "backbone": {"params": weights, "macs": macs, "classifier": body.classifier},
        "head": {"params": params - weights, "macs": own},
    }  # fmt: skip


def _passes(model: nn.Module) -> Passes:
    if isinstance(model, Segmenter):
        return [lambda maps: model.classifier(model.decoder(maps))]
    if isinstance(model, Soho):
        words = torch.ones(1, WORDS, dtype=torch.long, device="meta")
        return [lambda maps: model.answer(model.read(model.projected(maps[model.level]), words))]
    assert isinstance(model, Detector)
    net: Any = model.detector
    pyramid, channels = net.backbone, net.backbone.out_channels

    def levels(maps: list[Tensor]) -> list[Tensor]:
        return list(pyramid.fpn({str(k): y for k, y in enumerate(maps[pyramid.first :])}).values())

    if hasattr(net, "head"):
        return [lambda maps: net.head(levels(maps))]
    out: list[Callable[[Any], Any]] = [lambda maps: net.rpn.head(levels(maps))]
    for stage in getattr(net.roi_heads, "stages", [net.roi_heads]):
        out.append(partial(_boxes, stage, channels))
    return out


def _boxes(heads: Any, channels: int, maps: list[Tensor]) -> None:
    """The work of a box head, and of its mask head if it has one."""
    heads.box_predictor(heads.box_head(_empty(BOXES, channels, 7)))
    if heads.mask_head is not None:
        heads.mask_predictor(heads.mask_head(_empty(MASKS, channels, 14)))


def _empty(boxes: int, channels: int, side: int) -> Tensor:
    return torch.empty(boxes, channels, side, side, device="meta")


def _params(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@torch.no_grad()
def counted(run: Callable[[], Any]) -> tuple[Any, int]:
    """What a pass gives, and its multiply-accumulates."""
    with FlopCounterMode(display=False) as counter:
        out = run()
    return out, counter.get_total_flops() // 2


def skeleton(source: Source) -> nn.Module | str:
    """A network of ours without its weights, with its classifier; a name of timm's as it is."""
    if isinstance(source, str) and source in models():
        arch = published(source)
        return family(arch.family).skeleton(point(arch), 1000)
    if isinstance(source, Network):
        return family(source.space.family).skeleton(source.space, source.num_classes)
    return copy.deepcopy(source).to("meta") if isinstance(source, nn.Module) else source


def _classifier(source: nn.Module | str, head: str, classes: int, size: tuple[int, int] | None) -> dict[str, Any]:
    """A network with a new classifier, at its own size."""
    net: Any = timm.create_model(source) if isinstance(source, str) else source
    own = net.space.img_size if isinstance(net, Network) else net.default_cfg["input_size"][-1]
    size = size or (own, own)
    net.eval().reset_classifier(0)
    x = torch.empty(1, 3, *size, device="meta")
    params, (_, macs) = _params(net), counted(lambda: net(x))
    net.reset_classifier(classes)
    more, (_, all_macs) = _params(net) - params, counted(lambda: net(x))
    return {
        "task": "classify", "head_name": head, "classes": classes, "size": list(size), "params": params + more,
        "macs": all_macs, "backbone": {"params": params, "macs": macs},
        "head": {"params": more, "macs": all_macs - macs},
    }  # fmt: skip
