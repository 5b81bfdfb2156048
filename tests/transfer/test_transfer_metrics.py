from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from helpers.examples import SIZE, coco_folder, mask_folder, questions_folder, write_json
from PIL import Image

from superformer.errors import SuperformerError
from superformer.transfer.examples import ExampleSettings, load
from superformer.transfer.metrics import predict_scales, score

DOUBLE = ExampleSettings(size=2 * SIZE[0])
"""Networks see pictures twice as large as they are stored."""


def perfect(split, k):
    target = split.example(k).target
    found = {"boxes": target["boxes"], "labels": target["labels"], "scores": torch.ones(len(target["labels"]))}
    return found | ({"masks": target["masks"].float()} if "masks" in target else {})


def test_perfect_detections(tmp_path):
    data = load("instance", str(coco_folder(tmp_path)), DOUBLE)
    result = score("instance", data, "test", (perfect(data.test, k) for k in range(len(data.test))))
    metrics = result["metrics"]
    assert [metrics[n] for n in ("ap", "ap50", "ap75", "mask_ap", "mask_ap50")] == pytest.approx([1] * 5)
    assert metrics["ap_small"] == pytest.approx(1)
    assert metrics["ap_large"] is None
    assert set(result["by_class"]) == {"red", "blue"}
    assert result["by_class"]["red"]["ap"] == pytest.approx(1)
    assert sum(own["count"] for own in result["by_class"].values()) == 6


def test_detections_of_half_the_pictures_and_of_wrong_classes(tmp_path):
    data = load("detect", str(coco_folder(tmp_path)), DOUBLE)
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "scores": torch.zeros(0)}
    red = [[i.label for i in p.instances] == [1] for p in data.test.pictures]
    found = [perfect(data.test, k) if red[k] else nothing for k in range(len(red))]
    result = score("detect", data, data.test, found)
    assert result["by_class"]["red"]["ap"] == pytest.approx(1)
    assert result["by_class"]["blue"]["ap"] == 0
    assert result["metrics"]["ap50"] == pytest.approx(0.5)
    assert "mask_ap" not in result["metrics"]
    swapped = [own | {"labels": 3 - own["labels"]} for own in (perfect(data.test, k) for k in range(len(red)))]
    assert score("detect", data, "test", swapped)["metrics"]["ap"] == 0


def test_a_box_that_overlaps_by_six_tenths(tmp_path):
    data = load("detect", str(coco_folder(tmp_path)), ExampleSettings(size=SIZE[0]))
    found = []
    for k in range(len(data.test)):
        own = perfect(data.test, k)
        x1, y1, x2, y2 = own["boxes"].unbind(1)
        found.append(own | {"boxes": torch.stack([x1, y1, x1 + 0.6 * (x2 - x1), y2], 1)})
    metrics = score("detect", data, "test", found)["metrics"]
    assert metrics["ap50"] == pytest.approx(1)
    assert metrics["ap75"] == 0
    assert metrics["ap"] == pytest.approx(0.25, abs=0.06)  # right at 0.5, 0.55 and perhaps 0.6


def test_crowds_are_ignored(tmp_path):
    coco_folder(tmp_path)
    data = load("detect", str(tmp_path), DOUBLE)
    found = [perfect(data.test, k) for k in range(len(data.test))]
    content = json.loads((tmp_path / "instances_test.json").read_text())
    first = content["annotations"][0]
    content["annotations"].append(first | {"bbox": [0, 0, 32, 24], "iscrowd": 1, "id": 99})
    write_json(tmp_path / "instances_test.json", content)
    data = load("detect", str(tmp_path), DOUBLE)
    assert len(data.test.example(0).target["boxes"]) == 1
    inside = {"boxes": torch.tensor([[2.0, 2, 9, 9]]), "labels": found[0]["labels"], "scores": torch.tensor([0.9])}
    found[0] = {name: torch.cat([found[0][name], own]) for name, own in inside.items()}
    assert score("detect", data, "test", found)["metrics"]["ap"] == pytest.approx(1)


def one_hot(mask, classes=3):
    return {"logits": torch.nn.functional.one_hot(torch.as_tensor(mask), classes).permute(2, 0, 1).float()}


def test_intersection_over_union(tmp_path):
    data = load("segment", str(mask_folder(tmp_path)), ExampleSettings(size=SIZE[0]))
    truth = [data.test.truth(k) for k in range(len(data.test))]
    right = score("segment", data, "test", (one_hot(np.where(t == 255, 0, t)) for t in truth))
    assert right["metrics"] == pytest.approx({"miou": 1, "pixel_accuracy": 1, "class_accuracy": 1})
    grey = score("segment", data, "test", (one_hot(np.zeros_like(t)) for t in truth))
    share = sum((t == 0).sum() for t in truth) / sum((t != 255).sum() for t in truth)
    assert grey["metrics"]["pixel_accuracy"] == pytest.approx(share)
    assert grey["metrics"]["miou"] == pytest.approx(share / 3)
    assert grey["metrics"]["class_accuracy"] == pytest.approx(1 / 3)
    assert grey["by_class"]["red"]["iou"] == 0
    assert grey["by_class"]["grey"] == pytest.approx({"iou": share, "share": share})


