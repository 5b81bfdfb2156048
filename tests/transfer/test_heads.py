"""Heads: torchvision's detectors are wired as torchvision wires them, and every head learns one picture."""

from __future__ import annotations

import warnings

import pytest
import timm
import torch
from helpers.dense import batch, scene, tiny
from torch import nn
from torchvision.models.detection import MaskRCNN, RetinaNet
from torchvision.models.detection.backbone_utils import _resnet_fpn_extractor
from torchvision.models.resnet import resnet50
from torchvision.ops import box_iou
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from superformer.errors import SuperformerError
from superformer.transfer import heads
from superformer.transfer.answers import AnswerSettings, Soho
from superformer.transfer.export import _detector
from superformer.transfer.heads.cascade import CascadeHeads, boxes_of, refine
from superformer.transfer.heads.detection import traceable
from superformer.transfer.heads.settings import HeadSettings
from superformer.transfer.networks import backbone
from superformer.transfer.task import HEADS, Batch

SMALL = {"channels": 32, "hidden": 64, "samples": 16, "proposals": 50, "anchors": (16, 24, 32, 48, 64)}
LEARNED = [(task, head) for task in ("detect", "instance", "segment") for head in HEADS[task]]


def model(task: str, head: str, family: str = "resnet", **settings: object) -> nn.Module:
    norms = "trained" if task == "segment" else "frozen"  # of one picture batch norms learn little
    body = tiny(family, blocks=heads.wants_blocks(head), norms=norms)
    return heads.build(task, head, body, 3 if task == "segment" else 2, HeadSettings(**SMALL | settings), seed=0)


def theirs(head: str) -> nn.Module:
    """torchvision's own detector with its ResNet-50, which reads pictures as they are."""
    torch.manual_seed(1)
    words = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3, "_skip_resize": True}
    net, retina = resnet50(), head == "retinanet"
    body = _resnet_fpn_extractor(net, 5, [2, 3, 4] if retina else None, LastLevelP6P7(2048, 256) if retina else None)
    if retina:
        return RetinaNet(body, 2, **words)
    few = {f"rpn_{when}_nms_top_n_train": 100 for when in ("pre", "post")} | {"box_batch_size_per_image": 16}
    return MaskRCNN(body, 3, **words, **few)


@pytest.mark.parametrize(("task", "head"), [("detect", "retinanet"), ("instance", "mask-rcnn")])
def test_losses_and_gradients_are_torchvisions_own(task, head):
    """Issue 19, must show 3: the backbone is torchvision's ResNet-50 (timm has its very layers and names).
    Mask R-CNN is Faster R-CNN with masks."""
    their, picture, target = theirs(head).double().train(), *scene()
    settings = HeadSettings(proposals=50, samples=16)
    mine = heads.build(task, head, backbone(timm.create_model("resnet50")), 2, settings).double().train()
    names = {f"detector.{n}".replace("backbone.body.", "backbone.body.net."): n for n, _ in their.state_dict().items()}
    state = their.state_dict()
    mine.load_state_dict({name: state[own] for name, own in names.items()})
    targets = {key: target[key] for key in ("boxes", "labels", "masks")}
    targets["boxes"] = targets["boxes"].double()
    losses = []
    for net, run in ((their, None), (mine, mine.losses)):
        torch.manual_seed(2)  # both draw the same boxes to learn from
        if run is None:
            own = {**targets, "labels": targets["labels"] - int(head == "retinanet")}
            found = net([picture.double()], [own])
        else:
            found = run(Batch([picture.double()], [targets]))
        sum(found.values()).backward()
        losses.append(found)
    assert losses[0].keys() == losses[1].keys()
    for name, loss in losses[0].items():
        assert torch.allclose(loss, losses[1][name], rtol=1e-5, atol=1e-8), name
    grads = {name: p.grad for name, p in their.named_parameters()}
    for name, p in mine.named_parameters():
        wanted = grads.pop(names[name])
        assert torch.allclose(p.grad, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max())), name
    assert grads == {}


