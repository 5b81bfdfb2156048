from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from helpers.examples import (
    SIZE,
    coco_folder,
    coco_part,
    mask_folder,
    mask_part,
    questions_folder,
    questions_part,
    write_json,
)
from PIL import Image
from pycocotools import mask

from superformer.errors import SuperformerError
from superformer.transfer.examples import ExampleSettings, load
from superformer.transfer.examples.coco import run_lengths
from superformer.transfer.examples.questions import normalised
from superformer.transfer.examples.vocabulary import Vocabulary, of_questions

PLAIN = ExampleSettings(size=SIZE[0], workers=1, texts=2)


def edited(path, change):
    """A json file with its content changed."""
    content = json.loads(path.read_text())
    write_json(path, change(content) or content)
    return content


def quietly(task, root, settings=PLAIN):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(task, str(root), settings)


# --- COCO's json ---


def test_boxes_and_masks_of_a_folder(tmp_path):
    data = load("instance", str(coco_folder(tmp_path)), PLAIN)
    assert data.classes == ("red", "blue")
    assert data.about["categories"] == (3, 4)
    assert (len(data.train), len(data.choice), len(data.test)) == (11, 1, 6)
    example = data.test.example(0)
    x1, y1, x2, y2 = example.target["boxes"][0].int().tolist()
    assert example.picture.shape == (3, *SIZE)
    assert example.target["size"] == SIZE
    mask = torch.zeros(SIZE, dtype=torch.uint8)
    mask[y1:y2, x1:x2] = 1
    assert torch.equal(example.target["masks"][0], mask)
    red, blue = example.picture[0, y1, x1], example.picture[2, y1, x1]
    assert int(example.target["labels"][0]) == (1 if red > blue else 2)


@pytest.mark.parametrize("layout", ["annotations", "beside", "one", "pair"])
def test_layouts_of_coco_files(tmp_path, layout):
    coco_folder(tmp_path)
    spec = str(tmp_path)
    if layout == "annotations":  # COCO's own
        (tmp_path / "annotations").mkdir()
        for part in ("train", "test"):
            (tmp_path / f"instances_{part}.json").rename(tmp_path / "annotations" / f"instances_{part}2017.json")
            (tmp_path / "annotations" / f"captions_{part}2017.json").write_text("{}")
            (tmp_path / part).rename(tmp_path / f"{part}2017")
    elif layout == "beside":  # Roboflow's
        for part in ("train", "test"):
            (tmp_path / f"instances_{part}.json").rename(tmp_path / part / "_annotations.coco.json")
    elif layout == "one":
        spec = str(tmp_path / "instances_train.json")
    else:
        spec = f"train={tmp_path / 'instances_train.json'},test={tmp_path / 'instances_test.json'}"
    data = load("detect", spec, PLAIN)
    expected = (9, 1, 2) if layout == "one" else (11, 1, 6)
    assert (len(data.train), len(data.choice), len(data.test)) == expected


def test_the_choice_is_always_the_same_and_not_trained_on(tmp_path):
    first, second = (load("detect", str(coco_folder(tmp_path)), PLAIN) for _ in range(2))
    chosen = {p.image_id for p in first.choice.pictures}
    assert chosen == {p.image_id for p in second.choice.pictures}
    assert not chosen & {p.image_id for p in first.train.pictures}
    assert first.fingerprint == second.fingerprint
    edited(tmp_path / "instances_train.json", lambda c: c["annotations"][0].update(bbox=[1, 1, 9, 9]))
    assert load("detect", str(tmp_path), PLAIN).fingerprint != first.fingerprint


def test_unsound_annotations_are_counted_and_skipped(tmp_path):
    def spoil(content):
        first = content["annotations"][0]
        content["annotations"] += [
            first | {"bbox": [100, 100, 5, 5]},
            first | {"bbox": [1, 1, 0, 5]},
            first | {"bbox": [1, 1, 5]},
            first | {"category_id": 77},
            first | {"image_id": 77},
            first | {"segmentation": []},
            first | {"segmentation": {"size": [5, 5], "counts": [25]}},
            first | {"segmentation": [[0, 0, 1e300, 0, 5, 5]]},
            first | {"segmentation": {"size": list(SIZE), "counts": "zzzz"}},
            first | {"bbox": [-4, -4, 12, 12]},  # sound: cut at the border
        ]

    coco_part(tmp_path, "train", 40)
    coco_part(tmp_path, "test", 4)
    edited(tmp_path / "instances_train.json", spoil)
    data = quietly("instance", tmp_path)
    assert data.skipped == {
        "boxes outside their picture": 1,
        "boxes without an area": 1,
        "boxes that are not [x, y, width, height]": 1,
        "annotations of categories that are not listed": 1,
        "annotations of pictures that are not listed": 1,
        "objects without a mask": 1,
        "masks of another size than their picture": 1,
        "polygons that are not lists of x, y, x, y, ...": 1,
        "masks whose runs do not fill their picture": 1,
    }
    boxes = [i.box for split in (data.train, data.choice) for p in split.pictures for i in p.instances]
    assert len(boxes) == 41
    assert (0.0, 0.0, 8.0, 8.0) in boxes
    with pytest.warns(UserWarning, match="boxes outside their picture: 1 of 50, the first is"):
        load("detect", str(tmp_path), PLAIN)


