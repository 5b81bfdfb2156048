"""Counts of weights as the papers' tables have them (issue 19, must show 1)."""

from __future__ import annotations

import functools

import pytest
import torch
from helpers.dense import network
from helpers.shapes import shapes

import superformer as sf
from superformer.errors import SuperformerError
from superformer.space import point
from superformer.spaces import arch as published
from superformer.transfer import heads
from superformer.transfer.backbone import Backbone
from superformer.transfer.networks import backbone
from superformer.transfer.plan import CLASSES, plan, plan_as_asked, skeleton
from superformer.transfer.source import Source

# millions as printed; what our count leaves out or has besides (docs/transfer-parameters.md)
TABLES = [
    ("s3_tiny", "instance", "cascade-mask-rcnn", 86, "", 0.5),
    ("s3_small", "instance", "cascade-mask-rcnn", 107, "", 0.5),
    ("s3_base", "instance", "cascade-mask-rcnn", 128, "", 0.5),
    ("s3_tiny", "segment", "upernet", 60, "", 0.5),
    ("s3_small", "segment", "upernet", 81, "", 0.5),
    ("resnet50", "instance", "mask-rcnn", 44.2, "frozen", 0.05),
    ("resnet50", "detect", "retinanet", 37.7, "frozen", 0.05),
    ("twins_svt_small", "instance", "mask-rcnn", 44.0, "classifier", 0.25),  # 44.2: see the docs
    ("twins_svt_small", "detect", "retinanet", 34.3, "classifier", 0.05),
    ("twins_svt_small", "segment", "semantic-fpn", 28.3, "classifier", 0.05),
    ("twins_svt_small", "segment", "upernet", 54.4, "classifier", 0.05),
]
FROZEN = 225_344
"""Weights of ResNet-50's stem and first stage."""


@functools.cache
def body(network: str) -> Backbone:
    with torch.device("meta"):
        return backbone(skeleton(network))


@pytest.mark.parametrize(("network", "task", "head", "printed", "how", "within"), TABLES)
def test_weights_are_those_of_the_papers(network, task, head, printed, how, within):
    with torch.device("meta"):
        net = heads.build(task, head, body(network), CLASSES[task])
    counted = sum(p.numel() for p in net.parameters())
    counted += {"frozen": -FROZEN, "classifier": body(network).classifier, "": 0}[how]
    assert abs(counted / 1e6 - printed) <= within


def test_a_plan_tells_both_parts():
    found = plan("twins_svt_s", "segment", "upernet")
    assert found["params"] == found["backbone"]["params"] + found["head"]["params"] == 53_856_300
    assert found["macs"] == found["backbone"]["macs"] + found["head"]["macs"]
    assert round(found["macs"] / 1e9) == 228  # ViTAS v2, table 8
    assert found["backbone"]["classifier"] == 513_000


@pytest.mark.parametrize("name", ["vitas_1g", "nasvit_a1"])
def test_a_classifiers_plan_is_our_own_count(name):
    arch = published(name)
    cost, found = sf.cost(point(arch), [arch], num_classes=7), plan(name, "classify", classes=7)
    assert (found["params"], found["macs"]) == (int(cost.params[0]), int(cost.macs[0]))
    assert found["head"]["params"] > 0


def test_a_detectors_plan_counts_boxes_and_masks():
    few, many = (plan(network("resnet"), "instance", "mask-rcnn", classes, (64, 64)) for classes in (1, 2))
    assert many["head"]["macs"] - few["head"]["macs"] == 1000 * 5 * 1024 + 100 * 28 * 28 * 256
    assert many["backbone"] == few["backbone"]


def test_a_plan_that_cannot_be_is_refused():
    with pytest.raises(SuperformerError, match="no plan of the task"):
        plan("s3_tiny", "detecting")
    with pytest.raises(SuperformerError, match="retinanet"):
        plan(network("resnet"), "detect", "retina")


@pytest.mark.parametrize(("head", "size"), [("semantic-fpn", (500, 500)), ("segformer", (65, 40))])
def test_pictures_are_padded_as_the_model_pads_them(head, size):
    found = plan(network("resnet"), "segment", head, size=size)
    padded = plan(network("resnet"), "segment", head, size=tuple(-(-side // 32) * 32 for side in size))
    assert found["macs"] == padded["macs"]
    assert found["size"] == list(size)


def test_a_plan_of_a_plain_transformer_whose_patches_do_not_fit():
    assert plan(network("vit"), "segment", "dpt", size=(50, 70))["macs"] > 0


def asked(backbone: str, *words: object, **more: object) -> dict:
    return plan_as_asked(Source.of(backbone=backbone), *words, **more)


def test_a_plan_takes_the_words_of_a_transfer():
    lighter = asked("resnet50", None, "cascade-mask-rcnn", changes=["head.box_head=2fc"])
    assert round(lighter["params"] / 1e6, 1) == 78.3  # docs/transfer-parameters.md
    told = asked("s3_tiny", None, recipe="s3-upernet-160k")
    assert (told["task"], told["head_name"], round(told["params"] / 1e6)) == ("segment", "upernet", 60)
    laptop = asked("resnet18", None, recipe="detect-laptop")
    assert laptop["size"] == [192, 192]
    assert laptop["params"] < asked("resnet18", "detect")["params"]
    for words, said in (
        ({"changes": ["head.box=2fc"]}, "did you mean 'head.box_head'"),
        ({"spec": "nowhere"}, "there is no nowhere"),
        ({"spec": "nowhere", "classes": 3}, "leave one of them out"),
    ):
        with pytest.raises(SuperformerError, match=said):
            asked("resnet18", "detect", **words)
    with pytest.raises(SuperformerError, match="resnet18"):
        asked("resnet18", "classify")  # which a transfer refuses as well


def test_data_tell_a_plan_their_classes(tmp_path):
    spec = str(shapes(tmp_path / "shapes", 4, 2))
    assert asked("resnet18", "segment", spec=spec)["classes"] == 3
    assert asked("resnet18", "detect", spec=spec)["classes"] == 2
    assert asked("s3_tiny", "classify", spec="digits")["classes"] == 10


def test_question_answering_has_berts_size() -> None:
    """BERT-base has 109.5 M weights with its pooler of 0.59 M, which is not used."""
    found = plan("twins_svt_s", "vqa")
    head = 85_054_464 + 23_837_184  # twelve layers; words, positions, kinds and their norm
    assert head < found["head"]["params"] < head + 8_000_000  # the projection, the answers, matching
    assert found["head"]["macs"] > 12 * 7_077_888 * (144 + 20)  # at least the matrices, on all tokens
