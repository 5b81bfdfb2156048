from __future__ import annotations

import io
import json
import multiprocessing
import os
import pickle
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from superformer.data import DataSet, index, load, shards, train_batches
from superformer.data.dataset import Pictures
from superformer.data.index import Names
from superformer.data.sources import resolve
from superformer.data.stores import Encoded, Files, digest, jpeg_size
from superformer.errors import SuperformerError
from superformer.recipes.settings import Data, Mix

RNG = np.random.default_rng(0)
TIMM = Data(augment="timm", workers=0, memory=0, erase=0.5)
CLASSES = ("cat", "dog")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def jpeg(height: int = 14, width: int = 12) -> bytes:
    file = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(file, "jpeg")
    return file.getvalue()


def tar(path: Path, members: dict[str, bytes | str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as out:
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1.5  # type: ignore[assignment]  # as webdataset: a header of its own
            out.addfile(info, io.BytesIO(data))
    return path


def both(root: Path, n: int = 20, each: int = 7) -> tuple[Path, Path]:
    """The same pictures as a folder and as shards, in the same order."""
    pictures = {f"{name}/{i}.jpg": jpeg(10 + i % 3) for name in CLASSES for i in range(n)}
    for name, data in pictures.items():
        (root / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "folder" / name).write_bytes(data)
    names = list(pictures)
    for k in range(0, len(names), each):
        tar(root / "tars" / f"part-{k // each}.tar", {n: pictures[n] for n in names[k : k + each]})
    return root / "folder", root / "tars"


def everything(data: DataSet) -> int:
    return len(data.train) + len(data.search) + len(data.test())


def numbered(n: int = 20, **more: bytes | str) -> dict[str, bytes | str]:
    """Pictures with their labels beside them, as webdataset writes them."""
    members: dict[str, bytes | str] = {}
    for i in range(n):
        members |= {f"{i:04d}.jpg": jpeg(), f"{i:04d}.cls": str(i % 2)}
    return members | more


def epoch(pictures: Pictures, data: Data, **more):
    with train_batches(pictures, data, Mix(smoothing=0), 8, seed=1, epoch=2, batch_size=8, **more) as batches:
        return [(b.x, b.labels) for b in batches]


def same(a, b) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b, strict=True)
    )


# --- what is read ---


def test_a_tar_is_a_folder_picture_by_picture(tmp_path):
    data = [load(str(spec), TIMM, 8) for spec in both(tmp_path)]
    for part in ("train", "search", "_test"):
        folder, tars = (getattr(d, part) for d in data)
        assert folder.classes == tars.classes == CLASSES
        assert (folder.labels == tars.labels).all()
        assert len(folder) == len(tars) > 1
        for i in range(len(folder)):
            assert (folder.picture(i) == tars.picture(i)).all()
            assert folder.store.size(i) == tars.store.size(i)
    assert same(epoch(data[0].train, TIMM), epoch(data[1].train, TIMM))
    assert data[0].fingerprint != data[1].fingerprint
    kept = [load(str(spec), TIMM.model_copy(update={"memory": 2}), 8) for spec in both(tmp_path)]
    assert all(d.train.store.decoded for d in kept)
    assert same(epoch(kept[0].train, TIMM), epoch(kept[1].train, TIMM))


def test_workers_processes_and_the_first_step_change_nothing(tmp_path):
    for spec in both(tmp_path):
        pictures = load(str(spec), TIMM, 8).train
        whole = epoch(pictures, TIMM)
        assert len(whole) == 3
        for workers, start, world in ((2, 1, 1), (1, 2, 1), (0, 1, 2), (0, 0, 4)):
            data = TIMM.model_copy(update={"workers": workers})
            for rank in range(world):
                own = epoch(pictures, data, start=start, rank=rank, world=world)
                assert same([(x[rank::world], y[rank::world]) for x, y in whole[start:]], own)


