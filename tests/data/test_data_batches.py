from __future__ import annotations

import multiprocessing
import pickle
import random
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from superformer.data import Pictures, eval_batches, load, steps_per_epoch, train_batches
from superformer.data.augment import RankShare, TimmTransform, _seed_sequence, seeded, shift_batch
from superformer.data.batches import Prefetcher, _TimmPictures
from superformer.data.stores import Arrays
from superformer.errors import SuperformerError
from superformer.recipes.settings import Data, Mix

SIZE, CLASSES = 8, 3
PLAIN = Data(augment="none", mean=(0.0,), std=(1.0,))
SHIFT = Data(augment="shift", erase=0.5, shift=0.25)
TIMM = Data(augment="timm", erase=0.5, randaugment="rand-m9-mstd0.5-inc1", workers=0)
OFF = Mix(smoothing=0)
BOTH = Mix(mixup=0.8, cutmix=1.0)


def pictures(n: int = 50) -> Pictures:
    """Picture i is full of the value i."""
    images = np.broadcast_to(np.arange(n, dtype=np.uint8)[:, None, None], (n, SIZE, SIZE)).copy()
    return Pictures(Arrays(images), np.arange(n) % CLASSES, [str(c) for c in range(CLASSES)])


def varied(n: int = 50) -> Pictures:
    images = np.random.default_rng(1).integers(0, 256, (n, 12, 10, 3), dtype=np.uint8)
    return Pictures(Arrays(images), np.arange(n) % CLASSES, [str(c) for c in range(CLASSES)])


def epoch(p, data=PLAIN, mixing=OFF, *, seed=0, epoch=0, batch_size=8, **more):
    with train_batches(p, data, mixing, SIZE, seed=seed, epoch=epoch, batch_size=batch_size, **more) as batches:
        return list(batches)


def same(a, b) -> bool:
    return len(a) == len(b) and all(
        torch.equal(s.x, t.x) and torch.equal(s.target, t.target) and torch.equal(s.labels, t.labels)
        for s, t in zip(a, b, strict=True)
    )


def seen(batches) -> list[int]:
    return [round(v * 255) for b in batches for v in b.x[:, 0, 0, 0].tolist()]


# --- order ---


def test_an_epoch_shows_each_picture_once_and_drops_the_rest():
    numbers = seen(epoch(pictures()))
    assert len(numbers) == len(set(numbers)) == 48 == 8 * steps_per_epoch(50, 8)
    assert numbers != seen(epoch(pictures(), epoch=1))
    assert numbers != seen(epoch(pictures(), seed=1))
    assert numbers == seen(epoch(pictures()))
    labels = torch.cat([b.labels for b in epoch(pictures())])
    assert labels.tolist() == [n % CLASSES for n in numbers]


def test_repeats_show_fewer_pictures_more_often():
    batches = epoch(pictures(), PLAIN.model_copy(update={"repeats": 3}))
    numbers = seen(batches)
    assert len(numbers) == 48
    assert len(set(numbers)) == 16
    assert all(numbers.count(n) == 3 for n in numbers)
    varied_ = epoch(varied(), TIMM.model_copy(update={"repeats": 2}), batch_size=4)
    assert not torch.equal(varied_[0].x[0], varied_[0].x[1])


@pytest.mark.parametrize("data", [PLAIN, SHIFT, TIMM], ids=["none", "shift", "timm"])
@pytest.mark.parametrize("mixing", [OFF, BOTH], ids=["off", "mixed"])
def test_an_epoch_begins_at_any_step(data, mixing):
    whole = epoch(varied(), data, mixing)
    assert same(whole, epoch(varied(), data, mixing))
    assert same(whole[2:], epoch(varied(), data, mixing, start=2))
    assert epoch(varied(), data, mixing, start=len(whole)) == []


