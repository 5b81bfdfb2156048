from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torchvision import transforms

from superformer.data import index, load
from superformer.data.augment import EvalTransform
from superformer.data.dataset import Pictures
from superformer.data.sources import resolve
from superformer.data.stores import Files, Packed, decode
from superformer.errors import SuperformerError
from superformer.recipes.settings import Data

PLAIN = Data(augment="none", workers=1)
RNG = np.random.default_rng(0)


def noise(height: int = 12, width: int = 12, channels: int = 3) -> np.ndarray:
    return RNG.integers(0, 256, (height, width, channels), dtype=np.uint8)


def folder(root, classes=("cat", "dog"), n=6, ending="png", size=(12, 12)):
    for name in classes:
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(n):
            Image.fromarray(noise(*size)).save(root / name / f"{i}.{ending}")
    return root


def npz(path, **arrays):
    base = {"images": np.stack([noise(8, 8) for _ in range(20)]), "labels": np.arange(20) % 2}
    np.savez(path, **{k: v for k, v in (base | arrays).items() if v is not None})
    return path


# --- what --data may say ---


def test_digits_are_embedded():
    data = load("digits", PLAIN, 8)
    assert data.classes == tuple("0123456789")
    assert "held out" in data.test_origin
    assert len(data.train) + len(data.search) + len(data.test()) == 1797
    assert abs(len(data.test()) - 0.2 * 1797) < 6
    original = np.round(load_digits().images[data.search.index[0]] * 255 / 16)
    assert (data.search.picture(0) == original[..., None]).all()


def test_a_folder_of_folders(tmp_path):
    folder(tmp_path, ("10", "2"), n=10, ending="jpg")
    Image.fromarray(noise()).save(tmp_path / "loose.png")
    folder(tmp_path / ".hidden", ("x",))
    (tmp_path / "2" / "notes.txt").write_text("no picture")
    data = load(str(tmp_path), PLAIN, 8)
    assert data.classes == ("2", "10")
    assert (len(data.train), len(data.search), len(data.test())) == (14, 2, 4)


def test_classes_are_the_innermost_folders(tmp_path):
    folder(tmp_path / "pets", ("cat", "dog"))
    folder(tmp_path / "farm", ("cow",))
    assert resolve(str(tmp_path)).train.classes == ("cat", "cow", "dog")


@pytest.mark.parametrize("name", ["val", "test", "validation"])
def test_a_folder_with_train_and_test(tmp_path, name):
    folder(tmp_path / "train")
    folder(tmp_path / name, n=3)
    data = load(str(tmp_path), PLAIN, 8)
    assert data.test_origin == str(tmp_path / name)
    assert (len(data.train), len(data.search), len(data.test())) == (10, 2, 6)


def test_a_pair_and_npz_forms(tmp_path):
    grey = npz(tmp_path / "grey.npz", images=noise(20, 8, 8), class_names=np.array(["a", "b"]))
    last = npz(tmp_path / "last.npz", images=noise(20, 8, 8)[..., None], labels=np.zeros(20, np.uint8))
    data = load(f"train={grey},test={last}", PLAIN, 8)
    assert data.classes == ("a", "b")
    assert len(data.train) + len(data.search) == 20
    assert data.test().labels.tolist() == [0] * 20
    picture = data.test().picture(0)
    assert picture.shape == (8, 8, 3)
    assert (picture[..., 0] == picture[..., 2]).all()
    assert load(f"train={grey}", PLAIN, 8).test_origin.startswith("20%")


def test_packed_jpegs(tmp_path):
    files = []
    for _ in range(20):
        file = io.BytesIO()
        Image.fromarray(noise(10, 14)).save(file, "jpeg")
        files.append(file.getvalue())
    offsets = np.cumsum([0] + [len(f) for f in files])
    jpeg = np.frombuffer(b"".join(files), np.uint8)
    path = npz(tmp_path / "p.npz", images=None, jpeg=jpeg, offsets=offsets, class_names=np.array(["a", "b"]))
    data = load(str(path), PLAIN.model_copy(update={"augment": "timm"}), 8)
    assert (data.train.picture(3) == decode(io.BytesIO(files[data._train.index[3]]))).all()


class Stream:
    """A data set that can only be read from its beginning."""

    def __iter__(self):
        return ((Image.fromarray(noise()), i % 2) for i in range(20))


class Numbered:
    """A data set of torchvision's kind, whose pictures count how often they are read."""

    classes = ["cat", "dog"]

    def __init__(self, n):
        self.targets, self.read = [i % 2 for i in range(n)], 0

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, i):
        self.read += 1
        return Image.fromarray(noise()), self.targets[i]