def test_labels_beside_the_pictures(tmp_path):
    one = resolve(str(tar(tmp_path / "a.tar", numbered()))).train
    assert one.labels.tolist() == [0, 1] * 10
    assert one.classes == ("0", "1")
    said = {f"x/{i}.JSON": json.dumps({"label": ["b", "a"][i % 2], "id": i}) for i in range(4)}
    named = tar(tmp_path / "b.tar", {f"x/{i}.jpg": jpeg() for i in range(4)} | said | {"about.json": "[1]"})
    assert resolve(str(named)).train.classes == ("a", "b")
    assert resolve(str(named)).train.labels.tolist() == [1, 0] * 2
    agree = numbered() | {"0000.json": '{"label": 0}', "0001.json": '{"url": "x"}'}
    assert (resolve(str(tar(tmp_path / "c.tar", agree))).train.labels == one.labels).all()


def test_where_shards_may_lie(tmp_path):
    for k in range(3):
        tar(tmp_path / f"all/set-train-{k:03d}.tar", numbered())
    tar(tmp_path / "all/set-validation-000.tar", numbered(6))
    one = resolve(str(tmp_path / "all"))
    assert (len(one.train.labels), len(one.test().labels)) == (60, 6)
    assert one.test_origin == str(tmp_path / "all/set-validation-000.tar")
    for train in ("set-train-{000..002}.tar", "set-train-*.tar"):
        pair = resolve(f"train={tmp_path}/all/{train},test={tmp_path}/all/set-validation-000.tar")
        assert (len(pair.train.labels), len(pair.test().labels)) == (60, 6)
    tar(tmp_path / "all/set-test-000.tar", numbered(8))
    one = resolve(str(tmp_path / "all"))
    assert (len(one.train.labels), len(one.test().labels)) == (60, 8)
    for part, n in (("train", 20), ("val", 4)):
        tar(tmp_path / f"parts/{part}/0.tar", numbered(n))
    parts = resolve(str(tmp_path / "parts"))
    assert (len(parts.train.labels), len(parts.test().labels)) == (20, 4)
    folder, _ = both(tmp_path / "mixed")
    tar(folder / "backup.tar", numbered())
    assert isinstance(resolve(str(folder)).train.store, Files)


def test_the_test_shards_must_have_the_same_classes(tmp_path):
    _, train = both(tmp_path)
    wrong = tar(tmp_path / "t.tar", {"cow/1.jpg": jpeg(), "dog/1.jpg": jpeg()})
    with pytest.raises(SuperformerError, match="'cat' only in training; 'cow' only in the test set"):
        resolve(f"train={train},test={wrong}")
    many = tar(tmp_path / "m.tar", {"1.jpg": jpeg(), "1.cls": "7"})
    with pytest.raises(SuperformerError, match="go up to 7, but there are 2 classes"):
        resolve(f"train={train},test={many}")