def quality(task: str, found: dict, target: dict) -> float:
    """How much of the picture was found: the smallest IoU with one of the two things."""
    if task == "segment":
        here = target["mask"] != 255
        right = (found["logits"].argmax(0) == target["mask"]) & here
        return float(right.sum() / here.sum())
    right = found["labels"][:, None] == target["labels"]
    iou = box_iou(found["boxes"], target["boxes"]) * right * (found["scores"] > 0.3)[:, None]
    worst = float(iou.max(0).values.min()) if len(iou) else 0.0
    if task == "detect" or not worst:
        return worst
    masks = found["masks"][iou.argmax(0)] > 0.5
    both, either = (masks & target["masks"].bool()), (masks | target["masks"].bool())
    return min(worst, float((both.sum((1, 2)) / either.sum((1, 2))).min()))


@pytest.mark.parametrize(("task", "head"), LEARNED)
def test_a_head_learns_one_picture(task, head):
    net, given = model(task, head, "vit" if head == "dpt" else "resnet"), batch(2 if task == "segment" else 1)
    optimizer, enough = torch.optim.AdamW(net.parameters(), 3e-3), 0.8 if task == "segment" else 0.5
    torch.manual_seed(0)
    for step in range(100):
        optimizer.zero_grad()
        sum(net.train().losses(given).values()).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        if step % 5 == 4:
            with torch.no_grad():
                found, *_ = net.eval().predict(given.pictures, given.targets)
            if quality(task, found, given.targets[0]) > enough:
                return
    pytest.fail("100 steps were not enough")


@pytest.mark.parametrize("family", ["vit", "swin"])
@pytest.mark.parametrize(("task", "head"), [*LEARNED, ("vqa", "soho")])
def test_a_head_leaves_no_weight_unused(task, head, family):
    """Levels that a head does not read are not made."""
    if task == "vqa":
        net = Soho(tiny(family, norms="frozen"), 3, 9, AnswerSettings(hidden=32, layers=1, heads=2))
        picture, asked = torch.randn(3, 64, 64), {"question": torch.tensor([2, 5, 3]), "answer": 1}
        given = Batch([picture] * 2, [asked] * 2)
    else:
        net, given = model(task, head, family), batch()
    torch.manual_seed(0)
    sum(net.train().losses(given).values()).backward()
    assert [name for name, p in net.named_parameters() if p.grad is None and p.requires_grad] == []


def test_a_cascade_hands_boxes_on_and_takes_the_mean_of_its_scores():
    torch.manual_seed(0)
    net = CascadeHeads(32, 2, HeadSettings(**SMALL, score=0.0, nms=1.0)).eval()
    maps = {str(k): torch.randn(1, 32, 16 >> k, 24 >> k) for k in range(4)}
    boxes = torch.tensor([[8.0, 8, 40, 40], [48, 16, 80, 56]])
    for heads_of_one in net.stages:  # which leave boxes where they are
        nn.init.zeros_(heads_of_one.box_predictor.bbox_pred.weight)
        nn.init.zeros_(heads_of_one.box_predictor.bbox_pred.bias)
    with torch.no_grad():
        (found,), _ = net(maps, [boxes], [(64, 96)])
        every = [boxes_of(one, maps, [boxes], [(64, 96)])[0].softmax(-1) for one in net.stages]
    assert {tuple(box) for box in found["boxes"].tolist()} == {tuple(box) for box in boxes.tolist()}
    mean = torch.stack(every).mean(0)[:, 1:]
    assert torch.allclose(found["scores"], mean.flatten().sort(descending=True).values, atol=1e-6)
    nn.init.constant_(net.stages[0].box_predictor.bbox_pred.bias, 1.0)  # a tenth of a box to the right and down, larger
    with torch.no_grad():
        (moved,), _ = net(maps, [boxes], [(64, 96)])
    larger = refine(net.stages[0], torch.ones(2, 12), [boxes], torch.tensor([1, 2]), [(64, 96)])[0]
    assert torch.allclose(moved["boxes"].sort(0).values[::2], larger.sort(0).values, atol=1e-4)