def test_a_reader_of_timm(monkeypatch):
    from timm.data import dataset_factory

    sets = {"train": Numbered(20), "validation": Numbered(6)}
    monkeypatch.setattr(dataset_factory, "create_dataset", lambda name, split, **_: sets[split])
    data = load("torch/some:here", PLAIN, 8)
    assert data.classes == ("cat", "dog")
    assert (len(data.train), len(data.search)) == (18, 2)
    assert not sets["validation"].read
    assert (len(data.test()), data.test_origin) == (6, "the test part of torch/some:here")


def test_a_reader_of_timm_without_a_test_part_that_only_streams(monkeypatch):
    from timm.data import dataset_factory

    monkeypatch.setattr(dataset_factory, "create_dataset", lambda name, split, **_: {"train": Stream()}[split])
    data = load("wds/some", PLAIN, 8)
    assert (len(data.train), len(data.search), len(data.test())) == (14, 2, 4)
    fails("wds/some", "does not fit 0 GB", settings=Data(memory=0))


def test_a_test_part_that_fails_is_not_one_that_is_missing(monkeypatch):
    from timm.data import dataset_factory

    def create(name, split, **_):
        if split == "train":
            return Numbered(20)
        raise OSError("no network")

    monkeypatch.setattr(dataset_factory, "create_dataset", create)
    fails("hfds/some", "the test part of hfds/some .*no network")


# --- pixels ---


def test_a_part_without_labels_is_none(monkeypatch):
    """ImageNet's own test part: all labels are -1."""
    from timm.data import dataset_factory

    contest = Numbered(10)
    contest.targets = [-1] * 10
    sets = {"train": Numbered(40), "test": contest, "validation": Numbered(8)}
    monkeypatch.setattr(dataset_factory, "create_dataset", lambda name, split, **_: sets[split])
    assert len(load("hfds/ILSVRC/imagenet-1k", PLAIN, 8).test()) == 8
    del sets["validation"]
    assert load("hfds/some", PLAIN, 8).test_origin.endswith("held out")
    sets["train"] = contest
    fails("hfds/some", "the pictures of hfds/some have no labels")


def test_headers_are_read_once_for_all_processes(tmp_path, monkeypatch):
    """Of a set that is too large for memory: whoever comes later finds them in the index."""
    monkeypatch.setattr(index, "LARGE", 10)
    folder(tmp_path / "set", n=20, ending="png")
    read, header = [], Files.header
    monkeypatch.setattr(Files, "header", lambda own, i: (read.append(i), header(own, i))[1])
    small = PLAIN.model_copy(update={"memory": 0.0})
    load(str(tmp_path / "set"), small, 8).read_headers()
    assert len(set(read)) == len(read) == 32  # a fifth is held out
    read.clear()
    assert len(load(str(tmp_path / "set"), small, 8).train)
    assert not read


def test_every_kind_of_picture_becomes_rgb(tmp_path):
    grey16 = Image.fromarray(np.full((4, 4), 40000, np.uint16))
    kinds = [
        Image.fromarray(noise()[..., 0]),
        Image.fromarray(noise()).quantize(8),
        Image.fromarray(noise(12, 12, 4)),
        grey16,
    ]
    for i, picture in enumerate(kinds):
        picture.save(tmp_path / f"{i}.png")
        pixels = decode(tmp_path / f"{i}.png")
        assert pixels.dtype == np.uint8
        assert pixels.shape[2] == 3
    assert (pixels == 40000 >> 8).all()


@pytest.mark.parametrize(("height", "width"), [(40, 40), (40, 57), (90, 33)])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_squares_of_large_pictures_are_those_of_timm(height, width, interpolation):
    from timm.data import create_transform

    smooth = transforms.Resize((height, width))(Image.fromarray(noise(9, 9)))
    theirs = (
        create_transform(16, interpolation=interpolation, crop_pct=0.8, mean=(0, 0, 0), std=(1, 1, 1))(smooth) * 255
    )
    ours = EvalTransform(16, 0.8, interpolation)(torch.from_numpy(np.array(smooth))[None])[0]
    assert ours.shape == theirs.shape
    assert (ours.float() - theirs).abs().max() <= 2


def test_small_pictures_lose_no_border():
    picture = torch.from_numpy(noise(8, 8))[None]
    assert (EvalTransform(8)(picture) == picture.permute(0, 3, 1, 2)).all()
    assert EvalTransform(16)(picture).shape == (1, 3, 16, 16)
    corner = torch.zeros(1, 8, 8, 3, dtype=torch.uint8)
    corner[:, :2, :2] = 255
    assert EvalTransform(16, interpolation="nearest")(corner)[0, 0, :4, :4].eq(255).all()


