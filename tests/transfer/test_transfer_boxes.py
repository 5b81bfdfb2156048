"""Detection and instance masks from beginning to end on tiny pictures, whose objects are all small: COCO has no figure
for the other sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.shapes import WORDS, network, shapes

from superformer.report import write
from superformer.runs import stored
from superformer.train.steps import _worth
from superformer.transfer import evaluate, transfer
from superformer.transfer.settings import MAIN
from superformer.transfer.timing import bench

FEW = ("head.anchors=[16,24,32,48,64]", "head.hidden=32", "head.samples=16", "head.proposals=20", "data.size=64")
LENGTH = ("train.epochs=2", "train.batch_size=2", "watch.every=1", "watch.stop=2", "optimizer.lr=1e-4")
HEADS = [("detect", "retinanet"), ("instance", "mask-rcnn")]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("boxes")
    shapes(home / "shapes", 8, 2, (64, 64))
    network(home / "network")
    return home


@pytest.mark.parametrize(("task", "head"), HEADS)
def test_checked_judged_and_reported(home, task, head):
    folder, words = home / head, (*WORDS, *FEW, *LENGTH, "data.choice=0.25")
    found = transfer(task, str(home / "shapes"), folder, *words, backbone=str(home / "network"), head=head)
    assert found["metrics"]["ap_large"] is None  # no object is
    assert found["metrics"][MAIN[task]] is not None
    rows = [r for r in stored.read_lines(folder / "metrics.jsonl") if r["kind"] == "health"]
    assert rows
    assert all(r["metrics"]["ap_large"] is None and r["metrics"]["ap"] is not None for r in rows)
    evaluate(folder, "search")
    cost = found["cost"]
    assert cost["macs"] == cost["backbone_macs"] + cost["head_macs"] > 0
    assert cost["size"] == [64, 64]
    bench(folder, seconds=0.01)
    text = write(folder).read_text("utf-8")
    assert "AP, small" in text
    assert "MACs (64 x 64 pixels)" in text
    assert "milliseconds a picture" in text


def test_a_check_counts_by_the_main_figure():
    """By the others a training would end, or go on, that its task's figure says nothing of."""
    row = {"kind": "health", "step": 4, "metrics": {"ap": 0.25, "ap50": 0.75, "ap_large": None}, "skipped": 3}
    assert _worth(row, "ap") == 0.25
    assert _worth(row, None) == 0.5
    assert _worth({"accuracy": {"smallest": 0.25, "largest": 0.75}}, None) == 0.5
    for nothing in ({}, {"metrics": {"ap": None, "ap50": 0.5}}):
        assert _worth(nothing, "ap") is None