def test_compressed_runs_are_read_as_pycocotools_does():
    rng = np.random.default_rng(0)
    for share in (0.0, 0.1, 0.5, 1.0):
        drawn = np.asfortranarray(rng.random((37, 61)) < share).astype(np.uint8)
        runs = run_lengths(mask.encode(drawn)["counts"].decode())
        again = np.repeat(np.arange(len(runs)) % 2, runs).reshape(61, 37).T
        assert np.array_equal(again, drawn)


def test_pictures_without_objects(tmp_path):
    coco_folder(tmp_path)
    edited(tmp_path / "instances_train.json", lambda c: c["annotations"].__delitem__(slice(4, None)))
    data = load("detect", str(tmp_path), PLAIN)
    assert len(data.train) + data.skipped["training pictures without objects"] == 11
    data = load("instance", str(tmp_path), ExampleSettings(size=12, empty=True, flip=1))
    empty = next(k for k, p in enumerate(data.train.pictures) if p.empty)
    target = data.train.example(empty, (0, 0, 0)).target
    assert (target["boxes"].shape, target["labels"].shape) == ((0, 4), (0,))
    assert target["masks"].shape == (0, 12, 16)


MISTAKES = {
    "an empty list of categories": lambda c: c.update(categories=[]),
    "no box at all": lambda c: c.update(annotations=[]),
    "no list of annotations": lambda c: c.pop("annotations") and None,
    "lists no pictures": lambda c: c.update(images=[]),
    "outside their picture: 12 of 12": lambda c: [a.update(bbox=[500, 1, 9, 9]) for a in c["annotations"]] and None,
    "an image id twice": lambda c: c["images"].append(c["images"][0]),
    "other categories than": lambda c: c["categories"][0].update(name="green"),
    "another size than the json says": lambda c: c["images"][0].update(width=99),
    "are in none of": lambda c: [i.update(file_name="gone/" + i["file_name"]) for i in c["images"]] and None,
}


@pytest.mark.parametrize("told", MISTAKES)
def test_mistakes_in_coco_files(tmp_path, told):
    edited(coco_folder(tmp_path) / "instances_train.json", MISTAKES[told])
    with pytest.raises(SuperformerError, match=told):
        quietly("detect", tmp_path)


def test_a_missing_picture(tmp_path):
    (coco_folder(tmp_path) / "train" / "0.png").unlink()
    with pytest.raises(SuperformerError, match=r"1 of 12, the first is .*0.png, missing; more than 1%"):
        load("detect", str(tmp_path), PLAIN)
    coco_part(tmp_path, "train", 120)
    (tmp_path / "train" / "0.png").unlink()
    data = quietly("detect", tmp_path)
    assert data.skipped == {"pictures missing or unreadable": 1}
    assert len(data.train) + len(data.choice) == 119


def test_a_picture_that_does_not_decode_is_grey(tmp_path):
    data = load("detect", str(coco_folder(tmp_path)), PLAIN)
    file = tmp_path / "train" / data.train.store.paths[data.train.pictures[0].place]
    file.write_bytes(file.read_bytes()[:200])
    with pytest.warns(UserWarning, match="grey stands in"):
        example = data.train.example(0)
    assert float(example.picture.std(dim=(1, 2)).max()) == pytest.approx(0, abs=1e-5)


# --- masks ---


def test_pictures_and_masks(tmp_path):
    data = load("segment", str(mask_folder(tmp_path)), PLAIN)
    assert data.classes == ("grey", "red", "blue")
    assert (len(data.train), len(data.choice), len(data.test)) == (11, 1, 6)
    example = data.test.example(0)
    stored = np.asarray(Image.open(tmp_path / "val" / "masks" / "0.png"))
    assert np.array_equal(example.target["mask"].numpy(), np.where(stored == 9, 255, stored))
    assert example.target["mask"].dtype == torch.int64


