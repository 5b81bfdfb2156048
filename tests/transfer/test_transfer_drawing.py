"""Pictures of what was found say what was found."""

from __future__ import annotations

import torch

from superformer.transfer.drawing import FOUND, MISSED, WRONG, as_jpeg, detections, matched, segmentation

BOXES = torch.tensor([[2.0, 2, 12, 12], [20, 20, 36, 36]])
TARGET = {"boxes": BOXES, "labels": torch.tensor([1, 2])}
PICTURE = torch.zeros(3, 40, 40, dtype=torch.uint8)


def prediction(boxes: list[list[float]], labels: list[int], scores: list[float]) -> dict[str, torch.Tensor]:
    return {"boxes": torch.tensor(boxes).reshape(-1, 4), "labels": torch.tensor(labels), "scores": torch.tensor(scores)}


def test_an_object_is_found_once_by_the_surest():
    found = prediction(
        [[2, 2, 12, 12], [3, 2, 12, 12], [20, 20, 36, 36], [0, 0, 9, 9]], [1, 1, 1, 1], [0.6, 0.9, 0.8, 0.1]
    )
    kept, right, seen = matched(TARGET, found)
    assert kept.tolist() == [1, 2, 0]  # the surest first, those below a half left out
    assert right.tolist() == [True, False, False]  # another class, and a second box of the same object
    assert seen.tolist() == [True, False]


def colours(drawn: torch.Tensor) -> set[tuple[int, ...]]:
    return {tuple(p) for p in drawn.flatten(1).T.tolist()}


def test_found_missed_and_wrong_have_their_colours():
    drawn, told = detections(
        PICTURE, TARGET, prediction([[2, 2, 12, 12], [5, 25, 15, 38]], [1, 2], [0.9, 0.9]), ["a", "b"]
    )
    assert told == "1 found, 1 missed, 1 wrong"
    assert {FOUND, MISSED, WRONG} <= colours(drawn)
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    assert detections(PICTURE, nothing, prediction([], [], []), ["a"])[1] == "0 found, 0 missed, 0 wrong"
    assert detections(PICTURE, TARGET, prediction([], [], []), ["a", "b"])[1] == "0 found, 2 missed, 0 wrong"


def test_segmentation_stands_beside_the_truth():
    truth = torch.zeros(40, 40, dtype=torch.int64)
    truth[:, 20:], truth[:5] = 1, 255
    drawn, told = segmentation(PICTURE, truth, torch.zeros(40, 40, dtype=torch.int64), ["a", "b"])
    assert drawn.shape == (3, 40, 120)
    assert told == "50.0 % of the pixels are right"
    assert not drawn[:, :5, 40:80].any()
    assert as_jpeg(drawn).startswith(b"\xff\xd8")