def test_memory_decides_what_is_kept_but_not_the_order(tmp_path):
    folder(tmp_path, n=10, size=(60, 80))
    pictures = []
    for memory in (1.0, 20 * 60 * 80 * 3 / 2e9, 0.0):
        settings = Data(augment="timm", memory=memory, workers=1)
        pictures.append(load(str(tmp_path), settings, 16).train)
    whole, small, none = pictures
    assert whole.picture(0).shape == none.picture(0).shape == (60, 80, 3)
    assert small.picture(0).shape == (24, 32, 3)
    assert [p.store.decoded for p in pictures] == [True, True, False]
    assert (whole.labels == small.labels).all()
    assert (whole.picture(5) == none.picture(5)).all()
    assert whole.fingerprint == small.fingerprint == none.fingerprint
    transform = EvalTransform(16)
    assert (whole.squares(transform) == none.squares(transform)).all()
    assert not none._squares


def test_take_keeps_pictures_and_labels_together():
    pictures = load("digits", PLAIN, 8).train
    part = pictures.take([7, 3]).take([1])
    assert part.labels[0] == pictures.labels[3]
    assert (part.picture(0) == pictures.picture(3)).all()
    assert (part.squares(EvalTransform(8)) == pictures.squares(EvalTransform(8), np.array([3]))).all()


def test_the_fingerprint_notices_changes(tmp_path):
    folder(tmp_path)
    prints = [load(str(tmp_path), PLAIN, 8).fingerprint for _ in range(2)]
    assert prints[0] == prints[1]
    Image.fromarray(noise(13, 13)).save(tmp_path / "cat" / "0.png")
    assert load(str(tmp_path), PLAIN, 8).fingerprint != prints[0]
    assert load("digits", PLAIN, 8).fingerprint == load("digits", PLAIN, 16).fingerprint
    labels = np.arange(20) % 2
    a, b = (
        load(str(npz(tmp_path / "x.npz", images=noise(20, 8, 8), labels=y)), PLAIN, 8).fingerprint
        for y in (labels, 1 - labels)
    )
    assert a != b


def test_the_test_part_is_not_opened_before_it_is_asked_for(tmp_path, monkeypatch):
    folder(tmp_path / "train")
    folder(tmp_path / "test")
    opened = []
    real = Files.encoded
    monkeypatch.setattr(Files, "encoded", lambda s, i, most=-1: opened.append(s.name(i)) or real(s, i, most))
    data = load(str(tmp_path), Data(workers=1), 8)
    assert len(data.train) + len(data.search) == 12
    assert data.fingerprint
    assert opened
    assert not [name for name in opened if "/test/" in name]
    data.test()
    assert [name for name in opened if "/test/" in name]


# --- mistakes ---


def fails(spec, match, part="train", settings=PLAIN):
    def opened():
        data = load(str(spec), settings, 8)
        return data.test() if part == "test" else data.train

    with pytest.raises(SuperformerError, match=match):
        opened()


def test_a_path_that_does_not_exist(tmp_path):
    fails(tmp_path / "nothing", "there is no .*nothing.*--data takes digits")
    fails("digit", "did you mean 'digits'")
    fails(f"train={tmp_path / 'a.npz'}", "there is no")
    fails("train=,test=x", "names no training set")
    fails("train=digits.npz,test=", "names no test set")
    fails("test=x", "names no training set")
    fails(f"train={npz(tmp_path / 'a.npz')},test={tmp_path / 'b.npz'}", "there is no .*b.npz")


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "a.csv").write_text("1,2")
    fails(tmp_path / "a.csv", "neither .npz nor .tar")
    (tmp_path / "b.npz").write_text("1,2")
    fails(tmp_path / "b.npz", "not a .npz of plain arrays")
    np.save(tmp_path / "c.npy", np.zeros(3))
    (tmp_path / "c.npy").rename(tmp_path / "c.npz")
    fails(tmp_path / "c.npz", "holds one array")


def test_folders_without_classes(tmp_path):
    fails(tmp_path, "no pictures in folders of classes")
    Image.fromarray(noise()).save(tmp_path / "a.png")
    fails(tmp_path, "1 pictures but no folders")
    folder(tmp_path, ("cat",))
    fails(tmp_path, "only one class, 'cat'")


def test_a_class_that_is_too_small(tmp_path):
    folder(tmp_path)
    folder(tmp_path, ("rare",), n=1)
    fails(tmp_path, r"'rare' \(1\)")