def test_classes_without_names_are_the_values(tmp_path):
    mask_folder(tmp_path, names=False)
    assert load("segment", str(tmp_path), PLAIN).classes == ("0", "1", "2", "9")
    data = load("segment", str(tmp_path), ExampleSettings(size=24, ignore=(9, 0)))
    assert data.classes == ("1", "2")
    assert set(data.test.truth(0).ravel().tolist()) <= {0, 1, 255}


def test_an_ignored_value_with_a_name_is_no_class(tmp_path):
    names = [*"abcdefghi", "void"]
    write_json(mask_folder(tmp_path) / "classes.json", {"class_names": names, "ignore_index": 9})
    assert load("segment", str(tmp_path), PLAIN).classes == tuple("abcdefghi")


def written_masks(root, change):
    for path in root.glob("*/masks/*.png"):
        change(np.asarray(Image.open(path))).save(path)


def test_grey_masks_may_have_transparency(tmp_path):
    mask_folder(tmp_path)
    truth = load("segment", str(tmp_path), PLAIN).test.truth(0)
    written_masks(tmp_path, lambda m: Image.fromarray(np.stack([m, np.full_like(m, 200)], -1), "LA"))
    assert (load("segment", str(tmp_path), PLAIN).test.truth(0) == truth).all()


def test_masks_in_colours_are_told_also_without_names(tmp_path):
    mask_folder(tmp_path, names=False)
    written_masks(tmp_path, lambda m: Image.fromarray(np.stack([m, m + 1, m], -1)))
    with pytest.raises(SuperformerError, match=r"no pictures of numbers: 12 of 12.*in colours"):
        load("segment", str(tmp_path), PLAIN)


def test_values_may_be_named_by_number(tmp_path):
    mask_folder(tmp_path, names=False)
    written_masks(tmp_path, lambda m: Image.fromarray(np.where(m > 0, 255, 0).astype(np.uint8)))
    with pytest.raises(
        SuperformerError, match=r'if 255 is a class.*\{"class_names": \{"0": "nothing", "255": "thing"\}\}'
    ):
        load("segment", str(tmp_path), PLAIN)
    for content in (
        {"class_names": {"0": "nothing", "255": "thing"}},
        {"0": "nothing", "255": "thing"},
        {"id2label": {"0": "nothing", "255": "thing"}, "ignore_index": None},
    ):
        write_json(tmp_path / "classes.json", content)
        data = load("segment", str(tmp_path), PLAIN)
        assert data.classes == ("nothing", "thing")
        assert set(data.test.truth(0).ravel().tolist()) == {0, 1}


def test_images_and_masks_above_the_parts(tmp_path):
    mask_part(tmp_path / "x", 6)
    for kind, name in (("images", "images"), ("masks", "annotations")):
        (tmp_path / name).mkdir()
        (tmp_path / "x" / kind).rename(tmp_path / name / "training")
    data = load("segment", str(tmp_path), PLAIN)  # without a test part: some are held out
    assert (len(data.train), len(data.choice), len(data.test)) == (4, 1, 1)


def spoiled_mask(root, values):
    Image.fromarray(values).save(root / "train" / "masks" / "0.png")


SPOILED = {
    "masks of another size than their picture": lambda root: spoiled_mask(root, np.zeros((5, 5), np.uint8)),
    "masks with values of no class": lambda root: spoiled_mask(root, np.full(SIZE, 77, np.uint8)),
    "masks that are no pictures of numbers": lambda root: spoiled_mask(
        root, np.random.default_rng(0).integers(0, 9, (*SIZE, 3), dtype=np.uint8)
    ),
    "pictures without a mask": lambda root: (root / "train" / "masks" / "0.png").unlink(),
    "masks without a picture": lambda root: (root / "train" / "images" / "0.png").unlink(),
    "pictures or masks missing or unreadable": lambda root: (root / "train" / "masks" / "0.png").write_text("x"),
}


@pytest.mark.parametrize("told", SPOILED)
def test_spoiled_masks(tmp_path, told):
    mask_folder(tmp_path)
    SPOILED[told](tmp_path)
    with pytest.raises(SuperformerError, match=f"{told}: 1 of 12, the first is"):
        load("segment", str(tmp_path), PLAIN)
    mask_part(tmp_path / "train", 110)
    SPOILED[told](tmp_path)
    data = quietly("segment", tmp_path)
    assert data.skipped == {told: 1}
    assert len(data.train) + len(data.choice) == 109


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"class_names": ["a", "a"]}, "different names"),
        ({"class_names": ["a"]}, "two or more"),
        ({"class_names": ["a", "b"], "ignore_index": "x"}, "ignore_index is 'x'"),
    ],
)
def test_mistakes_in_names_of_classes(tmp_path, content, told):
    write_json(mask_folder(tmp_path) / "classes.json", content)
    with pytest.raises(SuperformerError, match=told):
        load("segment", str(tmp_path), PLAIN)