@given(
    st.sampled_from([PLAIN, SHIFT, TIMM]),
    st.sampled_from([OFF, BOTH, Mix(mixup=1.0, patches="switch"), Mix(mixup=0.8, cutmix=1.0, patches="halves")]),
    st.sampled_from([1, 2, 3]),
    st.integers(0, 3),
)
@settings(max_examples=25)
def test_ranks_together_compute_what_one_process_does(data, mixing, repeats, seed):
    data = data.model_copy(update={"repeats": repeats})
    one = epoch(varied(20), data, mixing, seed=seed, patch_grid=2)
    parts = [epoch(varied(20), data, mixing, seed=seed, patch_grid=2, rank=r, world=2) for r in range(2)]
    assert len(one) == len(parts[0]) == len(parts[1]) == 2
    for whole, *shares in zip(one, *parts, strict=True):
        for name in ("x", "target", "labels", "patches"):
            if getattr(whole, name) is None:
                assert mixing.patches == "off"
                continue
            for r, share in enumerate(shares):
                assert torch.equal(getattr(whole, name)[r::2], getattr(share, name)), name


def test_worker_processes_change_nothing():
    here, there = (epoch(varied(), TIMM.model_copy(update={"workers": w}), BOTH) for w in (0, 2))
    assert same(here, there)
    assert not multiprocessing.active_children()


# --- augmentation ---


def test_none_is_what_evaluation_sees():
    p = varied()
    order = torch.cat([b.x for b in epoch(p, batch_size=50)])
    plain = torch.cat([x for x, _ in eval_batches(p, PLAIN, SIZE, 7)])
    assert plain.shape == (50, 3, SIZE, SIZE)
    assert torch.equal(order.flatten(1).sort(0).values, plain.flatten(1).sort(0).values)


def test_shift_moves_and_mirrors():
    square = torch.zeros(400, 3, 8, 8, dtype=torch.uint8)
    square[:, :, 3, 2] = 255
    data = Data(augment="shift", shift=0.25, mirror=0.5, mean=(0.0,), std=(1.0,))
    out = shift_batch(square, data, np.random.default_rng(0), 400, RankShare())
    assert torch.equal(out.sum((2, 3)), torch.ones(400, 3))
    _, ys, xs = out[:, 0].nonzero(as_tuple=True)
    assert set(ys.tolist()) == {1, 2, 3, 4, 5}
    assert set(xs.tolist()) == {0, 1, 2, 3, 4} | {3, 4, 5, 6, 7}
    still = shift_batch(
        square, data.model_copy(update={"shift": 0, "mirror": 0}), np.random.default_rng(0), 400, RankShare()
    )
    assert torch.equal(still, square / 255)
    mirrored = shift_batch(
        square, data.model_copy(update={"shift": 0, "mirror": 1}), np.random.default_rng(0), 400, RankShare()
    )
    assert torch.equal(mirrored, square.flip(-1) / 255)
    assert square.sum() == 400 * 3 * 255


def test_shift_erases_a_box_in_as_many_pictures_as_asked():
    square = torch.zeros(1000, 3, 16, 16, dtype=torch.uint8)
    data = Data(augment="shift", shift=0, mirror=0, erase=0.3, mean=(0.0,), std=(1.0,))
    out = shift_batch(square, data, np.random.default_rng(0), 1000, RankShare())
    hit = out[:, 0] != 0
    assert 250 < hit.any(2).any(1).sum() < 350
    for one in hit[hit.any(2).any(1)][:50]:
        ys, xs = one.nonzero(as_tuple=True)
        assert one.sum() == (ys.max() - ys.min() + 1) * (xs.max() - xs.min() + 1)
    noise = out[out != 0]
    assert abs(noise.mean()) < 0.03
    assert abs(noise.std() - 1) < 0.03


def test_timm_leaves_the_generators_of_the_process_alone():
    def state():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = state()
    epoch(varied(20), TIMM, BOTH)
    epoch(varied(20), TIMM.model_copy(update={"workers": 1}), BOTH, batch_size=20)
    assert state() == before
    with pytest.raises(ZeroDivisionError), seeded(1):
        random.random() + np.random.rand() + torch.rand(1) / 0 + 1 / 0
    assert state() == before