def test_links_and_hidden_members_are_passed_over(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(tar(path, numbered()), "a") as out:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo("../../secret.jpg")
            info.type, info.linkname = kind, "/etc/passwd"
            out.addfile(info)
    (tmp_path / "._a.tar").write_bytes(b"what another system leaves")
    assert len(resolve(str(tmp_path)).train.labels) == 20
    tar(path, numbered() | {"cat/._1.jpg": b"what another system leaves"})
    assert len(resolve(str(tmp_path)).train.labels) == 20


def test_broken_pictures_are_those_of_folders(tmp_path):
    """Left out where they are few, whether pictures are kept or decoded each time; an error where they are many."""
    half = jpeg(60, 60)
    members = numbered(150) | {"0007.jpg": b"broken"}
    for memory in (0, 2):
        spec = str(tar(tmp_path / "a.tar", members))
        with pytest.warns(UserWarning, match=r"1 of \d+ pictures do not decode.*0007.jpg in .*a.tar"):
            left = everything(load(spec, TIMM.model_copy(update={"memory": memory, "search": 0}), 8))
        assert left == 149
    members |= {f"{i:04d}.jpg": b"" for i in range(9)}
    with pytest.raises(SuperformerError, match="more than 1%"):
        _ = load(str(tar(tmp_path / "b.tar", members)), TIMM, 8).train
    cut = resolve(str(tar(tmp_path / "c.tar", numbered() | {"0003.jpg": half[: len(half) // 2]}))).train
    with pytest.warns(UserWarning, match=r"0003.jpg in .*grey stands in"):
        assert (Pictures(cut.store, cut.labels, cut.classes, 0).picture(3) == 128).all()


@pytest.mark.parametrize(
    ("members", "match"),
    [
        ({}, "is no whole, plain tar|no pictures in it"),
        ({"a.txt": "x", "a.cls": "0"}, r"a.tar: no pictures in it \(.jpg"),
        (numbered() | {"last.jpg": b""}, "1 of 21 pictures have no label, the first is last.jpg in .*put NAME.cls"),
        (numbered() | {"0003.json": '{"label": 0}'}, "0003.jpg in .*a.tar has two labels, 1 and 0"),
        (numbered() | {"0003.json": '{"label"'}, "0003.json in .*a.tar cannot be read"),
        (numbered() | {"0003.cls": b"\xff"}, "0003.cls in .*a.tar cannot be read"),
        (numbered() | {"0003.cls": " "}, "0003.cls in .*says the label ''"),
        (numbered() | {"0003.json": '{"label": [1]}'}, r"0003.json in .*says the label \[1\]"),
        (numbered() | {"0003.json": '{"label": true}'}, "says the label True"),
        (numbered() | {"0003.cls": "cat"}, "some labels are numbers, some names.*'cat' of 0003.jpg"),
        (numbered() | {"0003.cls": "5"}, "no picture of '2', '3', '4'"),
        (numbered() | {"0003.cls": "99999999999"}, "without gaps"),
    ],
)  # fmt: skip
def test_tars_that_are_not_right(tmp_path, members, match):
    path = tar(tmp_path / "a.tar", members)
    with pytest.raises(SuperformerError, match=match) as told:
        resolve(str(path))
    assert "\n" not in str(told.value)


def test_tars_that_are_no_tars(tmp_path):
    whole = tar(tmp_path / "a.tar", numbered()).read_bytes()
    with tarfile.open(tmp_path / "a.tar") as found:
        inside = [m.offset for m in found] + [m.offset_data + 5 for m in found]
    for cut in (0, 100, *inside[1::7]):
        (tmp_path / "a.tar").write_bytes(whole[:cut])
        with pytest.raises(SuperformerError, match=r"a.tar is no whole, plain tar .*write it again"):
            resolve(str(tmp_path / "a.tar"))
    (tmp_path / "a.tar").write_bytes(whole[:2048] + b"\x01" * 2048 + whole[4096:])
    with pytest.raises(SuperformerError, match=r"a.tar is no whole, plain tar"):
        resolve(str(tmp_path / "a.tar"))
    with tarfile.open(tmp_path / "z.tar", "w:gz") as out:
        out.addfile(tarfile.TarInfo("x"))
    with pytest.raises(SuperformerError, match=r"z.tar is no whole, plain tar"):
        resolve(str(tmp_path / "z.tar"))
    with pytest.raises(SuperformerError, match=r"there is no .*b-2.tar and 1 more: all shards must be there"):
        resolve(str(tar(tmp_path / "b-1.tar", numbered())).replace("b-1", "b-{1..3}"))
    with pytest.raises(SuperformerError, match=r"there is no .*no-\*.tar"):
        resolve(str(tmp_path / "no-*.tar"))


JPEGS = [jpeg(), jpeg(40, 9)]
for options in ({"progressive": True, "comment": b"words"}, {"quality": 5, "optimize": True}, {"subsampling": 0}):
    _file = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (30, 20, 3), dtype=np.uint8)).save(_file, "jpeg", **options)
    JPEGS.append(_file.getvalue())


@given(st.sampled_from(JPEGS), st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=3), st.data())
@settings(max_examples=300)
def test_sizes_of_jpegs_are_those_of_pillow(data, changes, draw):
    """Of damaged ones, too: whatever Pillow does not open has none."""
    assert jpeg_size(data) == Image.open(io.BytesIO(data)).size[::-1]
    for at, value in changes:
        data = data[:at] + bytes([value]) + data[at + 1 :]
    data = data[: draw.draw(st.integers(0, len(data)) | st.just(len(data)))]
    if (size := jpeg_size(data)) is not None:
        assert Image.open(io.BytesIO(data)).size == size[::-1]


def test_what_is_pickled_for_processes_reads_the_same(tmp_path):
    _, tars = both(tmp_path)
    store = resolve(str(tars)).train.store
    store.read(0)
    assert (pickle.loads(pickle.dumps(store)).read(9) == store.read(9)).all()


def test_a_shard_that_changes_while_it_is_used_is_noticed(tmp_path):
    store = resolve(str(tar(tmp_path / "a.tar", numbered()))).train.store
    tar(tmp_path / "a.tar", numbered(40))
    with pytest.raises(SuperformerError, match="changed since it was indexed"):
        store.read(3)


# --- the index ---


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])) | st.just("\udcff"), max_size=20
    )
)
def test_names_are_those_that_were_given(names):
    found = Names.of(names)
    assert list(found) == names
    assert len(found) == len(names)
    if names:
        assert found[-1] == names[-1]