# --- questions ---


def test_questions_of_a_folder(tmp_path):
    data = load("vqa", str(questions_folder(tmp_path)), PLAIN)
    assert set(data.classes) == {"yes", "red", "blue"}
    assert (len(data.train), len(data.choice), len(data.test)) == (22, 2, 12)
    assert not {q.place for q in data.train.questions} & {q.place for q in data.choice.questions}
    example = data.train.example(0, (0, 0, 0))
    words = data.about["vocabulary"]
    assert example.picture.shape == (3, 24, 24)
    assert [words[k] for k in example.target["question"] if k] == [
        "[CLS]", "what", "colour", "is", "it", "?", "[SEP]"
    ]  # fmt: skip
    other = [words[k] for k in example.target["matched"][0] if k]
    assert other[1:3] == ["is", "anything"]
    assert data.classes[int(example.target["matched_answers"])] == "yes"
    own, unmatched = other[3], {words[row[3]] for row in example.target["unmatched"].tolist()}
    assert unmatched == {"left", "right"} - {own}
    assert "matched" not in data.test.example(0).target
    alone = load("vqa", str(tmp_path), ExampleSettings(size=24, texts=1)).train.example(0, (0, 0, 0)).target
    assert (len(alone["matched"]), len(alone["matched_answers"]), len(alone["unmatched"])) == (0, 0, 1)
    many = load("vqa", str(tmp_path), ExampleSettings(size=24, texts=4)).train.example(0, (0, 0, 0)).target
    assert (len(many["matched"]), len(many["matched_answers"]), len(many["unmatched"])) == (3, 3, 4)


def test_questions_as_npz(tmp_path):
    rng = np.random.default_rng(0)
    for part, n in (("train", 10), ("test", 4)):
        np.savez(
            tmp_path / f"shapes_{part}.npz",
            images=rng.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8),
            questions=np.array(["is it red?", "what is it?"] * n),
            question_image=np.repeat(np.arange(n), 2),
            answers=np.array([0, 1] * n),
            answer_names=np.array(["no", "circle"]),
        )
    data = load("vqa", str(tmp_path), ExampleSettings(size=16))
    assert (len(data.train), len(data.choice), len(data.test)) == (18, 2, 8)
    assert data.classes == ("circle", "no")
    assert data.train.example(1).target["answer"] == 0


def test_answers_of_ten_people(tmp_path):
    """VQA 2.0's two files, numbers instead of names."""
    questions_folder(tmp_path)
    for part in ("train", "val"):
        (tmp_path / f"{part}2014").mkdir()
        for k in range(4):
            Image.fromarray(np.full((9, 9, 3), k, np.uint8)).save(
                tmp_path / f"{part}2014" / f"COCO_{part}2014_{k:012}.jpg"
            )
        ids = [{"question_id": 7 + k, "image_id": k, "question": "which one"} for k in range(4)]
        write_json(tmp_path / f"v2_OpenEnded_mscoco_{part}2014_questions.json", {"questions": ids})
        people = [{"answer": a} for a in ["two"] * 7 + ["2"] * 2 + ["three"]]
        written = [{"question_id": 7 + k, "answers": people if k % 2 else [{"answer": "no"}] * 10} for k in range(4)]
        write_json(tmp_path / f"v2_mscoco_{part}2014_annotations.json", {"annotations": written})
        (tmp_path / f"questions_{part}.json").unlink(missing_ok=True)
    (tmp_path / "questions_test.json").unlink()
    data = load("vqa", str(tmp_path), ExampleSettings(size=8, choice=0))
    assert data.classes == ("2", "no")  # as VQA compares them
    assert data.test.example(1).target["credit"].tolist() == [1, 0]
    assert dict(data.test.questions[1].credit) == pytest.approx({"2": 1, "3": 0.3})


@pytest.mark.parametrize(
    ("said", "compared"),
    [("The dogs.", "dogs"), ("a", "a"), ("1,000", "1000"), ("3.5", "3.5"), ("yes!", "yes"), ("up/down", "up down")],
)
def test_answers_are_compared_as_vqa_compares_them(said, compared):
    assert normalised(said) == compared