@pytest.mark.parametrize("erase", [0.0, 0.9])
def test_varied_pictures_are_timms_to_the_last_bit(erase):
    """Also where they travel as uint8 and are normalised as a batch."""
    from timm.data import create_transform

    data = Data(erase=erase, randaugment="rand-m9-mstd0.5-inc1", std=(0.3, 0.2, 0.1))
    plain = create_transform(
        SIZE, is_training=True, auto_augment=data.randaugment, interpolation="bicubic", mean=data.mean, std=data.std,
        re_prob=erase, re_mode="pixel", color_jitter=None,
    )  # fmt: skip
    ours, p = TimmTransform(data, SIZE), varied(12)
    found = ours.finished(torch.stack([ours(p.image(i), 5, 0, i, 0) for i in range(12)]))
    for i, x in enumerate(found):
        with seeded(int(_seed_sequence(5, "augment", (0, i, 0)).generate_state(1)[0])):
            assert torch.equal(x, plain(p.image(i)))
    assert found.is_contiguous()


def test_timm_at_its_strongest_posterizes_to_black():
    data = Data(augment="timm", randaugment="rand-m10-inc1-n4", workers=0)
    assert len(epoch(varied(), data, seed=3)) == 6


@pytest.mark.parametrize("augment", ["none", "shift", "timm"])
def test_small_pictures_grow_to_the_input(augment):
    data = load("digits", Data(augment=augment, workers=0, mirror=0), 16)
    with train_batches(data.train, data.settings, BOTH, 16, seed=0, epoch=0, batch_size=32) as batches:
        batch = next(batches)
    assert batch.x.shape == (32, 3, 16, 16)
    assert batch.x.dtype == torch.float32
    assert batch.x.is_contiguous()
    assert batch.target.shape == (32, 10)


def test_workers_may_be_started_anew():
    """Where processes are not forked, what they need is pickled."""
    here = _TimmPictures(varied(), TIMM, SIZE, 0, 0)
    there = pickle.loads(pickle.dumps(here))
    assert torch.equal(here[3, 1], there[3, 1])


# --- evaluation ---


def test_evaluation_leaves_nothing_out_and_keeps_its_squares():
    p = varied()
    labels = torch.cat([y for _, y in eval_batches(p, PLAIN, SIZE, 16)])
    assert labels.tolist() == p.labels.tolist()
    kept = next(iter(p._squares.values()))
    list(eval_batches(p, PLAIN, SIZE, 16))
    assert next(iter(p._squares.values())) is kept


def test_a_limited_evaluation_cuts_few_pictures_and_always_the_same():
    p, other = varied(), varied()
    first, again = (list(eval_batches(p, PLAIN, SIZE, 4, limit=9)) for _ in range(2))
    assert not p._squares
    list(eval_batches(other, PLAIN, SIZE, 50))
    for (x, y), *more in zip(first, again, eval_batches(other, PLAIN, SIZE, 4, limit=9), strict=True):
        assert all(torch.equal(x, x2) and torch.equal(y, y2) for x2, y2 in more)
    assert torch.bincount(torch.cat([y for _, y in first])).tolist() == [3, 3, 3]
    assert sum(len(y) for _, y in eval_batches(p, PLAIN, SIZE, 4, limit=99)) == 50


def test_evaluation_without_memory_sees_the_same():
    p = varied()
    small = Pictures(p.store, p.labels, p.classes, memory=0)
    for (x, _), (y, _) in zip(eval_batches(p, SHIFT, SIZE, 16), eval_batches(small, SHIFT, SIZE, 16), strict=True):
        assert torch.equal(x, y)
    assert not small._squares