def test_pictures_of_different_sizes_go_together():
    small, large = torch.randn(3, 40, 70), torch.randn(3, 64, 96)
    net = model("segment", "semantic-fpn").eval()
    with torch.no_grad():
        found = net.predict([small, large], [{}, {}])
    assert [f["logits"].shape for f in found] == [(3, 40, 70), (3, 64, 96)]
    boxes = model("instance", "mask-rcnn", score=0.0).eval()
    with torch.no_grad():
        found = boxes.predict([small, large], [{}, {}])
    assert [f["masks"].shape[1:] for f in found] == [(40, 70), (64, 96)]


@pytest.mark.parametrize(("task", "head"), [p for p in LEARNED if p[0] != "segment"])
def test_a_picture_without_things_is_no_error(task, head):
    picture, _ = scene()
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long)}
    nothing["masks"] = torch.zeros(0, 64, 96, dtype=torch.uint8)
    losses = model(task, head).train().losses(Batch([picture], [nothing]))
    assert all(torch.isfinite(loss) for loss in losses.values())
    sum(losses.values()).backward()


@pytest.mark.parametrize("head", ["faster-rcnn", "retinanet"])
def test_boxes_are_in_single_precision_also_where_layers_are_not(head):
    net, picture = model("detect", head, score=0.0).eval(), scene()[0]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        (found,) = net.predict([picture], [{}])
    assert found["boxes"].dtype == torch.float32
    assert len(found["boxes"])


def test_a_detector_can_be_traced():
    """Its backbone, a network of ours, is a graph then; what is traced finds what the detector finds."""
    net, picture = model("detect", "faster-rcnn", "twins", score=0.0).eval(), scene()[0]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fixed = traceable(net, (64, 96)).requires_grad_(False)
        traced = torch.jit.trace(lambda x: fixed.predict([x], [{}])[0]["boxes"], picture, check_trace=False)
        other = picture.flip(-1)
        (found,) = net.predict([other], [{}])
        assert torch.allclose(traced(other), found["boxes"], atol=1e-4)
    assert len(found["boxes"])


def test_pixels_that_do_not_count_do_not():
    net = model("segment", "segformer").eval()
    picture, target = scene()
    loss = net.losses(Batch([picture], [target]))["loss_pixels"]
    unknown = {"mask": torch.full_like(target["mask"], 255)}
    assert net.losses(Batch([picture], [unknown]))["loss_pixels"] == 0
    with torch.no_grad():
        logits = net.predict([picture], [{}])[0]["logits"]
    here = target["mask"] != 255
    assert torch.allclose(loss, nn.functional.cross_entropy(logits[:, here].t(), target["mask"][here]), atol=1e-6)


def test_mistakes_are_told():
    with pytest.raises(SuperformerError, match="mask-rcnn"):
        heads.build("instance", "mask_rcnn", tiny(), 2)
    with pytest.raises(SuperformerError, match="blocks=True"):
        heads.build("segment", "dpt", tiny("vit"), 2)
    with pytest.raises(SuperformerError, match="two pictures"):
        model("segment", "upernet").train().losses(batch(1))


def test_a_cascade_is_exported_with_a_proof(tmp_path):
    """As many boxes as there are, which a tracer takes for a fixed number where ``len`` tells it."""
    pytest.importorskip("onnxruntime")
    net = model("instance", "cascade-mask-rcnn", score=0.2).eval()
    pictures = torch.stack([scale * scene((64, 64), seed)[0] for seed, scale in enumerate((1, 3))])
    with torch.no_grad():
        counts = {len(found["boxes"]) for found in net.predict(list(pictures), [{}] * 2)}
    assert len(counts) == 2
    proof = _detector(net, pictures, {}, tmp_path / "onnx", None)
    assert proof.files