def test_segmentation_is_scored_at_the_stored_size(tmp_path):
    data = load("segment", str(mask_folder(tmp_path)), DOUBLE)
    found = []
    for k in range(len(data.test)):
        mask = data.test.example(k).target["mask"]
        assert mask.shape == (48, 64)
        found.append(one_hot(torch.where(mask == 255, 0, mask)))
    assert score("segment", data, "test", found)["metrics"]["miou"] > 0.97


def test_a_class_that_is_nowhere_does_not_count(tmp_path):
    write_json(mask_folder(tmp_path) / "classes.json", {"class_names": ["grey", "red", "blue", "x"], "ignore_index": 9})
    data = load("segment", str(tmp_path), ExampleSettings(size=SIZE[0]))
    truth = [data.test.truth(k) for k in range(len(data.test))]
    result = score("segment", data, "test", (one_hot(np.where(t == 255, 0, t), 4) for t in truth))
    assert result["by_class"]["x"]["iou"] is None
    assert result["metrics"]["miou"] == pytest.approx(1)


class Brightness:
    """Class 1 where a picture is bright; keeps the sizes it saw, and errs on the left half."""

    def __init__(self):
        self.seen = []

    def predict(self, pictures, targets):
        self.seen += [tuple(p.shape[-2:]) for p in pictures]
        out = []
        for picture in pictures:
            bright = picture[0] * 4
            bright[:, : bright.shape[1] // 2] = 1.0
            out.append({"logits": torch.stack([-bright, bright])})
        return out


def test_several_scales_and_flips():
    picture = torch.full((3, 20, 30), -1.0)
    picture[:, 5:15, 8:22] = 1.0
    model = Brightness()
    [found] = predict_scales(model, [picture], [{}], scales=(0.5, 1.0, 2.0))
    assert model.seen == [(10, 15)] * 2 + [(20, 30)] * 2 + [(40, 60)] * 2
    assert found["logits"].shape == (2, 20, 30)
    probabilities = found["logits"].exp()
    assert torch.allclose(probabilities.sum(0), torch.ones(20, 30))
    assert torch.allclose(probabilities, probabilities.flip(-1), atol=1e-5)  # the mean of both sides
    [single] = predict_scales(model, [picture], [{}], scales=(1.0,), flip=False)
    alone = model.predict([picture], [{}])[0]["logits"]
    assert torch.allclose(single["logits"], alone.log_softmax(0), atol=1e-5)


def test_answers(tmp_path):
    data = load("vqa", str(questions_folder(tmp_path)), ExampleSettings(size=8))
    scores = torch.eye(len(data.classes))
    right = [{"scores": scores[data.test.answer(k)]} for k in range(len(data.test))]
    assert score("vqa", data, "test", right)["metrics"] == {"accuracy": 1.0}
    yes = [{"scores": scores[data.classes.index("yes")]}] * len(data.test)
    result = score("vqa", data, "test", yes)
    assert result["metrics"]["accuracy"] == 0.5
    assert result["by_class"]["yes"] == {"accuracy": 1.0, "count": 6}
    assert result["by_class"].get("red", {"accuracy": 0})["accuracy"] == 0


def test_there_is_a_prediction_for_each_example(tmp_path):
    data = load("vqa", str(questions_folder(tmp_path)), ExampleSettings(size=8))
    one = {"scores": torch.eye(len(data.classes))[0]}
    with pytest.raises(SuperformerError, match="5 predictions for the 12 examples"):
        score("vqa", data, "test", [one] * 5)
    with pytest.raises(SuperformerError, match="more predictions than the 12"):
        score("vqa", data, "test", [one] * 13)
    with pytest.raises(SuperformerError, match="unknown split 'tset': did you mean 'test'"):
        score("vqa", data, "tset", [])


def test_masks_of_which_all_is_ignored(tmp_path):
    mask_folder(tmp_path)
    for k in range(6):
        Image.fromarray(np.full(SIZE, 9, np.uint8)).save(tmp_path / "val" / "masks" / f"{k}.png")
    data = load("segment", str(tmp_path), ExampleSettings(size=24))
    with pytest.raises(SuperformerError, match="nothing to score"):
        score("segment", data, "test", [one_hot(np.zeros(SIZE, np.int64))] * 6)