def test_answers_of_several_people_as_texts(tmp_path):
    def told(answers):
        questions_folder(tmp_path)
        for part in ("train", "test"):
            listed = [q | {"answers": answers(k)} for k, q in enumerate(questions_part(tmp_path, part, 6))]
            listed = [{k: v for k, v in q.items() if k != "answer"} for q in listed]
            write_json(tmp_path / f"questions_{part}.json", {"questions": listed})
        return quietly("vqa", tmp_path).test.questions[0].credit

    votes = told(lambda k: ["blue", *["red"] * 9] if k % 2 == 0 else ["Yes"] * 10)
    assert dict(votes) == pytest.approx({"red": 1.0, "blue": 0.3})
    assert told(lambda k: ["The red"] if k % 2 else ["blue"]) == (("blue", 1.0),)  # one each: no votes


def test_an_answer_may_be_a_list(tmp_path):
    questions_folder(tmp_path)
    for part in ("train", "test"):
        edited(
            tmp_path / f"questions_{part}.json",
            lambda c: [q.update(answer=[q["answer"]]) for q in c["questions"] if "answer" in q] and None,
        )
    assert "questions without an answer" not in quietly("vqa", tmp_path).skipped


@pytest.mark.parametrize("task", ["detect", "segment", "vqa"])
def test_test_pictures_have_a_fingerprint_of_their_own(tmp_path, task):
    make = {"detect": coco_folder, "segment": mask_folder, "vqa": questions_folder}[task]
    make(tmp_path / "a")
    before = load(task, str(tmp_path / "a"), PLAIN)
    {
        "detect": lambda: coco_part(tmp_path / "a", "test", 7, seed=2),
        "segment": lambda: mask_part(tmp_path / "a" / "val", 6, seed=2),
        "vqa": lambda: questions_part(tmp_path / "a", "test", 7, seed=2),
    }[task]()
    after = load(task, str(tmp_path / "a"), PLAIN)
    assert before.fingerprint == after.fingerprint
    assert before.tested != after.tested


def test_questions_without_answers_and_rare_ones(tmp_path):
    def spoil(content):
        content["questions"][0].pop("answer")
        content["questions"][2]["answer"] = " "
        content["questions"][4]["answer"] = "seldom"

    edited(questions_folder(tmp_path) / "questions_train.json", spoil)
    edited(tmp_path / "questions_test.json", lambda c: c["questions"][0].update(answer="never heard"))
    data = quietly("vqa", tmp_path, ExampleSettings(size=8, answers=3, choice=0))
    assert data.skipped == {"questions without an answer": 2, "training questions with none of the 3 answers": 1}
    assert len(data.train) == 21
    assert data.about["unknown_test_answers"] == 1
    assert data.test.example(0).target["answer"] == -1
    edited(
        tmp_path / "questions_train.json", lambda c: [q.update(answer="", answers=[]) for q in c["questions"]] and None
    )
    with pytest.raises(SuperformerError, match="questions without an answer: 24 of 24"):
        quietly("vqa", tmp_path)


def test_a_vocabulary_of_pieces(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "what", "colour", "##ed", "box", "##es"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    settings = ExampleSettings(size=8, vocabulary=str(tmp_path / "vocab.txt"), words=6)
    data = load("vqa", str(questions_folder(tmp_path)), settings)
    assert data.about["vocabulary"] == tuple(pieces)
    assert Vocabulary(tuple(pieces)).encode("What Coloured boxes", 9).tolist() == [2, 4, 5, 6, 7, 8, 3, 0, 0]
    assert data.test.example(0).target["question"].tolist() == [2, 4, 5, 1, 1, 3]  # cut
    (tmp_path / "vocab.txt").write_text("what")
    with pytest.raises(SuperformerError, match=r"has no \[PAD\]"):
        load("vqa", str(tmp_path), settings)


def test_rare_words_are_unknown():
    spoken = of_questions(["what is this", "what is that", "é à"])
    assert spoken.words[4:] == ("is", "what")
    assert spoken.encode("WHAT is new", 6).tolist() == [2, 5, 4, 1, 3, 0]


# --- all ---


@pytest.mark.parametrize(
    ("task", "spec", "told"),
    [
        ("detect", "nowhere", "there is no nowhere: --data takes a folder with instances_train.json"),
        ("segment", "{}", "holds nothing to learn from"),
        ("vqa", "{}", "holds nothing to learn from"),
        ("detect", "train=,test=x", "names no training"),
        ("classify", "{}", "no examples for the task 'classify'"),
    ],
)
def test_what_data_cannot_say(tmp_path, task, spec, told):
    with pytest.raises(SuperformerError, match=told):
        load(task, spec.format(tmp_path), PLAIN)


def test_data_sets_behind_readers_are_refused_with_a_way_out():
    with pytest.raises(SuperformerError, match=r"--task classify.*save the pictures as files"):
        load("segment", "hfds/scene_parse_150", PLAIN)