@pytest.mark.parametrize("memory", [0.0, 2.0])
def test_pictures_that_are_decoded_for_evaluation_are_cut_by_threads(tmp_path, monkeypatch, memory):
    """Always the same; a pass that is left early leaves nothing behind."""
    for k, picture in enumerate(np.random.default_rng(2).integers(0, 256, (150, 12, 12 + 2, 3), dtype=np.uint8)):
        place = tmp_path / "ab"[k % 2]
        place.mkdir(exist_ok=True)
        Image.fromarray(picture[:, : 12 + k % 3]).save(place / f"{k}.png")
    found = load(str(tmp_path), PLAIN, SIZE).train
    plain = Pictures(found.store, found.labels, found.classes, memory, found.index)
    alone = PLAIN.model_copy(update={"workers": 0})
    cutting, picture = set[str](), Pictures.picture
    monkeypatch.setattr(
        Pictures, "picture", lambda own, i: (cutting.add(threading.current_thread().name), picture(own, i))[1]
    )
    one = list(eval_batches(plain, alone, SIZE, 96))
    assert cutting == {"MainThread"}
    cutting.clear()
    before = threading.active_count()
    fresh = Pictures(found.store, found.labels, found.classes, memory, found.index)
    for (x, y), (x2, y2) in zip(one, eval_batches(fresh, PLAIN, SIZE, 96), strict=True):
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)
    assert cutting
    assert "MainThread" not in cutting
    some = eval_batches(fresh, PLAIN, SIZE, 32)
    next(some)
    some.close()
    assert soon(lambda: threading.active_count() == before)


# --- the iterator ---


def soon(holds):
    """Threads of torch's own queues take a moment to end."""
    for _ in range(500):
        if holds():
            return True
        time.sleep(0.01)
    return False


def test_an_epoch_can_be_left_early_without_leaks():
    threads = threading.active_count()
    for data in (SHIFT, TIMM.model_copy(update={"workers": 2})):
        batches = train_batches(varied(), data, BOTH, SIZE, seed=0, epoch=0, batch_size=4)
        assert len(batches) == 12
        next(batches)
        assert len(batches) == 11
        assert batches.waited > 0
        batches.close()
        batches.close()
        assert list(batches) == []
        assert soon(lambda: threading.active_count() == threads)
        assert soon(lambda: not multiprocessing.active_children())
    forgotten = train_batches(varied(), SHIFT, BOTH, SIZE, seed=0, epoch=0, batch_size=4)
    next(forgotten)
    del forgotten
    assert soon(lambda: threading.active_count() == threads)


def test_an_error_in_the_background_comes_to_the_front():
    def items():
        yield 1
        raise SuperformerError("broken")

    ahead = Prefetcher(items(), 3)
    assert next(ahead) == 1
    with pytest.raises(SuperformerError, match="broken"):
        next(ahead)
    assert list(ahead) == []


# --- mistakes ---


@pytest.mark.parametrize(
    ("data", "mixing", "more", "match"),
    [
        (PLAIN, OFF, {"batch_size": 51}, "batch of 51 is larger than the training set of 50"),
        (PLAIN, OFF, {"batch_size": 9, "world": 2}, "cannot be shared by 2"),
        (PLAIN, BOTH, {"batch_size": 9}, "multiple of 2"),
        (PLAIN, BOTH, {"batch_size": 6, "world": 2}, "on 2 processes.*multiple of 4"),
        (PLAIN, Mix(mixup=1, cutmix=1, patches="halves"), {"batch_size": 6, "patch_grid": 2}, "multiple of 4"),
        (PLAIN, Mix(mixup=1, patches="halves"), {"patch_grid": 2}, "set mix.mixup and mix.cutmix"),
        (PLAIN, Mix(mixup=1, patches="switch"), {}, "no patch tokens"),
        (PLAIN, Mix(mixup=1, patches="switch"), {"patch_grid": 3}, "3 x 3 patches"),
        (Data(mean=(0.5, 0.5)), OFF, {}, "data.mean has 2 values"),
        (Data(randaugment="nonsense", workers=0), OFF, {}, "data.randaugment is 'nonsense'"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(data, mixing, more, match):
    with pytest.raises(SuperformerError, match=match):
        epoch(pictures(), data, mixing, **more)
