"""Recipes of transfers say what the papers print; learning rates by the papers' rules; words that mean nothing."""

from __future__ import annotations

import pytest
from helpers.shapes import network
from torch import nn

from superformer.errors import SuperformerError
from superformer.recipes.settings import Optimizer
from superformer.train.optimizer import Schedule, build
from superformer.transfer.classification import _recipe
from superformer.transfer.loop import in_epochs
from superformer.transfer.settings import asked_for, names, read_tree, recipe_tree, resolve
from superformer.transfer.source import Source
from superformer.transfer.task import HEADS, TASKS

PRINTED = {
    # S3, appendix C
    "s3-cascade-mask-rcnn-1x": ("instance", "cascade-mask-rcnn", 1e-4, 0.05, 16, 12),
    "s3-cascade-mask-rcnn-3x": ("instance", "cascade-mask-rcnn", 1e-4, 0.05, 16, 36),
    "s3-upernet-160k": ("segment", "upernet", 6e-5, 0.01, 16, 160_000),
    "s3-vqa": ("vqa", "soho", 5e-5, None, 2048, 40),
    # ViTAS v2, A.1
    "vitas-retinanet-1x": ("detect", "retinanet", 1e-4, 1e-4, 16, 12),
    "vitas-mask-rcnn-1x": ("instance", "mask-rcnn", 2e-4, 1e-4, 16, 12),
    "vitas-semantic-fpn-80k": ("segment", "semantic-fpn", 1e-4, None, 16, 80_000),
    "vitas-upernet-160k": ("segment", "upernet", 6e-5, 0.01, 16, 160_000),
    # NASViT, section 4.2: the head only
    "nasvit-segformer": ("segment", "segformer", None, None, None, None),
}


@pytest.mark.parametrize("name", PRINTED)
def test_recipes_at_paper_scale(name):
    task, head, lr, decay, batch, length = PRINTED[name]
    own = resolve(None, recipe=name)
    assert (own.name, own.task, own.head_used) == (name, task, head)
    given = (own.optimizer.lr, own.optimizer.weight_decay, own.train.batch_size, own.train.steps or own.train.epochs)
    assert all(a is None or a == b for a, b in zip((lr, decay, batch, length), given, strict=True))
    assert own.data.choice == 0  # the papers train on all


def test_every_recipe_can_be_read_and_every_task_has_a_small_one():
    for name in names():
        tree = read_tree(name)
        assert tree["name"] == name
        if tree["task"] == "classify":
            arch = Source.of(backbone="vit_resnas_medium" if "resnas" in name else "s3_tiny").arch
            assert _recipe(recipe_tree(name, ()), arch, {}).space
        else:
            assert resolve(None, recipe=name).head_used in HEADS[tree["task"]]
    assert {f"{task}-laptop" for task in TASKS} <= set(names())
    larger = [(read_tree(f"vit-resnas-{r}")["img_size"], r) for r in (280, 336, 392)]
    assert all(a == b for a, b in larger)


def test_vqa_rates_are_those_of_s3():
    own = resolve(None, recipe="s3-vqa")
    assert own.optimizer.lr * own.backbone.rate == pytest.approx(5e-6)
    assert (own.optimizer.milestones, own.optimizer.warmup_steps, own.data.size) == ((25, 35), 500, 384)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("paint",), "unknown task 'paint'.*possible: classify, detect"),
        ((None,), "--task takes"),
        (("segment", "upernt"), "did you mean 'upernet'"),
        (("detect", "mask-rcnn"), "unknown head 'mask-rcnn' for --task detect: it is a head of --task instance"),
        ((None, "upernt"), "unknown head 'upernt': did you mean 'upernet'"),
        (("segment", None, "s3-vqa"), "is for --task vqa, not for segment"),
        (("segment", None, "s3-vqaa"), "did you mean 's3-vqa'"),
    ],
)
def test_words_that_mean_nothing(words, said):
    with pytest.raises(SuperformerError, match=said):
        asked_for(*words, *[None] * (3 - len(words)))


def test_a_head_tells_its_task():
    assert asked_for(None, "upernet", None)[:2] == ("segment", "upernet")
    assert asked_for(None, "linear", None)[0] == "classify"


def test_vectors_may_decay():
    made = build(nn.Linear(2, 2), Optimizer(decay_vectors=True))
    assert [group["weight_decay"] for group in made.param_groups] == [0.05]
    own = resolve(None, recipe="vitas-upernet-160k").optimizer  # "for the whole model"
    assert (own.decay_vectors, own.own_no_decay) == (True, False)


def test_where_weights_come_from_is_told_once(tmp_path):
    """What transfer.json says is what the network is made with."""
    timm = Source.of(backbone="resnet18")
    assert (timm.weights, timm.asked(True).facts["weights"]) == ("random", "timm's published weights")
    with pytest.raises(SuperformerError, match=r"s3_tiny has no published weights"):
        Source.of(backbone="s3_tiny").asked(True)
    folder = network(tmp_path / "network")
    with pytest.raises(SuperformerError, match="has weights of its own"):
        Source.of(backbone=str(folder)).asked(True)
    with pytest.raises(SuperformerError, match=r"leave --checkpoint nothing\.safetensors out"):
        Source.of(backbone=str(folder), checkpoint="nothing.safetensors")


def test_keys_that_do_not_exist_name_their_neighbour():
    with pytest.raises(SuperformerError, match=r"did you mean 'backbone\.freeze'"):
        resolve("segment", changes=["backbone.freze=2"])
    with pytest.raises(SuperformerError, match="task"):
        resolve("segment", changes=["task=paint"])


def test_steps_become_epochs():
    own = in_epochs(resolve(None, recipe="vitas-semantic-fpn-80k"), 1250)
    assert (own.train.epochs, own.train.steps) == (64, None)


def rates(steps: int, per_epoch: int, **words: object) -> list[float]:
    net = nn.Linear(2, 2)
    settings = Optimizer(lr=1.0, warmup_epochs=0, warmup_lr=0.0, min_lr=0.0, **words)
    schedule = Schedule(build(net, settings), settings, steps, per_epoch)
    return [schedule.set(n) for n in range(steps)]


def test_learning_rates_fall_as_the_papers_say():
    found = rates(120, 10, schedule="steps", milestones=(8, 11))
    assert found == pytest.approx([1.0] * 80 + [0.1] * 30 + [0.01] * 10)
    assert rates(100, 10, schedule="poly", power=0.9) == pytest.approx([(1 - n / 100) ** 0.9 for n in range(100)])
    assert rates(100, 10, schedule="poly", power=1.0, warmup_steps=10)[:11] == pytest.approx(
        [n / 10 for n in range(10)] + [0.9]
    )


def test_parts_of_a_model_may_learn_at_rates_of_their_own():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    net[2].requires_grad_(False)
    settings = Optimizer(lr=1.0, schedule="constant", warmup_epochs=0)
    made = build(net, settings, scales={"0.weight": 0.1, "0.bias": 0.1})
    assert Schedule(made, settings, 10, 10).set(3) == pytest.approx(1.0)
    found = {id(p): group["lr"] for group in made.param_groups for p in group["params"]}
    assert [found.get(id(p)) for p in net.parameters()] == pytest.approx([0.1, 0.1, 1.0, 1.0, None, None])