def _grown(names, answer) -> None:
    def own() -> int:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))

    sum(len(names[i]) for i in range(1000))
    before = own()
    sum(len(names[i]) for i in range(len(names)))
    answer.put(own() - before)


def test_reading_names_does_not_copy_them_into_worker_processes():
    """In KiB; a list of as many texts is copied page by page."""
    forked = multiprocessing.get_context("fork")
    grown = []
    given = [f"class {i % 1000}/picture {i:07d}.jpg" for i in range(60_000)]
    for names in (Names.of(given), given):
        answer = forked.SimpleQueue()
        process = forked.Process(target=_grown, args=(names, answer))
        process.start()
        grown.append(answer.get())
        process.join()
    assert grown[0] < 1000 < 4000 < grown[1]


@pytest.fixture
def counted(monkeypatch):
    """How often shards and folders are listed, and headers of pictures read."""
    counts = {"lists": 0, "headers": 0}

    def count(holder, name, what):
        real = getattr(holder, name)

        def counting(*args, **more):
            counts[what] += 1
            return real(*args, **more)

        monkeypatch.setattr(holder, name, counting)

    count(shards, "_found_in", "lists")
    count(os, "walk", "lists")
    count(Encoded, "header", "headers")
    return counts


@pytest.mark.parametrize("kind", [0, 1], ids=["folder", "tars"])
def test_what_was_found_out_is_kept(tmp_path, monkeypatch, counted, kind):
    monkeypatch.setattr(index, "LARGE", 30)
    spec = both(tmp_path)[kind]
    first = load(str(spec), TIMM, 8)
    assert (len(first.fingerprint), len(first.train)) == (32, 28)
    assert (counted["lists"], counted["headers"]) == (1, 2 * 28)  # once to guess how large they are
    again = load(str(spec), TIMM, 8)
    assert again.fingerprint == first.fingerprint
    assert same(epoch(first.train, TIMM), epoch(again.train, TIMM))
    assert (counted["lists"], counted["headers"]) == (1, 2 * 28)
    assert len(again.search) == len(load(str(spec), TIMM, 8).search) == 4
    assert (counted["lists"], counted["headers"]) == (1, 2 * 28 + 4)
    kept = list(tmp_path.rglob(".superformer-*"))
    assert len(kept) == 1
    assert not kept[0].is_relative_to(tmp_path / "folder")