def test_pictures_that_do_not_decode(tmp_path):
    folder(tmp_path, n=60)
    (tmp_path / "cat" / "3.png").write_bytes(b"broken")
    with pytest.warns(UserWarning, match=r"1 of 120 .*3.png"):
        part = Pictures(
            resolve(str(tmp_path)).train.store, resolve(str(tmp_path)).train.labels, ("cat", "dog")
        ).cache_squares(EvalTransform(8))
    assert len(part) == 119
    assert len(part.squares(EvalTransform(8))) == 119
    for i in range(10):
        (tmp_path / "dog" / f"{i}.png").write_bytes(b"broken")
    fails(tmp_path, "do not decode, more than 1%")


def test_a_truncated_picture_of_a_set_that_is_not_kept_is_grey(tmp_path):
    file = io.BytesIO()
    Image.fromarray(noise(50, 50)).save(file, "jpeg")
    half = np.frombuffer(file.getvalue()[: len(file.getvalue()) // 2], np.uint8)
    part = Pictures(Packed(half, np.array([0, len(half)])), np.array([0]), ("a",), memory=0).cache_squares(
        EvalTransform(8)
    )
    with pytest.warns(UserWarning, match="grey stands in"):
        assert (part.squares(EvalTransform(8)) == 128).all()


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"labels": np.arange(20) - 1}, "start at -1"),
        ({"labels": np.arange(19) % 2}, r"labels have shape \(19,\), but there are 20"),
        ({"labels": np.arange(20) / 2}, "labels are float64"),
        ({"labels": np.arange(20) % 3, "class_names": np.array(["a", "b"])}, "up to 2, but there are 2 classes"),
        ({"labels": np.arange(20) % 2 * 2}, "no picture of '1'"),
        ({"labels": np.array([10**9] * 20)}, "without gaps"),
        ({"labels": np.zeros(20, int)}, "only one class"),
        ({"labels": None}, "holds images: it needs"),
        ({"images": None, "pixels": np.zeros(3)}, "holds labels, pixels: it needs"),
        ({"images": np.zeros((20, 8, 8, 3))}, "images are float64"),
        ({"images": np.zeros((20, 3, 8, 8), np.uint8)}, r"shape \(20, 3, 8, 8\)"),
        ({"images": np.zeros((20, 8), np.uint8)}, r"shape \(20, 8\)"),
        ({"images": np.zeros((0, 8, 8), np.uint8), "labels": np.zeros(0, int)}, "no pictures"),
        ({"images": np.array([object()] * 20)}, "Python objects are refused"),
        ({"labels": np.array([0, None] * 10)}, "Python objects are refused"),
        ({"class_names": np.array(["a", "a"])}, "a name twice"),
        ({"images": None, "jpeg": np.zeros(9, np.uint8), "offsets": np.array([0, 5, 3])}, "offsets must be"),
        ({"images": None, "jpeg": np.zeros(9), "offsets": np.arange(21)}, "jpeg is float64"),
    ],
)
def test_npz_files_that_are_not_right(tmp_path, arrays, match):
    fails(npz(tmp_path / "x.npz", **arrays), match)


def test_other_classes_in_the_test_set_are_noticed_at_once(tmp_path):
    folder(tmp_path / "train", ("cat", "dog"))
    folder(tmp_path / "test", ("cat", "cow"))
    fails(tmp_path, "'dog' only in training; 'cow' only in the test set")
    a, b = (
        npz(tmp_path / f"{n}.npz", class_names=np.array(names)) for n, names in (("a", ["x", "y"]), ("b", ["y", "x"]))
    )
    fails(f"train={a},test={b}", "another order")
    plain = npz(tmp_path / "plain.npz", labels=np.arange(20) % 3)
    fails(f"train={a},test={plain}", "up to 2, but there are 2 classes", part="test")


def test_an_empty_test_set(tmp_path):
    folder(tmp_path / "train")
    (tmp_path / "test" / "cat").mkdir(parents=True)
    fails(tmp_path, "no pictures in folders of classes")
    empty = npz(tmp_path / "e.npz", images=np.zeros((0, 8, 8), np.uint8), labels=np.zeros(0, int))
    fails(f"train={tmp_path / 'train'},test={empty}", "no pictures", part="test")


def test_a_reader_that_timm_cannot_open(tmp_path):
    fails(f"torch/nonsense:{tmp_path}", "timm could not read torch/nonsense.*Unknown torchvision dataset")
    fails(f"torch/image_folder:{tmp_path}", "give the folder itself")


def test_other_mistakes_in_the_settings():
    fails("digits", "did you mean 'bilinear'", settings=PLAIN.model_copy(update={"interpolation": "biliner"}))
    fails("digits", "fewer than", settings=PLAIN.model_copy(update={"search": 500}))


def test_nothing_is_warned_about_in_a_sound_folder(tmp_path):
    folder(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(str(tmp_path), PLAIN, 8).train.labels.sum()