@pytest.mark.parametrize("kind", [0, 1], ids=["folder", "tars"])
def test_what_changed_is_found_out_again(tmp_path, monkeypatch, counted, kind):
    monkeypatch.setattr(index, "LARGE", 30)
    spec = both(tmp_path)[kind]
    prints = [load(str(spec), TIMM, 8).fingerprint]
    if kind:
        tar(spec / "part-3.tar", {"dog/90.jpg": jpeg(), "dog/91.jpg": jpeg()})
    else:
        (spec / "dog" / "new.jpg").write_bytes(jpeg())
    with pytest.warns(UserWarning, match=r"the index .*superformer-\w+.npz is of other data.*made anew"):
        prints.append(load(str(spec), TIMM, 8).fingerprint)
    assert counted["lists"] == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prints.append(load(str(spec), TIMM, 8).fingerprint)
    assert prints[0] != prints[1] == prints[2]
    if not kind:  # its folder does not tell
        (spec / "cat" / "0.jpg").write_bytes(jpeg(30, 30))
        with pytest.warns(UserWarning, match="made anew"):
            assert load(str(spec), TIMM, 8).fingerprint != prints[2]


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "text", "length", "labels", "version"])
def test_a_damaged_index_is_made_anew(tmp_path, counted, damage):
    _, spec = both(tmp_path)
    first = load(str(spec), TIMM, 8)
    (path,) = spec.glob(".superformer-*.npz")
    data = path.read_bytes()
    with np.load(path) as file:
        arrays = dict(file)
    middle = data.index(arrays["names"].tobytes()) + 9
    if damage == "length":
        np.savez(path, **arrays | {"offsets": arrays["offsets"][1:]})
    elif damage == "labels":
        np.savez(path, **{k: a for k, a in arrays.items() if k != "labels"})
    elif damage == "version":
        np.savez(path, **arrays | {"about": np.frombuffer(b"[0, [], []]", np.uint8)})
    else:
        bit = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
        path.write_bytes({"cut": data[:-30], "bit": bit, "empty": b"", "text": b"hello"}[damage])
    with pytest.warns(UserWarning, match=r"the index .*made anew"):
        again = load(str(spec), TIMM, 8)
    assert again.fingerprint == first.fingerprint
    assert counted["lists"] == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _ = load(str(spec), TIMM, 8)
    assert counted["lists"] == 2


def test_where_nothing_may_be_written(tmp_path, monkeypatch, counted):
    """Beside the data, then in the user's cache, or nowhere: the same pictures in all cases."""
    _, spec = both(tmp_path)
    real = os.replace

    def refused(where):
        def replace(source, target):
            if str(target).startswith(str(where)):
                raise PermissionError(13, "read-only")
            real(source, target)

        monkeypatch.setattr(os, "replace", replace)

    refused(tmp_path)
    prints = [load(str(spec), TIMM, 8).fingerprint for _ in range(2)]
    assert counted["lists"] == 1
    (kept,) = Path(os.environ["XDG_CACHE_HOME"]).rglob("*.npz")
    assert [p.name for p in spec.iterdir() if p.suffix != ".tar"] == []
    kept.unlink()
    refused("/")
    prints += [load(str(spec), TIMM, 8).fingerprint for _ in range(2)]
    assert counted["lists"] == 3
    assert len(set(prints)) == 1
    assert list(kept.parent.iterdir()) == []


def test_copies_are_equal_and_small_folders_are_as_before(tmp_path):
    folder, tars = both(tmp_path)
    known = load(str(tars), TIMM, 8).fingerprint
    for path in tars.glob("*.tar"):
        os.utime(path, (1, 1))
    with pytest.warns(UserWarning, match="made anew"):
        assert load(str(tars), TIMM, 8).fingerprint == known
    names = [f"{c}/{i}.jpg" for c in CLASSES for i in range(20)]
    before = digest(f"{n}\0{(folder / n).stat().st_size}\0".encode() for n in names)
    assert resolve(str(folder)).train.store.digest() == before
    assert not [*tmp_path.glob(".superformer-*")]


def test_a_large_folder_has_the_fingerprint_of_before(tmp_path, monkeypatch):
    folder, _ = both(tmp_path)
    before = load(str(folder), TIMM, 8).fingerprint
    monkeypatch.setattr(index, "LARGE", 30)
    assert [load(str(folder), TIMM, 8).fingerprint for _ in range(2)] == [before] * 2


def test_the_test_part_of_shards_is_not_opened_before_it_is_asked_for(tmp_path, monkeypatch):
    for part in ("train", "test"):
        tar(tmp_path / part / "0.tar", numbered())
    opened = []
    real = shards.Shards.encoded
    monkeypatch.setattr(shards.Shards, "encoded", lambda s, i, most=-1: opened.append(s.paths[0]) or real(s, i, most))
    data = load(str(tmp_path), TIMM, 8)
    assert len(data.train) + len(data.search) == 20
    assert set(opened) == {tmp_path / "train/0.tar"}
    data.test()
    assert tmp_path / "test/0.tar" in opened
